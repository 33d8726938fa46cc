# SPDX-License-Identifier: GPL-3.0-or-later
"""What both identity services promise: the embedded one, and the client of a Keystone (here: the embedded's REST)."""

import socket
import threading
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from magnetar_control.api.identity.app import ExternalKeystone, identity_application
from magnetar_control.conductor.worker.vendordata_auth import VendordataAuth
from magnetar_control.services.identity import EmbeddedIdentity
from magnetar_control.services.identity.keystone import Keystone, keystone_of_settings
from magnetar_control.settings_file import make_settings
from magnetar_control.web import Fault, Request
from magnetar_control.web.application import by_token
from magnetar_core.errors import InvalidSettings, MagnetarError

from .cloud import Cloud, served


@pytest.fixture
def demo(sqlite):
    cloud = Cloud(sqlite)
    cloud.demo = cloud.project()
    cloud.ann = cloud.user(project=cloud.demo)
    return cloud


@pytest.fixture
def service(demo):
    """The user by whom Keystone is asked."""
    project = demo.admin("GET", "/v3/projects?name=service")["projects"][0]["id"]
    return demo.user("nova", "hush", project, "admin")


@pytest.fixture(params=[EmbeddedIdentity, Keystone])
def identity(request, demo, service):
    if request.param is EmbeddedIdentity:
        yield EmbeddedIdentity(demo.database, recheck_interval=0.0)
        return
    with served(identity=identity_application(demo.identity)) as url:
        yield Keystone(f"{url}/identity/v3", "nova", "hush", believed=0.0)


class TestContract:
    def test_a_context_says_who(self, identity, demo):
        token = demo.ask.login("ann", "secret", "demo").token
        context = identity.validate(token)
        assert (context.user_id, context.user_name, context.user_domain_id) == (demo.ann, "ann", "default")
        assert (context.project_id, context.project_name, context.project_domain_id) == (demo.demo, "demo", "default")
        assert context.roles == {"member", "reader"}
        assert context.token == token
        assert context.token not in repr(context)
        assert context.expires == pytest.approx(demo.identity.validate(token).expires, abs=1e-3)

    def test_without_a_project(self, identity, demo):
        context = identity.validate(demo.ask.login("admin", demo.password, scope={"system": {"all": True}}).token)
        assert context.project_id is None
        assert context.is_admin

    @pytest.mark.parametrize("token", ["", "nothing", "a b\r\nX-Auth-Token: x", "\u00fc", "x" * 5000])
    def test_what_is_no_token(self, identity, token):
        assert identity.validate(token) is None

    def test_a_revoked_token(self, identity, demo):
        token = demo.ask.login("ann", "secret", "demo").token
        assert identity.validate(token)
        demo.admin("DELETE", "/v3/auth/tokens", None, 204, x_subject_token=token)
        assert identity.validate(token) is None

    def test_a_disabled_user(self, identity, demo):
        token = demo.ask.login("ann", "secret", "demo").token
        demo.admin("PATCH", f"/v3/users/{demo.ann}", {"user": {"enabled": False}}, 200)
        assert identity.validate(token) is None

    def test_projects(self, identity, demo):
        context = identity.validate(demo.admin.token)
        assert identity.project_exists(context, demo.demo)
        assert not identity.project_exists(context, "nothing/../x")


def test_what_a_token_is_for(identity, demo):
    """Services of projects take no token of the system or a domain: scope_types of their policies is project."""
    user, enter = identity.validate(demo.admin.token).user_id, by_token(identity.validate)
    demo.admin("PUT", f"/v3/domains/default/users/{user}/roles/{demo.role('admin')}", None, 204)
    unscoped = demo.ask.login("admin", demo.password, scope="unscoped").token
    tokens = {"project": demo.admin.token, "": unscoped, **{kind: demo.ask("POST", "/v3/auth/tokens", {"auth": {
        "identity": {"methods": ["token"], "token": {"id": unscoped}}, "scope": {kind: target}}}, 201).token
        for kind, target in (("system", {"all": True}), ("domain", {"id": "default"}))}}
    for scope, token in tokens.items():
        request = Request("GET", "/v2.1/servers", "", {"x-auth-token": token})
        assert identity.validate(token).scope == scope
        if scope in ("project", ""):
            enter(request)
            continue
        with pytest.raises(Fault, match=f"yours is for the {scope}") as caught:
            enter(request)
        assert caught.value.status == 403


def test_keystones_answers_are_believed_for_a_while(demo, service):
    with served(identity=identity_application(demo.identity)) as url:
        keystone = Keystone(f"{url}/identity", "nova", "hush", believed=60)
        assert keystone.validate(demo.admin.token).is_admin
    assert keystone.validate(demo.admin.token).is_admin
    with pytest.raises(MagnetarError, match="does not answer") as caught:
        keystone.validate(demo.ask.login("ann", "secret", "demo").token)
    assert caught.value.status == 503


@pytest.mark.parametrize("answer", [b"no HTTP at all\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"])
def test_a_keystone_that_breaks_off_does_not_answer(answer):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def serve():
            with listener.accept()[0] as peer:
                peer.recv(65536)
                peer.sendall(answer)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(65536):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with pytest.raises(MagnetarError, match="does not answer") as caught:
                Keystone(f"http://127.0.0.1:{listener.getsockname()[1]}", "nova", "hush").validate("x")
            assert caught.value.status == 503
        finally:
            thread.join()


