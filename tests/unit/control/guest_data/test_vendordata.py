# SPDX-License-Identifier: GPL-3.0-or-later
"""Vendordata: the operator's file, and targets that answer, hang, lie or redirect."""

from __future__ import annotations

import logging
import ssl
import time
from pathlib import Path
from typing import Any

import pytest

from magnetar_control.conductor.worker.vendordata import Vendordata, VendordataFailed
from magnetar_control.settings_file import make_settings
from magnetar_core.errors import Cancelled, InvalidSettings
from tests.support.agent.pki import Pki
from tests.support.ports import free_port

from .targets import Targets, serving

USER = {"auth_type": "password", "auth_url": "http://127.0.0.1:1/v3", "username": "nova", "password_file": __file__,
        "user_domain_name": "Default", "project_name": "service", "project_domain_name": "Default"}
ASKED = {"project-id": "p", "instance-id": "i", "image-id": None, "user-data": None, "hostname": "web", "metadata": {},
         "boot-roles": "member"}


@pytest.fixture(scope="module")
def targets() -> Any:
    with serving() as found:
        yield found


def vendordata(*targets: str, **settings: Any) -> Vendordata:
    quick = {"vendordata_dynamic_connect_timeout": 0.5, "vendordata_dynamic_read_timeout": 0.5}
    made = make_settings({**quick, "vendordata_dynamic_targets": list(targets), **settings})
    return Vendordata(made, lambda _fresh: "token-1")


def ask(found: Vendordata) -> dict[str, Any]:
    return found.dynamic(ASKED, lambda: None)


def test_what_targets_answer_is_told_under_their_names(targets: Targets) -> None:
    found = ask(vendordata(f"a@{targets.url('good')}", f"b@{targets.url('list')}", f"c@{targets.url('empty')}"))
    assert found == {"a": {"join": "now"}, "b": [1, 2], "c": {}}
    path, headers, body = targets.asked[0]
    assert (path, body, headers["content-type"]) == ("good", ASKED, "application/json")
    assert "x-auth-token" not in headers


FAILURES = {
    "hangs": "in time", "drips": "in time|not JSON|broke off", "lies": "not JSON", "huge": "more than 64 KiB",
    "deep": "deeper than", "more": "in time|broke off|properly", "redirects": r"redirects \(status 302\)",
    "broken": "status 500", "gone": "status 404"}


@pytest.mark.parametrize("path", FAILURES)
def test_one_that_fails_leaves_an_empty_entry(targets: Targets, caplog: pytest.LogCaptureFixture, path: str) -> None:
    began, before = time.monotonic(), len(targets.asked)
    with caplog.at_level(logging.WARNING):
        assert ask(vendordata(f"bad@{targets.url(path)}", f"good@{targets.url('good')}")) == {
            "bad": {}, "good": {"join": "now"}}
    assert time.monotonic() - began < 10
    assert "good" in [one for one, _headers, _body in targets.asked[before:]]
    assert "Secret-Words" not in caplog.text


@pytest.mark.parametrize("path", FAILURES)
def test_what_is_logged_says_why(targets: Targets, caplog: pytest.LogCaptureFixture, path: str) -> None:
    words = f"target bad failed.*({FAILURES[path]})"
    with caplog.at_level(logging.WARNING), pytest.raises(VendordataFailed, match=words):
        ask(vendordata(f"bad@{targets.url(path)}", vendordata_dynamic_failure_fatal=True))
    assert "vendordata target bad of server i" in caplog.text and "Secret-Words" not in caplog.text


def test_nobody_listens() -> None:
    assert ask(vendordata(f"a@http://127.0.0.1:{free_port()}/")) == {"a": {}}


def test_a_cancelled_build_asks_no_further(targets: Targets) -> None:
    def confirm() -> None:
        raise Cancelled("gone")

    before = len(targets.asked)
    with pytest.raises(Cancelled):
        vendordata(f"a@{targets.url('good')}").dynamic(ASKED, confirm)
    assert len(targets.asked) == before


def test_tls_is_verified_and_the_token_goes_there_only(tmp_path: Path) -> None:
    pki = Pki(tmp_path / "pki")
    certificate, key = pki.issue("127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with serving(context) as targets:
        asked = {"vendordata_dynamic_service_token": True}
        known = vendordata(f"a@{targets.url('good')}", vendordata_dynamic_ssl_certfile=str(pki.ca), **asked)
        assert ask(known) == {"a": {"join": "now"}}
        assert targets.asked[0][1]["x-auth-token"] == "token-1"
        assert ask(vendordata(f"a@{targets.url('good')}", **asked)) == {"a": {}}  # nobody whom the system trusts
        assert len(targets.asked) == 1


def test_a_token_that_was_revoked_is_renewed_once(tmp_path: Path) -> None:
    pki = Pki(tmp_path / "pki")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pki.issue("127.0.0.1"))
    with serving(context) as targets:
        settings = make_settings({"vendordata_dynamic_targets": [f"a@{targets.url('good')}",
                                                                 f"b@{targets.url('strange')}"],
                                  "vendordata_dynamic_ssl_certfile": str(pki.ca),
                                  "vendordata_dynamic_service_token": True})
        targets.known = {"good": "new"}
        assert ask(Vendordata(settings, lambda fresh: "new" if fresh else "old")) == {"a": {"join": "now"}, "b": {}}
        assert [(path, headers["x-auth-token"]) for path, headers, _body in targets.asked] == [
            ("good", "old"), ("good", "new"), ("strange", "old"), ("strange", "new")]


