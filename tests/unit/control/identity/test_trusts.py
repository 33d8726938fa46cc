# SPDX-License-Identifier: GPL-3.0-or-later
"""Trusts: who makes and sees them, what their tokens are worth and may do, redelegation, and when they end."""

import time

import pytest

from magnetar_control.services.identity import trusts
from magnetar_control.store.engine.database import utc_now

ABSENT = "8c7d3c0e5d0f4a2b9d0e0c6c8a1f2b3d"


class World:
    """ann (trustor), bob (trustee) and cal, and a project on which only ann has a role: member, and so reader."""

    def __init__(self, cloud):
        self.cloud = cloud
        self.project = cloud.project()
        self.ids = {"ann": cloud.user(project=self.project), "bob": cloud.user("bob"), "cal": cloud.user("cal")}
        self.ann = cloud.ask.as_(cloud.ask.login("ann", "secret", "demo").token)
        self.bob = cloud.ask.as_(cloud.ask.login("bob", "secret", scope="unscoped").token)

    def trust(self, ask=None, status=201, trustor="ann", trustee="bob", **fields):
        """Make a trust; what is answered."""
        body = {"trustor_user_id": self.ids.get(trustor, trustor), "trustee_user_id": self.ids.get(trustee, trustee),
                "impersonation": True, "project_id": self.project, "roles": [{"name": "member"}], **fields}
        got = (ask or self.ann)("POST", "/v3/OS-TRUST/trusts", {"trust": body}, status)
        return got["trust"] if status == 201 else got["error"]["message"]

    def login(self, trust, name="bob", status=201):
        """Log in with the scope of a trust."""
        return self.cloud.ask("POST", "/v3/auth/tokens", {"auth": {
            "identity": {"methods": ["password"], "password": {"user": {"id": self.ids[name], "password": "secret"}}},
            "scope": {"OS-TRUST:trust": {"id": trust["id"]}}}}, status)

    def by(self, trust, name="bob"):
        """A client with a token for the trust."""
        return self.cloud.ask.as_(self.login(trust, name).token)

    def context(self, ask):
        return self.cloud.identity.validate(ask.token)


@pytest.fixture
def world(cloud):
    return World(cloud)


@pytest.fixture
def small_world(small):
    return World(small)


def test_a_trust_is_made_listed_shown_and_removed(world):
    trust = world.trust(expires_at="2126-01-01T00:00:00.000000Z", name="for Heat")
    assert (trust["trustor_user_id"], trust["trustee_user_id"]) == (world.ids["ann"], world.ids["bob"])
    assert [role["name"] for role in trust["roles"]] == ["member"] and trust["impersonation"] is True
    assert (trust["expires_at"], trust["name"]) == ("2126-01-01T00:00:00.000000Z", "for Heat")
    assert (trust["deleted_at"], trust["remaining_uses"], trust["redelegation_count"]) == (None, None, 0)
    path = f"/v3/OS-TRUST/trusts/{trust['id']}"
    assert trust["links"]["self"].endswith(path) and trust["roles_links"]["self"].endswith(f"{path}/roles")
    role = trust["roles"][0]["id"]
    for ask in (world.ann, world.bob, world.cloud.admin):
        assert ask("GET", path, None, 200)["trust"] == trust
        assert [one["id"] for one in ask("GET", f"{path}/roles", None, 200)["roles"]] == [role]
        assert ask("GET", f"{path}/roles/{role}", None, 200)["role"]["name"] == "member"
        assert ask("GET", f"{path}/roles/{ABSENT}", None, 404)
    for ask, query in ((world.ann, f"?trustor_user_id={world.ids['ann']}"), (world.cloud.admin, ""),
                       (world.bob, f"?trustee_user_id={world.ids['bob']}")):
        (listed,) = ask("GET", f"/v3/OS-TRUST/trusts{query}", None, 200)["trusts"]
        assert listed["id"] == trust["id"] and "roles" not in listed
    world.bob("DELETE", path, None, 403)
    world.ann("DELETE", path, None, 204)
    world.ann("GET", path, None, 404)


def test_others_neither_list_nor_see_a_trust(small_world):
    trust, cal = small_world.trust(), small_world.cloud.ask.login("cal", "secret", scope="unscoped").token
    ask = small_world.cloud.ask.as_(cal)
    for path in ("", f"?trustor_user_id={small_world.ids['ann']}", f"/{trust['id']}", f"/{trust['id']}/roles"):
        ask("GET", f"/v3/OS-TRUST/trusts{path}", None, 403)
    ask("DELETE", f"/v3/OS-TRUST/trusts/{trust['id']}", None, 403)