def test_our_own_token_is_renewed_when_it_is_refused(demo, service):
    with served(identity=identity_application(demo.identity)) as url:
        keystone = Keystone(f"{url}/identity", "nova", "hush", believed=0)
        assert keystone.validate(demo.admin.token)
        demo.admin("DELETE", "/v3/auth/tokens", None, 204, x_subject_token=keystone._own)
        assert keystone.validate(demo.admin.token)


def test_a_wrong_password_for_keystone_is_the_operators_matter(demo):
    with served(identity=identity_application(demo.identity)) as url, \
            pytest.raises(MagnetarError, match="cannot log in") as caught:
        Keystone(f"{url}/identity", "nova", "wrong").validate(demo.admin.token)
    assert caught.value.status == 503
    assert "wrong" not in caught.value.message


@pytest.mark.parametrize(("more", "scope"), [
    ({"user_domain_name": "Default", "project_name": "service", "project_domain_id": "default"}, "project"),
    ({"auth_type": "v3password", "default_domain_id": "default", "project_name": "service", "timeout": 5}, "project"),
    ({"default_domain_name": "Default", "domain_id": "default"}, "domain"),
    ({"user_domain_id": "default", "system_scope": "all", "insecure": True}, "system")])
def test_as_whom_vendordata_is_asked(demo, service, tmp_path, more, scope):
    secret = tmp_path / "secret"
    secret.write_text("hush\n")
    for target in ("domains/default", "system"):
        role = next(one["id"] for one in demo.admin("GET", "/v3/roles")["roles"] if one["name"] == "admin")
        demo.admin("PUT", f"/v3/{target}/users/{service}/roles/{role}", None, 204)
    with served(identity=identity_application(demo.identity)) as url:
        user = VendordataAuth({"auth_type": "password", "auth_url": f"{url}/identity/v3", "username": "nova",
                               "password_file": str(secret), **more}).user
        context = demo.identity.validate(user.token())
        assert (context.user_id, context.scope) == (service, scope)
        assert user.token() == context.token != user.token(True)
        with pytest.raises(MagnetarError, match="cannot log in") as caught:
            VendordataAuth({"auth_type": "password", "auth_url": f"{url}/identity", "user_id": service,
                            "password_file": __file__, "project_id": demo.demo}).user.token()
    assert "hush" not in str(caught.value)


def test_vendordata_is_asked_with_an_application_credential(demo, tmp_path):
    ann = demo.ask.as_(demo.ask.login("ann", "secret", "demo").token)
    made = ann("POST", f"/v3/users/{demo.ann}/application_credentials", {"application_credential": {"name": "ci"}},
               201)["application_credential"]
    secret = tmp_path / "secret"
    secret.write_text(made["secret"])
    with served(identity=identity_application(demo.identity)) as url:
        options = {"auth_type": "v3applicationcredential", "auth_url": f"{url}/identity",
                   "application_credential_secret_file": str(secret)}
        for which in ({"application_credential_id": made["id"]}, {
                "application_credential_name": "ci", "username": "ann", "user_domain_id": "default"}):
            context = demo.identity.validate(VendordataAuth({**options, **which}).user.token())
            assert (context.user_id, context.project_id) == (demo.ann, demo.demo)


def test_a_trust_is_named_in_the_login(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("hush")
    auth = VendordataAuth({"auth_type": "password", "auth_url": "https://keystone:5000/v3", "user_id": "u",
                           "password_file": str(secret), "trust_id": "t"})
    assert auth.user._login["auth"]["scope"] == {"OS-TRUST:trust": {"id": "t"}}


def test_only_http():
    with pytest.raises(ValueError, match="must begin with"):
        Keystone("file:///etc/passwd", "a", "b")


def test_of_the_settings(demo, service, tmp_path):
    secret = tmp_path / "password"
    secret.write_text("hush\n")
    with served(identity=identity_application(demo.identity)) as url:
        identity = keystone_of_settings(make_settings({"keystone_url": f"{url}/identity/v3",
                                                       "keystone_username": "nova",
                                                       "keystone_password_file": str(secret)}))
        assert identity.validate(demo.admin.token).is_admin
        old = identity.token()
        assert identity.token() == old != identity.token(fresh=True)


@pytest.mark.parametrize(("more", "words"), [
    ({}, "keystone_password_file"), ({"keystone_password_file": "/nowhere/password"}, "No such file"),
    ({"keystone_password_file": "/dev/null", "keystone_url": "ftp://keystone"}, "must begin with"),
    ({"keystone_password_file": "/dev/null", "keystone_ca_cert": "/nowhere/ca.pem"}, "No such file"),
])
def test_settings_that_cannot_be(more, words):
    with pytest.raises(InvalidSettings, match=words):
        keystone_of_settings(make_settings({"keystone_url": "https://keystone:5000/v3", **more}))


def test_in_place_of_the_embedded_service_is_a_sign():
    with served(identity=ExternalKeystone(Keystone("https://keystone:5000", "a", "b").url)) as url:
        with pytest.raises(HTTPError, match="404") as caught:
            urlopen(f"{url}/identity/v3/auth/tokens")
        assert "https://keystone:5000/v3" in caught.value.read().decode()
        caught.value.close()
