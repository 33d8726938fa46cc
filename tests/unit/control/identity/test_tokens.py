# SPDX-License-Identifier: GPL-3.0-or-later
"""Tokens: who gets one, what it is worth, and when it ends."""

import contextlib
import time
import timeit
from datetime import UTC, datetime

import pytest

from magnetar_control.services import identity
from magnetar_control.services.identity import application_credentials, passwords
from magnetar_control.services.identity.keystone import context_of_token
from magnetar_control.services.identity.login import LONGEST_CHAIN
from magnetar_control.services.identity.tokens import Claims, sign_claims

from .cloud import URL, Cloud

HOUR = 3600


@pytest.fixture
def demo(cloud):
    """A project and a user with the role member on it."""
    project = cloud.project()
    return project, cloud.user(project=project)


def test_a_token_says_who_bears_it(cloud, demo):
    project, user = demo
    context = cloud.identity.validate(cloud.ask.login("ann", "secret", "demo").token)
    assert (context.user_id, context.user_name) == (user, "ann")
    assert (context.project_id, context.project_name) == (project, "demo")
    assert context.roles == {"member", "reader"}
    assert not context.is_admin
    assert cloud.identity.validate(cloud.admin.token).roles == {"admin", "manager", "member", "reader"}


def test_the_document_is_keystones(small):
    got = small.ask.login("admin", small.password)
    assert got.status == 201
    token = got["token"]
    assert token["user"]["domain"] == {"id": "default", "name": "Default"}
    assert token["project"]["name"] == "admin"
    assert token["methods"] == ["password"]
    assert token["expires_at"].endswith("Z")
    assert {role["name"] for role in token["roles"]} == {"admin", "manager", "member", "reader"}
    types = {entry["type"]: entry["endpoints"] for entry in token["catalog"]}
    assert set(types) == {"compute", "identity", "image", "network", "volumev3", "block-storage", "placement"}
    assert {end["interface"] for end in types["compute"]} == {"public", "internal", "admin"}
    assert types["volumev3"][0]["url"] == f"{URL}/volume/v3/{token['project']['id']}"
    shown = small.admin("GET", "/v3/auth/tokens?nocatalog", None, 200, x_subject_token=got.token)
    assert "catalog" not in shown["token"]
    assert shown.token == got.token


@pytest.mark.parametrize("scope, key", [
    ({"system": {"all": True}}, "system"), ({"project": {"name": "admin", "domain": {"name": "Default"}}}, "project")])
def test_scopes(small, scope, key):
    assert key in small.ask.login("admin", small.password, scope=scope)["token"]


def test_an_admin_of_a_domain_is_no_admin_of_the_cloud(small):
    """Roles on a domain are shown in the token, and say nothing about clouds, projects and other domains."""
    domain = small.admin("POST", "/v3/domains", {"domain": {"name": "guests"}}, 201)["domain"]["id"]
    ann = small.user("ann")
    small.admin("PUT", f"/v3/domains/{domain}/users/{ann}/roles/{small.role('admin')}", None, 204)
    got = small.ask.login("ann", "secret", scope={"domain": {"id": domain}})
    assert [role["name"] for role in got["token"]["roles"]]
    context = small.identity.validate(got.token)
    assert (context.is_admin, context.is_writer, context.roles) == (False, False, frozenset())
    small.ask.as_(got.token)("POST", "/v3/users", {"user": {"name": "eve", "password": "x"}}, 403)
    keystones = {"user": {"id": "a", "name": "ann", "domain": {"id": "default"}}, "roles": [{"name": "admin"}],
                 "expires_at": "2030-01-01T00:00:00+00:00"}
    assert context_of_token({**keystones, "system": {"all": True}}, "").is_admin
    assert not context_of_token({**keystones, "domain": {"id": domain}}, "").is_admin


def test_an_unscoped_token_becomes_a_scoped_one_and_ends_with_it(cloud, demo):
    project, _user = demo
    body = {"auth": {"identity": {"methods": ["password"], "password": {
        "user": {"name": "ann", "domain": {"id": "default"}, "password": "secret"}}}, "scope": "unscoped"}}
    first = cloud.ask("POST", "/v3/auth/tokens", body, 201)
    assert "project" not in first["token"]
    assert "catalog" not in first["token"]
    assert cloud.identity.validate(first.token).project_id is None
    second = cloud.ask("POST", "/v3/auth/tokens", {"auth": {
        "identity": {"methods": ["token"], "token": {"id": first.token}}, "scope": {"project": {"id": project}}}}, 201)
    assert second["token"]["expires_at"] == first["token"]["expires_at"]
    assert second["token"]["methods"] == ["password", "token"]
    cloud.ask.as_(first.token)("DELETE", "/v3/auth/tokens", None, 204, x_subject_token=first.token)
    assert cloud.identity.validate(second.token) is None