@pytest.mark.parametrize("impersonation, name", [(True, "ann"), (False, "bob")])
def test_a_token_for_a_trust_has_the_roles_of_the_trust(world, impersonation, name):
    trust = world.trust(impersonation=impersonation)
    got = world.login(trust)
    token = got["token"]
    assert token["user"]["name"] == name and token["project"]["id"] == world.project
    assert {role["name"] for role in token["roles"]} == {"member", "reader"} and token["catalog"]
    assert token["OS-TRUST:trust"] == {
        "id": trust["id"], "impersonation": impersonation, "trustor_user": {"id": world.ids["ann"]},
        "trustee_user": {"id": world.ids["bob"]}}
    context = world.cloud.identity.validate(got.token)
    assert (context.user_name, context.project_id, context.roles) == (name, world.project, {"member", "reader"})
    shown = world.cloud.admin("GET", "/v3/auth/tokens", None, 200, x_subject_token=got.token)
    assert shown["token"]["OS-TRUST:trust"] == token["OS-TRUST:trust"]


def test_a_token_of_the_trustee_gets_one_for_the_trust(small_world):
    trust = small_world.trust()
    got = small_world.cloud.ask("POST", "/v3/auth/tokens", {"auth": {
        "identity": {"methods": ["token"], "token": {"id": small_world.bob.token}},
        "scope": {"OS-TRUST:trust": {"id": trust["id"]}}}}, 201)
    assert got["token"]["user"]["name"] == "ann"
    # It ends with the token by which it was got.
    small_world.bob("DELETE", "/v3/auth/tokens", None, 204, x_subject_token=small_world.bob.token)
    assert small_world.cloud.identity.validate(got.token) is None


def test_only_the_trustee_gets_a_token(small_world):
    trust = small_world.trust()
    assert "not a trustee" in small_world.login(trust, "cal", 403)["error"]["message"]
    small_world.login(trust, "ann", 403)
    small_world.login({"id": ABSENT}, status=401)


@pytest.mark.parametrize("fields, status, words", [
    ({"roles": []}, 403, "At least one role"), ({"roles": [{"name": "admin"}]}, 404, "Could not find role"),
    ({"roles": [{"name": "nothing"}]}, 404, "Could not find role"), ({"roles": [{}]}, 400, "roles"),
    ({"roles": [{"id": "a", "name": "b"}]}, 400, "roles"), ({"project_id": ABSENT}, 404, "Could not find project"),
    ({"trustee": ABSENT}, 404, "Could not find user"), ({"trustor": "bob"}, 403, "should match the trustor"),
    ({"impersonation": None}, 400, "impersonation"), ({"impersonation": "yes"}, 400, "impersonation"),
    ({"remaining_uses": 0}, 400, "remaining_uses"), ({"remaining_uses": -1}, 400, "remaining_uses"),
    ({"expires_at": "2001-01-01T00:00:00Z"}, 400, "expires_at"), ({"expires_at": "soon"}, 400, "expires_at"),
    ({"redelegation_count": -1}, 400, "redelegation_count"),
    ({"allow_redelegation": True, "redelegation_count": 4}, 403, "greater than allowed"),
    ({"allow_redelegation": True, "remaining_uses": 1}, 400, "remaining_uses"),
    ({"redelegated_trust_id": ABSENT}, 403, "redelegated_trust_id")])
def test_what_is_no_trust_is_refused(small_world, fields, status, words):
    assert words in small_world.trust(status=status, **fields)
    assert small_world.cloud.admin("GET", "/v3/OS-TRUST/trusts")["trusts"] == []


def test_a_trust_without_a_project_is_made_and_gives_no_token(small_world):
    trust = small_world.trust(project_id=None, roles=[])
    small_world.login(trust, status=401)


def test_a_user_has_so_many_trusts(small_world, monkeypatch):
    monkeypatch.setattr(trusts, "MOST", 1)
    small_world.trust()
    assert "may have no more" in small_world.trust(status=403)


def test_the_same_trust_with_the_same_end_is_a_conflict(small_world):
    end = {"expires_at": "2126-01-01T00:00:00Z"}
    small_world.trust(**end)
    assert "already" in small_world.trust(status=409, **end)
    assert small_world.trust()["id"] != small_world.trust()["id"]


