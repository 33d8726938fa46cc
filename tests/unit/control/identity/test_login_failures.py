# SPDX-License-Identifier: GPL-3.0-or-later
"""Whoever fails to log in has to wait, and is not waited for: nobody else does."""

import logging

import orjson
import pytest

from magnetar_control.api.identity.app import identity_application
from magnetar_control.services import identity
from magnetar_control.services.identity import passwords
from magnetar_control.web import Request
from magnetar_control.web.asgi import AsgiServer
from magnetar_control.web.quick import RunIn

from .cloud import URL, Client, Cloud


class Machine:
    """Logs in from an address, at a moment that the test sets."""

    def __init__(self, database):
        self.moment = 1_800_000_000.0
        self.cloud = Cloud(database, clock=lambda: self.moment)
        self.ann = self.cloud.user("ann", "secret")
        self.cloud.user("bob", "secret")

    def login(self, password="wrong", name="ann", address="192.0.2.1"):
        body = {"auth": {"identity": {"methods": ["password"], "password": {"user": {
            "name": name, "domain": {"id": "default"}, "password": password}}}, "scope": "unscoped"}}
        request = Request("POST", "/v3/auth/tokens", "", {}, orjson.dumps(body), root=URL)
        request.address = address
        return self.cloud.ask.application.handle(request)

    def fails(self, count, **more):
        for _time in range(count):
            assert self.login(**more).status == 401


@pytest.fixture
def machine(database):
    return Machine(database)


def test_after_five_failures_there_is_a_wait_and_each_further_one_doubles_it(machine):
    machine.fails(5)
    waits = []
    for _time in range(11):
        answer = machine.login("secret")
        assert answer.status == 429
        waits.append(int(answer.headers["Retry-After"]))
        assert orjson.loads(answer.body())["error"]["message"] == (
            f"There were too many failed logins. Try again in {waits[-1]} s.")
        machine.moment += waits[-1]
        machine.fails(1)
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_others_do_not_wait(machine):
    machine.fails(5)
    assert machine.login("secret").status == 429
    assert machine.login("secret", name="bob").status == 201
    assert machine.login("secret", address="192.0.2.2").status == 201
    machine.moment += 1
    assert machine.login("secret").status == 201
    machine.fails(5)


def test_a_refusal_takes_no_scrypt(machine, monkeypatch):
    machine.fails(5)
    monkeypatch.setattr(passwords, "password_matches", None)
    assert machine.login("secret").status == 429


def test_names_that_nobody_has_are_no_different(machine):
    machine.fails(5, name="nobody")
    assert machine.login(name="nobody").status == 429


def test_many_addresses_wait_a_little(machine):
    for number in range(50):
        machine.fails(1, address=f"192.0.2.{number}")
    answer = machine.login("secret", address="198.51.100.1")
    assert answer.status == 429
    assert int(answer.headers["Retry-After"]) <= 20


def test_all_addresses_that_one_client_may_have_are_one(machine):
    """A network gives each of its machines a /64 of IPv6 at least."""
    for number in range(100):
        machine.fails(1, name=f"user{number}", address=f"2001:db8:1:2::{number:x}")
    assert machine.login("secret", address="2001:db8:1:2:ffff::1").status == 429
    assert machine.login("secret", address="2001:db8:1:3::1").status == 201


def test_other_processes_know_of_it(machine):
    machine.fails(5)
    other = identity.EmbeddedIdentity(machine.cloud.database, clock=lambda: machine.moment)
    machine.cloud.ask = Client(identity_application(other))
    assert machine.login("secret").status == 429


def test_failures_are_forgotten(machine):
    machine.fails(5)
    machine.moment += 3601
    machine.fails(5)
    with machine.cloud.database.read() as connection:
        assert connection.exec_driver_sql("SELECT max(failures) FROM identity_login_failures").scalar() == 5


def test_the_log_says_who_and_from_where(machine, caplog):
    with caplog.at_level(logging.INFO, "magnetar.audit"):
        machine.fails(1, name="eve")
    (record,) = [one for one in caplog.records if one.name == "magnetar.audit"]
    assert (record.message, record.user, record.address) == ("login refused", "eve", "192.0.2.1")


def test_logins_have_threads_of_their_own(machine):
    """Hashing takes all of a processor; what others ask goes on beside it."""
    application = machine.cloud.ask.application
    assert application.run_in(Request("POST", "/v3/auth/tokens", "", {})) is RunIn.LOGIN
    for path in ("/v3/users/u/password", "/v3/users/u/application_credentials"):
        assert application.run_in(Request("POST", path, "", {})) is RunIn.LOGIN
    assert application.run_in(Request("GET", "/v3/auth/tokens", "", {})) is RunIn.THREAD


def test_to_change_a_password_is_no_way_around(machine, caplog, monkeypatch):
    """Whoever has come by a token of a user does not try passwords with it."""
    ann = machine.cloud.ask.as_(machine.login("secret").headers["X-Subject-Token"])
    path, guess = f"/v3/users/{machine.ann}/password", {"user": {"original_password": "wrong", "password": "new"}}
    with caplog.at_level(logging.INFO, "magnetar.audit"):
        for _time in range(5):
            ann("POST", path, guess, 401)
    assert [one.message for one in caplog.records if one.name == "magnetar.audit"] == [
        "change of a password refused"] * 5
    with monkeypatch.context() as patched:
        patched.setattr(passwords, "password_matches", None)
        ann("POST", path, guess, 429)
    machine.moment += 1
    ann("POST", path, {"user": {"original_password": "secret", "password": "new"}}, 204)
    assert machine.login("new").status == 201