def _again(cloud, token, project):
    """A login with a token."""
    return cloud.ask("POST", "/v3/auth/tokens", {"auth": {
        "identity": {"methods": ["token"], "token": {"id": token}}, "scope": {"project": {"id": project}}}})


@pytest.mark.parametrize("revoked", range(4))
def test_with_a_token_end_all_that_were_got_with_it_however_far(cloud, demo, revoked):
    chain = [cloud.ask.login("ann", "secret", "demo")]
    for _more in range(3):
        chain.append(_again(cloud, chain[-1].token, demo[0]))
    ids = [one["token"]["audit_ids"] for one in chain]
    assert [one[1:] for one in ids] == [[], *([ids[0][0]] for _more in range(3))]  # their own, and the first of all
    assert all(cloud.identity.validate(one.token) for one in chain)
    token = chain[revoked].token
    cloud.ask.as_(token)("DELETE", "/v3/auth/tokens", None, 204, x_subject_token=token)
    good = [cloud.identity.validate(one.token) is not None for one in chain]
    assert good == [number < revoked for number in range(4)]


def test_a_chain_of_tokens_has_an_end(small):
    project = small.identity.validate(small.admin.token).project_id
    token = small.admin.token
    for _more in range(LONGEST_CHAIN):
        token = _again(small, token, project).token
        assert small.identity.validate(token)
    refused = _again(small, token, project)
    assert refused.status == 403
    assert "password" in refused["error"]["message"]


@pytest.mark.parametrize("name, password, project", [
    ("admin", "wrong", "admin"), ("nobody", "x", "admin"), ("admin", None, "elsewhere"), ("ad\u00fc", "x", "admin")])
def test_a_wrong_login_is_a_401_that_does_not_say_which_part(small, name, password, project):
    got = small.ask.login(name, password or small.password, project)
    assert got.status == 401
    assert got["error"]["code"] == 401
    assert got["error"]["title"] == "Unauthorized"
    assert got.headers["WWW-Authenticate"].startswith("Keystone")
    assert small.password not in str(got.body)


def test_an_unknown_user_takes_as_long_as_a_wrong_password(sqlite, monkeypatch):
    monkeypatch.setattr(passwords, "COST", (2**14, 8, 1))
    small = Cloud(sqlite)

    def took(name):
        started = time.thread_time()
        assert small.ask.login(name, "wrong").status == 401
        return time.thread_time() - started

    known, unknown = (min(took(name) for _try in range(3)) for name in ("admin", "nobody"))
    assert 0.5 < known / unknown < 2


def test_a_login_keeps_no_connection_while_passwords_are_compared(small, monkeypatch):
    """That takes long, and others wait for a connection."""
    project = small.project()
    user = small.user(project=project)
    ann = small.ask.as_(small.ask.login("ann", "secret", "demo").token)
    made = ann("POST", f"/v3/users/{user}/application_credentials", {"application_credential": {"name": "ci"}}, 201)
    credential = {name: made["application_credential"][name] for name in ("id", "secret")}
    held, during, read, matches = [], [], small.database.read, passwords.password_matches

    @contextlib.contextmanager
    def reading():
        with read() as connection:
            held.append(connection)
            try:
                yield connection
            finally:
                held.pop()

    def compared(*given):
        during.append(len(held))
        return matches(*given)

    monkeypatch.setattr(small.database, "read", reading)
    monkeypatch.setattr(passwords, "password_matches", compared)
    assert small.ask.login("ann", "secret", "demo").status == 201
    assert small.ask.login("nobody", "secret", "demo").status == 401
    assert small.ask("POST", "/v3/auth/tokens", {"auth": {"identity": {
        "methods": ["application_credential"], "application_credential": credential}}}).status == 201
    assert during == [0, 0, 0]