def test_insecure_believes_whoever_answers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*Pki(tmp_path / "pki").issue("another.example.org"))
    with serving(context) as targets:
        assert ask(vendordata(f"a@{targets.url('good')}")) == {"a": {}} and "insecure" not in caplog.text
        assert ask(vendordata(f"a@{targets.url('good')}", vendordata_dynamic_auth={"insecure": True})) == {
            "a": {"join": "now"}}
    assert "insecure is true" in caplog.text


def test_a_user_without_a_token_leaves_an_empty_entry(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody listens at its Keystone."""
    found = vendordata("a@https://127.0.0.1:1/", vendordata_dynamic_auth=USER)
    assert ask(found) == {"a": {}} and "no token to ask it with: Keystone does not answer" in caplog.text


@pytest.mark.parametrize("in_one_file", [True, False])
def test_a_target_that_asks_for_a_certificate_gets_it(tmp_path: Path, in_one_file: bool) -> None:
    pki = Pki(tmp_path / "pki")
    certificate, key = pki.issue("127.0.0.1")
    own, own_key = pki.issue("vendordata")
    shown = {"vendordata_dynamic_auth": {"certfile": str(own), "keyfile": str(own_key)}}
    if in_one_file:
        both = tmp_path / "both.pem"
        both.write_bytes(Path(own).read_bytes() + Path(own_key).read_bytes())
        shown = {"vendordata_dynamic_auth": {"certfile": str(both)}}
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(pki.ca))
    context.load_cert_chain(certificate, key)
    context.verify_mode = ssl.CERT_REQUIRED
    with serving(context) as targets:
        trusted = {"vendordata_dynamic_ssl_certfile": str(pki.ca)}
        assert ask(vendordata(f"a@{targets.url('good')}", **trusted, **shown)) == {"a": {"join": "now"}}
        assert ask(vendordata(f"a@{targets.url('good')}", **trusted)) == {"a": {}}


@pytest.mark.parametrize(("settings", "words"), [
    ({"vendordata_dynamic_targets": ["http://a/"]}, "NAME@URL"),
    ({"vendordata_dynamic_targets": ["a@ftp://b/"]}, "NAME@URL"),
    ({"vendordata_dynamic_targets": ["a@http://b:99999/"]}, "NAME@URL"),
    ({"vendordata_dynamic_targets": ["a@http://user:Secret-Words@b/"]}, "without user and password"),
    ({"vendordata_dynamic_targets": ["a@http://b/", "a@http://c/"]}, "two called 'a'"),
    ({"vendordata_dynamic_targets": ["a@http://b/"], "vendordata_dynamic_service_token": True}, "must be https"),
    ({"vendordata_dynamic_ssl_certfile": "/none.pem"}, "ssl_certfile"),
    ({"vendordata_dynamic_targets": ["a@http://b/"], "vendordata_dynamic_auth": {"auth_type": "password"}},
     "username is missing"),
    ({"vendordata_dynamic_targets": ["a@http://b/"], "vendordata_dynamic_auth": USER}, "must be https"),
    ({"vendordata_dynamic_service_token": True, "vendordata_dynamic_auth": USER}, "one of the two"),
    *(({"vendordata_dynamic_auth": options}, words) for options, words in (
        ({"certfile": "/none.pem"}, "certfile /none.pem cannot be used"),
        ({"keyfile": "/none.pem"}, "keyfile needs certfile"),
        ({"usernam": "x"}, "usernam is not an option of it; did you mean username"),
        ({"timeout": "long"}, "timeout must be seconds"), ({"insecure": "yes"}, "insecure must be true or false"),
        ({"timeout": 0.0}, "timeout must be seconds, more than 0"), ({"username": 7}, "username must be a text"),
        ({"username": "x"}, "auth_type is missing"),
        ({"auth_type": "v3oidcpassword"}, "auth_type must be one of password"),
        ({**USER, "password": "Secret-Words"}, "password is not written here"),
        ({**USER, "collect_timing": True}, "collect_timing would do nothing"),
        ({**USER, "auth_section": "keystone_authtoken"}, "auth_section names a section of nova.conf"),
        ({**USER, "tenant_name": "service"}, "tenant_name is the old name of project_name"),
        ({**USER, "domain_name": "d"}, "project_name must be .* 2 are said"),
        ({**USER, "project_id": ""}, "project_id must be a text"),
        ({**USER, "auth_url": "keystone"}, "auth_url cannot be used"),
        ({**USER, "auth_url": None}, "auth_url is missing"),
        ({**USER, "user_domain_name": None}, "username needs user_domain_name"),
        ({**USER, "password_file": "/none"}, "password_file cannot be read"),
        ({**USER, "cafile": "/none.pem"}, "cafile: /none.pem cannot be used"),
        ({**USER, "application_credential_id": "x"}, "application_credential_id is not for auth_type password"),
        ({"auth_type": "v3applicationcredential", "auth_url": "http://k"}, "application_credential_name is missing"),
        ({"auth_type": "v3applicationcredential", "project_id": "p"}, "project_id is not for auth_type v3app"),
        ({**USER, "project_name": None, "system_scope": "some"}, "system_scope must be all"))),
    ({"vendordata_jsonfile_path": "/none.json"}, "jsonfile_path"),
    ({"vendordata_dynamic_read_timeout": 0}, "read_timeout"),
])
def test_settings_that_cannot_be_are_refused_by_name(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSettings, match=words) as refused:
        Vendordata(make_settings(settings), lambda _fresh: "")
    assert "Secret-Words" not in str(refused.value)


def test_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "vendor.json"
    file.write_text('{"site": "lab"}')
    found = vendordata(vendordata_jsonfile_path=str(file))
    assert found.static() == {"site": "lab"} and vendordata().static() == {}
    file.write_text('["Secret-Words"]')  # later
    assert found.static() == {} and "not a JSON object" in caplog.text and "Secret-Words" not in caplog.text