def test_an_account_is_not_kept_out_of_an_address_where_it_logs_in(machine):
    """Whatever others do, from elsewhere or with other names from there; its own failures there count."""
    assert machine.login("secret", address="198.51.100.1").status == 201
    machine.moment += 86400
    for number in range(50):
        machine.fails(1, address=f"192.0.2.{number}")
    for number in range(100):
        machine.fails(1, name=f"user{number}", address="198.51.100.1")
    assert machine.login("secret", address="198.51.100.1").status == 201
    assert machine.login("secret", address="198.51.100.2").status == 429
    machine.moment += 20
    assert machine.login("secret", address="198.51.100.1").status == 201
    machine.fails(5, address="198.51.100.1")
    assert machine.login("secret", address="198.51.100.1").status == 429


def test_who_is_kept_out_elsewhere_logs_in_from_the_network_of_before(machine):
    """A network of IPv6 gives its machines new addresses of its /64 every day."""
    assert machine.login("secret", address="2001:db8:1:2::1").status == 201
    for number in range(50):
        machine.fails(1, address=f"192.0.2.{number}")
    assert machine.login("secret", address="2001:db8:1:2:aaaa::2").status == 201
    assert machine.login("secret", address="2001:db8:1:3::1").status == 429


def test_an_account_that_is_kept_out_keeps_its_credentials_and_tokens(machine):
    """They are accounts of their own: whoever guesses passwords does not know their ids."""
    ask = machine.cloud.ask
    user = machine.cloud.user("cat", "secret", machine.cloud.project("p"))
    token = ask.login("cat", "secret", "p").token
    made = ask.as_(token)("POST", f"/v3/users/{user}/application_credentials", {
        "application_credential": {"name": "ci"}}, 201)["application_credential"]
    for number in range(50):
        machine.fails(1, name="cat", address=f"192.0.2.{number}")
    assert machine.login("secret", name="cat", address="198.51.100.1").status == 429
    for method, given in (("application_credential", {"id": made["id"], "secret": made["secret"]}),
                          ("token", {"id": token})):
        body = {"auth": {"identity": {"methods": [method], method: given}}}
        request = Request("POST", "/v3/auth/tokens", "", {}, orjson.dumps(body), root=URL)
        request.address = "198.51.100.1"
        assert ask.application.handle(request).status == 201, method


def test_behind_a_proxy_the_address_that_it_tells_is_known(machine):
    """What a client says itself stands before it in the header, and does not count."""
    machine.login("secret", address="198.51.100.1")
    for number in range(50):
        machine.fails(1, address=f"192.0.2.{number}")
    server = AsgiServer({}, 1, trusted=True)
    scope = {"client": ("203.0.113.9", 5000)}

    def seen(header):
        return server._address(scope, {"x-forwarded-for": header})

    assert machine.login("secret", address=seen("192.0.2.7, 198.51.100.1")).status == 201
    assert machine.login("secret", address=seen("198.51.100.1, 192.0.2.99")).status == 429


def test_where_it_logged_in_is_forgotten(machine):
    assert machine.login("secret", address="198.51.100.1").status == 201
    machine.moment += 31 * 86400
    for number in range(50):
        machine.fails(1, address=f"192.0.2.{number}")
    assert machine.login("secret", address="198.51.100.1").status == 429


def test_drawn_secrets_take_no_slow_hash(machine, monkeypatch):
    """Nor does their login; secrets that users choose do, and those of before stay good. A wrong one is refused as
    slowly as any."""
    cloud = machine.cloud
    user = cloud.user("cat", "secret", cloud.project("p"))
    cat = cloud.ask.as_(cloud.ask.login("cat", "secret", "p").token)
    path = f"/v3/users/{user}/application_credentials"
    before = cat("POST", path, {"application_credential": {"name": "old", "secret": "chosen by cat"}}, 201)

    def status(credential, secret):
        return cloud.ask("POST", "/v3/auth/tokens", {"auth": {"identity": {
            "methods": ["application_credential"], "application_credential": {
                "id": credential["application_credential"]["id"], "secret": secret}}}}).status

    assert status(before, "chosen by cat") == 201
    with monkeypatch.context() as patched:
        patched.setattr(passwords, "_scrypt", None)
        made = cat("POST", path, {"application_credential": {"name": "ci"}}, 201)
        assert status(made, made["application_credential"]["secret"]) == 201


def test_every_refusal_takes_one_slow_hash(monkeypatch):
    """By the time of a refusal nobody learns which users and credentials there are."""
    hashed, scrypt = [], passwords._scrypt
    kept = (None, passwords.hash_password("right"), passwords.hash_secret(passwords.draw_secret()))
    monkeypatch.setattr(passwords, "_scrypt", lambda *args: hashed.append(args[2]) or scrypt(*args))
    for one in kept:
        assert not passwords.password_matches("wrong", one)
    assert hashed == [passwords.COST] * 3