CHANGES = {
    "give it back": lambda c, p, u, t: c.admin("DELETE", "/v3/auth/tokens", None, 204, x_subject_token=t),
    "disable the user": lambda c, p, u, t: c.admin("PATCH", f"/v3/users/{u}", {"user": {"enabled": False}}, 200),
    "disable the project": lambda c, p, u, t: c.admin(
        "PATCH", f"/v3/projects/{p}", {"project": {"enabled": False}}, 200),
    "set the password": lambda c, p, u, t: c.admin("PATCH", f"/v3/users/{u}", {"user": {"password": "new"}}, 200),
    "change the password": lambda c, p, u, t: c.ask.as_(t)("POST", f"/v3/users/{u}/password", {
        "user": {"original_password": "secret", "password": "new"}}, 204),
    "take the role": lambda c, p, u, t: c.admin(
        "DELETE", f"/v3/projects/{p}/users/{u}/roles/{c.role('member')}", None, 204),
    "remove the user": lambda c, p, u, t: c.admin("DELETE", f"/v3/users/{u}", None, 204),
    "remove the project": lambda c, p, u, t: c.admin("DELETE", f"/v3/projects/{p}", None, 204),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_token_ends_at_once_where_the_change_was_made_and_a_moment_later_elsewhere(cloud, demo, change):
    token = cloud.ask.login("ann", "secret", "demo").token
    elsewhere = identity.EmbeddedIdentity(cloud.database, recheck_interval=0.05)
    assert elsewhere.validate(token).user_name == "ann"
    change(cloud, *demo, token)
    assert cloud.identity.validate(token) is None
    time.sleep(0.06)
    assert elsewhere.validate(token) is None
    assert cloud.identity.validate(cloud.admin.token) is not None


@pytest.mark.parametrize("noun, at", [("project", 0), ("user", 1)])
def test_what_is_enabled_again_does_not_bring_old_tokens_back(cloud, demo, noun, at):
    token = cloud.ask.login("ann", "secret", "demo").token
    for enabled in (False, True):
        cloud.admin("PATCH", f"/v3/{noun}s/{demo[at]}", {noun: {"enabled": enabled}}, 200)
    assert cloud.identity.validate(token) is None
    assert cloud.ask.login("ann", "secret", "demo").status == 201


def test_a_role_taken_away_is_gone_from_tokens_that_stay_good(cloud, demo):
    project, user = demo
    role = cloud.role("manager")
    path = f"/v3/projects/{project}/users/{user}/roles/{role}"
    token = cloud.ask.login("ann", "secret", "demo").token
    cloud.admin("PUT", path, None, 204)
    assert "manager" in cloud.identity.validate(token).roles
    cloud.admin("DELETE", path, None, 204)
    assert "manager" not in cloud.identity.validate(token).roles


def test_a_token_expires(sqlite):
    moment = [1_800_000_000.0]
    cloud = Cloud(sqlite, life=HOUR, clock=lambda: moment[0])
    assert cloud.identity.validate(cloud.admin.token) is not None
    moment[0] += HOUR - 1
    assert cloud.identity.validate(cloud.admin.token) is not None
    moment[0] += 1
    assert cloud.identity.validate(cloud.admin.token) is None
    assert cloud.admin("GET", "/v3/projects").status == 401


def test_a_clock_a_minute_off_does_no_harm(sqlite):
    cloud = Cloud(sqlite)
    behind = identity.EmbeddedIdentity(sqlite, clock=lambda: time.time() - 60)
    assert behind.validate(cloud.admin.token) is not None


@pytest.mark.parametrize("life", [60, 25 * HOUR])
def test_the_life_of_tokens_has_limits(sqlite, life):
    with pytest.raises(ValueError, match="it must be"):
        identity.EmbeddedIdentity(sqlite, life=life)


def test_what_nobody_signed_is_worth_nothing(small):
    token = small.admin.token
    prefix, key, claims, signature = token.split(".")
    forged = sign_claims(Claims("x", "admin", 0, 0.0, 9e9, ("password",)), key, b"guessed")
    for bad in ("", "x", "a.b.c.d", token[:-1], token + "A", f"{prefix}.other.{claims}.{signature}", forged, "\u00fc",
                f"{prefix}.{key}.{claims}.", "." * 9, "A" * 100_000):
        assert small.identity.validate(bad) is None


def test_older_keys_are_believed_after_a_new_one(small):
    from magnetar_control.services.identity.tokens import insert_signing_key
    old = small.admin.token
    with small.identity.tokens.change() as connection:
        insert_signing_key(connection)
    new = small.ask.login("admin", small.password).token
    assert new.split(".")[1] != old.split(".")[1]
    assert small.identity.validate(old) and small.identity.validate(new)


def test_a_known_token_costs_microseconds(small):
    validate, token = small.identity.validate, small.admin.token
    validate(token)
    assert min(timeit.repeat(lambda: validate(token), number=1000, repeat=5)) / 1000 < 20e-6


def test_passwords_are_kept_as_salted_hashes():
    one, two = passwords.hash_password("x"), passwords.hash_password("x")
    assert one != two
    assert passwords.password_matches("x", one)
    assert not passwords.password_matches("y", one)
    assert not passwords.password_matches("x", None)


BAD = [None, {}, {"auth": {}}, {"auth": {"identity": {"methods": []}}}, {"auth": {"identity": {"methods": [1]}}},
       {"auth": {"identity": {"methods": ["password"]}}},
       {"auth": {"identity": {"methods": ["password"], "password": {"user": {"name": "a", "password": 1}}}}},
       {"auth": {"identity": {"methods": ["password"], "password": {"user": {"name": "a\0", "password": "x"}}}}},
       {"auth": {"identity": {"methods": ["token"], "token": {"id": 5}}}}]


@pytest.mark.parametrize("body", BAD)
def test_a_login_of_a_wrong_form_is_a_400(small, body):
    got = small.ask("POST", "/v3/auth/tokens", b"" if body is None else body, 400)
    assert got["error"]["message"]


@pytest.mark.parametrize("scope", [{}, {"project": 1}, {"moon": {}}, {"system": {}}, {"project": {}, "domain": {}}, 7])
def test_a_scope_of_a_wrong_form_is_a_400(small, scope):
    body = {"auth": {"identity": {"methods": ["password"], "password": {
        "user": {"name": "admin", "domain": {"id": "default"}, "password": small.password}}}, "scope": scope}}
    small.ask("POST", "/v3/auth/tokens", body, 400)


def test_application_credentials(cloud, demo):
    project, user = demo
    ann = cloud.ask.as_(cloud.ask.login("ann", "secret", "demo").token)
    path = f"/v3/users/{user}/application_credentials"
    made = ann("POST", path, {"application_credential": {"name": "ci", "roles": [{"name": "reader"}]}}, 201)
    credential = made["application_credential"]
    assert [role["name"] for role in credential["roles"]] == ["reader"]
    assert "secret" not in str(ann("GET", path, None, 200).body)
    body = {"auth": {"identity": {"methods": ["application_credential"], "application_credential": {
        "id": credential["id"], "secret": credential["secret"]}}}}
    token = cloud.ask("POST", "/v3/auth/tokens", body, 201).token
    context = cloud.identity.validate(token)
    assert (context.project_id, context.roles) == (project, {"reader"})
    cloud.ask.as_(token)("POST", path, {"application_credential": {"name": "more"}}, 403)
    ann("POST", path, {"application_credential": {"name": "ci"}}, 409)
    ann("POST", path, {"application_credential": {"name": "x", "roles": [{"name": "admin"}]}}, 400)
    ann("POST", path, {"application_credential": {"name": "x", "expires_at": "soon"}}, 400)
    cloud.admin("POST", path, {"application_credential": {"name": "x"}}, 403)
    ann("DELETE", f"{path}/{credential['id']}", None, 204)
    assert cloud.identity.validate(token) is None
    assert cloud.ask("POST", "/v3/auth/tokens", body).status == 401


def test_a_user_has_so_many_application_credentials(cloud, demo, monkeypatch):
    monkeypatch.setattr(application_credentials, "MOST", 2)
    ann = cloud.ask.as_(cloud.ask.login("ann", "secret", "demo").token)
    path = f"/v3/users/{demo[1]}/application_credentials"
    first, _second = (ann("POST", path, {"application_credential": {"name": name}}, 201)["application_credential"]["id"]
                      for name in ("one", "two"))
    refused = ann("POST", path, {"application_credential": {"name": "three"}}, 403)
    assert "the user has 2" in refused["error"]["message"]
    ann("DELETE", f"{path}/{first}", None, 204)
    ann("POST", path, {"application_credential": {"name": "three"}}, 201)


def test_a_token_ends_with_the_application_credential_with_which_it_was_got(sqlite):
    moment = [1_800_000_000.0]
    cloud = Cloud(sqlite, clock=lambda: moment[0])
    user = cloud.user(project=cloud.project())
    ann = cloud.ask.as_(cloud.ask.login("ann", "secret", "demo").token)
    ends = datetime.fromtimestamp(moment[0] + 60, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    made = ann("POST", f"/v3/users/{user}/application_credentials",
               {"application_credential": {"name": "ci", "expires_at": ends}}, 201)["application_credential"]
    got = cloud.ask("POST", "/v3/auth/tokens", {"auth": {"identity": {
        "methods": ["application_credential"],
        "application_credential": {name: made[name] for name in ("id", "secret")}}}}, 201)
    assert got["token"]["expires_at"] == ends
    assert cloud.identity.validate(got.token).expires == moment[0] + 60
    moment[0] += 59
    assert cloud.identity.validate(got.token) is not None
    moment[0] += 1
    assert cloud.identity.validate(got.token) is None