def test_uses_are_counted(world):
    trust = world.trust(remaining_uses=2)
    path = f"/v3/OS-TRUST/trusts/{trust['id']}"
    first = world.by(trust)
    assert world.ann("GET", path)["trust"]["remaining_uses"] == 1
    last = world.by(trust)
    world.login(trust, status=401)
    world.ann("GET", path, None, 404)
    assert world.context(first) and world.context(last)  # what was got is good until it ends
    world.login(trust, "cal", 401)


def test_a_refused_login_is_no_use(small_world):
    trust = small_world.trust(remaining_uses=1)
    small_world.login(trust, "cal", 403)
    small_world.login(trust)


def test_what_a_token_for_a_trust_may_not_do(small_world):
    by, ann = small_world.by(small_world.trust()), small_world.ids["ann"]
    for scope in ({}, {"scope": {"project": {"id": small_world.project}}}, {"scope": "unscoped"}):
        by("POST", "/v3/auth/tokens", {"auth": {
            "identity": {"methods": ["token"], "token": {"id": by.token}}, **scope}}, 403)
    made = small_world.ann("POST", f"/v3/users/{ann}/application_credentials",
                           {"application_credential": {"name": "a"}}, 201)["application_credential"]
    every = f"/v3/users/{ann}/application_credentials"
    by("POST", every, {"application_credential": {"name": "b"}}, 403)
    by("GET", every, None, 403)
    by("GET", f"{every}/{made['id']}", None, 403)
    by("DELETE", f"{every}/{made['id']}", None, 403)
    by("GET", "/v3/users", None, 403)


def test_a_token_of_an_application_credential_manages_no_trusts(small_world):
    ann = small_world.ids["ann"]
    made = small_world.ann("POST", f"/v3/users/{ann}/application_credentials",
                           {"application_credential": {"name": "a", "unrestricted": True}}, 201)[
                               "application_credential"]
    got = small_world.cloud.ask("POST", "/v3/auth/tokens", {"auth": {"identity": {
        "methods": ["application_credential"], "application_credential": {
            "id": made["id"], "secret": made["secret"]}}}}, 201)
    by = small_world.cloud.ask.as_(got.token)
    small_world.trust(by, 403)
    by("GET", f"/v3/OS-TRUST/trusts?trustor_user_id={ann}", None, 403)


def test_a_trust_is_passed_on_three_times_at_most(world):
    ask, trust = world.ann, None
    for count, trustee in ((3, "bob"), (2, "cal"), (1, "bob"), (0, "cal")):
        made = world.trust(ask, trustee=trustee, allow_redelegation=count > 0)
        assert (made["redelegation_count"], made["redelegated_trust_id"]) == (count, trust and trust["id"])
        trust, ask = made, world.by(made, trustee)
        assert world.context(ask).user_name == "ann"
    assert "Remaining redelegation depth of 0" in world.trust(ask, 403, trustee="bob")
    # With the first of them all go.
    first = world.cloud.admin("GET", f"/v3/OS-TRUST/trusts?trustee_user_id={world.ids['bob']}")["trusts"]
    first = next(one for one in first if one["redelegated_trust_id"] is None)
    world.ann("DELETE", f"/v3/OS-TRUST/trusts/{first['id']}", None, 204)
    assert world.context(ask) is None and world.cloud.admin("GET", "/v3/OS-TRUST/trusts")["trusts"] == []


@pytest.mark.parametrize("fields, status, words", [
    ({"roles": [{"name": "admin"}]}, 404, "role"), ({"roles": [{"name": "member"}]}, 403, "not in redelegated"),
    ({"remaining_uses": 1}, 403, "remaining_uses"), ({"expires_at": "2127-01-01T00:00:00Z"}, 403, "expiration"),
    ({"allow_redelegation": True, "redelegation_count": 2}, 403, "redelegation_count"),
    ({"impersonation": True, "trustor": "bob"}, 403, "Impersonation is not allowed")])
def test_who_passes_a_trust_on_gives_no_more_than_it_has(small_world, fields, status, words):
    impersonation = "trustor" not in fields
    given = small_world.trust(roles=[{"name": "reader"}], allow_redelegation=True, redelegation_count=2,
                              expires_at="2126-01-01T00:00:00Z", impersonation=impersonation)
    by = small_world.by(given)
    assert words in small_world.trust(by, status, trustee="cal", **{"roles": [{"name": "reader"}], **fields})
    trustor = {"trustor": "ann" if impersonation else "bob", "impersonation": impersonation}
    made = small_world.trust(by, trustee="cal", roles=[{"name": "reader"}], **trustor)
    assert made["expires_at"] == given["expires_at"]
    token = small_world.login(made, "cal")["token"]
    assert {role["name"] for role in token["roles"]} == {"reader"}
    assert token["user"]["name"] == ("ann" if impersonation else "cal")


def _delete_trust(world, trust):
    world.ann("DELETE", f"/v3/OS-TRUST/trusts/{trust['id']}", None, 204)


def _take_role(world, _trust):
    role = world.cloud.role("member")
    world.cloud.admin("DELETE", f"/v3/projects/{world.project}/users/{world.ids['ann']}/roles/{role}", None, 204)


def _delete(noun, name):
    def gone(world, _trust):
        id = world.project if noun == "projects" else world.ids[name]
        world.cloud.admin("DELETE", f"/v3/{noun}/{id}", None, 204)
    return gone


def _change(noun, name, **fields):
    def changed(world, _trust):
        id = world.project if noun == "projects" else world.ids[name]
        world.cloud.admin("PATCH", f"/v3/{noun}/{id}", {noun[:-1]: fields}, 200)
    return changed


ENDS = {"the trust is removed": _delete_trust, "the trustor loses the role": _take_role,
        "the trustor is removed": _delete("users", "ann"), "the trustee is removed": _delete("users", "bob"),
        "the project is removed": _delete("projects", ""),
        "the trustor is disabled": _change("users", "ann", enabled=False),
        "the trustee is disabled": _change("users", "bob", enabled=False),
        "the project is disabled": _change("projects", "", enabled=False),
        "the trustor's password changes": _change("users", "ann", password="other"),
        "the trustee's password changes": _change("users", "bob", password="other")}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("impersonation", [True, False])
def test_a_token_for_a_trust_ends(small_world, end, impersonation):
    trust = small_world.trust(impersonation=impersonation)
    by = small_world.by(trust)
    assert small_world.context(by)
    end(small_world, trust)
    assert small_world.context(by) is None


@pytest.mark.parametrize("end", [name for name in ENDS if "password" not in name])
def test_no_token_is_got_by_a_trust_that_ended(small_world, end):
    trust = small_world.trust()
    ENDS[end](small_world, trust)
    got = small_world.login(trust, status=None)
    assert got.status in (401, 403), got.body


def test_a_trust_goes_with_its_users_and_its_project(world):
    world.trust()
    world.cloud.admin("DELETE", f"/v3/users/{world.ids['bob']}", None, 204)
    assert world.cloud.admin("GET", "/v3/OS-TRUST/trusts")["trusts"] == []


def test_who_passed_a_trust_on_and_is_disabled_ends_it(small_world):
    given = small_world.trust(allow_redelegation=True)
    by = small_world.by(small_world.trust(small_world.by(given), trustee="cal"), "cal")
    assert small_world.context(by)
    _change("users", "bob", enabled=False)(small_world, given)
    assert small_world.context(by) is None


def test_a_trust_ends_with_its_time(small):
    moment = {"now": time.time()}
    small.identity.tokens.clock = lambda: moment["now"]
    world = World(small)
    trust = world.trust(expires_at=f"{utc_now(3600.0)}Z")
    got = world.login(trust)
    assert got["token"]["expires_at"] == trust["expires_at"]
    by = world.cloud.ask.as_(got.token)
    moment["now"] += 7200.0
    assert world.context(by) is None
    world.login(trust, status=401)
    assert world.cloud.admin("GET", f"/v3/OS-TRUST/trusts/{trust['id']}", None, 404)


def test_trusts_that_ended_keep_no_place(small, monkeypatch):
    monkeypatch.setattr(trusts, "MOST", 2)
    moment = {"now": time.time()}
    small.identity.tokens.clock = lambda: moment["now"]
    world = World(small)
    used = world.trust(remaining_uses=1)
    world.login(used)
    world.trust(expires_at=f"{utc_now(3600.0)}Z")
    world.trust(status=403)
    moment["now"] += 7200.0
    world.ann = small.ask.as_(small.ask.login("ann", "secret", "demo").token)
    world.trust()  # in the place of the one that is over
    world.trust(status=403)
    world.ann("GET", f"/v3/OS-TRUST/trusts/{used['id']}", None, 404)
    world.ann("DELETE", f"/v3/OS-TRUST/trusts/{used['id']}", None, 204)
    world.trust()
