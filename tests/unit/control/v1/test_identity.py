# SPDX-License-Identifier: GPL-3.0-or-later
"""Domains, projects, users, groups, roles, role assignments and application credentials by /v1."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from magnetar_control.api.v1.identity import identity_driver
from magnetar_control.services.identity.keystone import Keystone
from tests.support.control.cloud import Caller, Cloud
from tests.support.control.servers import WEB, ensure, verbs

CASES = Path(__file__).parents[3] / "cases" / "v1" / "identity.yml"
KINDS = ("domain", "project", "user", "group", "role", "role_assignment", "application_credential")


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with Cloud(hosts=1) as made:
        yield made


@pytest.fixture(scope="module")
def admin(cloud: Cloud) -> Caller:
    return cloud.admin


@pytest.fixture(scope="module")
def ids(admin: Caller) -> dict[str, str]:
    """The ids of what the cases name."""
    made = {}
    for domain in ("shop", "other"):
        for path in (f"domain/{domain}", f"project/{domain}:till", f"user/{domain}:ann"):
            made[path] = str(done(admin, path)["id"])
    for path, want in (("project/shop:desk", {}), ("project/shop:drawer", {"parent": "till"}), ("user/shop:bea", {}),
                       ("group/shop:staff", {"users": ["ann"]})):
        made[path] = str(done(admin, path, want)["id"])
    return {"till": made["project/shop:till"], "ann": made["user/shop:ann"], **made}


def done(caller: Caller, path: str, want: Any = None, **query: Any) -> dict[str, Any]:
    """The resource after an ensure that changes something."""
    reply = ensure(caller, path, want or {}, **query)
    assert reply.status == 200 and reply.json["changed"], reply
    return dict(reply.json["resource"])


def thrice(caller: Caller, path: str, want: Any) -> dict[str, Any]:
    """Ensure as a dry run, in truth and again: the first says what the second changes, and the third changes nothing.
    The resource."""
    planned, changed, again = (ensure(caller, path, want, dry_run=dry) for dry in (True, False, False))
    assert planned.status == changed.status == again.status == 200, (planned, changed, again)
    assert planned.json["changed"] and changed.json["changed"] and not again.json["changed"], (planned, changed, again)
    assert planned.json["diff"] == changed.json["diff"] and verbs(planned) == verbs(changed)
    assert again.json["diff"] == []
    return dict(changed.json["resource"])


def everything(admin: Caller) -> list[Any]:
    return [admin.get(f"/v1/{kind}").json for kind in KINDS]


@pytest.mark.parametrize("case", yaml.safe_load(CASES.read_text()),
                         ids=lambda case: f"{case['path']} {case.get('body')}")
def test_refusals(admin: Caller, ids: dict[str, str], case: dict[str, Any]) -> None:
    before = everything(admin)
    for dry in (True, False):
        query = f"?wait=20&dry_run={str(dry).lower()}"
        path = "/v1/" + case["path"].format_map(ids) + query
        reply = admin.call(case.get("method", "PUT"), path, case.get("body", {}))
        if dry and case.get("dry") is False:
            assert reply.status == 200 and reply.json["warnings"], reply
            continue
        assert reply.status == case.get("status", 400), reply
        error = reply.json["error"]
        assert error["details"].get("field") == case.get("field"), reply
        assert case.get("says", "") in error["message"], reply
    assert everything(admin) == before


def test_domains(admin: Caller) -> None:
    made = thrice(admin, "domain/hall", {"description": "one"})
    assert (made["name"], made["description"], made["is_enabled"]) == ("hall", "one", True)
    assert thrice(admin, "domain/hall", {"is_enabled": False})["is_enabled"] is False
    assert thrice(admin, f"domain/{made['id']}", {"name": "court"})["name"] == "court"
    assert done(admin, "domain/court", {"is_enabled": True})["id"] == made["id"]
    for path in (f"domain/{made['id']}", "domain/court"):
        planned = admin.delete(f"/v1/{path}?wait=20&dry_run=true")
        assert planned.json["changed"] and planned.json["resource"]["name"] == "court"
    assert admin.delete("/v1/domain/court?wait=20").json["changed"]  # although it is enabled
    assert not admin.delete("/v1/domain/court?wait=20").json["changed"]


def test_projects(admin: Caller, ids: dict[str, str]) -> None:
    want = {"description": "x", "tags": ["b", "a", "b"], "properties": {"colour": "red"}, "is_enabled": True}
    made = thrice(admin, "project/web", want)
    assert made["tags"] == ["a", "b"] and made["properties"] == {"colour": "red"} and made["parent"] is None
    assert (made["domain"], made["domain_id"], made["parent_id"]) == ("Default", "default", "default")
    assert not ensure(admin, "project/web", {**want, "name": "web", "domain": "default"}).json["changed"]
    for key in ("Default:web", "default:web", made["id"], f"Default:{made['id']}"):
        assert not ensure(admin, f"project/{key}", want).json["changed"], key
    shown = admin.get(f"/identity/v3/projects/{made['id']}").json["project"]
    assert shown["colour"] == "red" and shown["tags"] == ["a", "b"]
    changed = thrice(admin, "project/web", {"properties": {"size": "2"}, "tags": ["c"], "is_enabled": False})
    assert changed["properties"] == {"size": "2"} and changed["tags"] == ["c"]
    assert "colour" not in admin.get(f"/identity/v3/projects/{made['id']}").json["project"]
    assert done(admin, "project/web", {"tags": ["d"]}, merge="tags")["tags"] == ["c", "d"]
    below = thrice(admin, "project/shop:shelf", {"parent": "till"})
    assert (below["parent"], below["parent_id"], below["domain"]) == ("till", ids["till"], "shop")
    for parent in ("till", ids["till"]):
        assert not ensure(admin, "project/shop:shelf", {"parent": parent}).json["changed"]
    fixed = ensure(admin, "project/shop:shelf", {"parent": "desk"})
    assert fixed.status == 409 and "parent cannot change from 'till' to 'desk'" in str(fixed.json)
    fixed = ensure(admin, f"project/{below['id']}", {"domain": "other"})
    assert fixed.status == 409 and "domain cannot change" in str(fixed.json)
    assert not ensure(admin, f"project/{below['id']}", {"domain": "other"}, on_immutable="ignore").json["changed"]
    odd = "a:b%/é"
    assert thrice(admin, f"project/shop:{quote(quote(odd, safe=''), safe='')}", {})["name"] == odd
    for key in ("web", "shop:shelf", f"shop:{quote(quote(odd, safe=''), safe='')}"):
        assert admin.delete(f"/v1/project/{key}?wait=20").json["changed"]
        assert not admin.delete(f"/v1/project/{key}?wait=20").json["changed"]
    assert not admin.delete("/v1/project/none:p?wait=20").json["changed"]


def test_an_immutable_project_stays(admin: Caller) -> None:
    id = done(admin, "project/kept")["id"]
    admin.call("PATCH", f"/identity/v3/projects/{id}", {"project": {"options": {"immutable": True}}})
    assert admin.get("/v1/project/kept").json["options"] == {"immutable": True}
    for dry in ("true", "false"):
        refused = admin.delete(f"/v1/project/kept?wait=20&dry_run={dry}")
        assert refused.status == 403 and "is immutable" in str(refused.json)
    assert ensure(admin, "project/kept", {"description": "x"}).status == 403


def test_a_project_with_servers_is_removed_with_a_warning(cloud: Cloud, admin: Caller) -> None:
    """As by the Identity API, which removes it too."""
    ann = cloud.caller("eva", "leaving", "admin")
    ann.image()
    assert ensure(ann, "server/web1", WEB).status == 200
    for dry in ("true", "false"):
        gone = admin.delete(f"/v1/project/leaving?wait=20&dry_run={dry}")
        assert gone.json["changed"] and "still has 1 server(s)" in gone.json["warnings"][0], gone
    (left,) = admin.get("/v1/server?all_projects=true").json["servers"]
    assert left["name"] == "web1"


def test_users(cloud: Cloud, admin: Caller, ids: dict[str, str]) -> None:
    want = {"email": "carl@example.com", "password": "first", "default_project": "admin"}
    made = thrice(admin, "user/carl", want)
    assert (made["email"], made["default_project"], made["is_enabled"]) == ("carl@example.com", "admin", True)
    assert "password" not in str(made) and "first" not in str(made)
    assert done(admin, "role_assignment/role=member:user=carl:project=admin")["user"] == "carl"
    cloud.login("carl", "first", "admin")
    other = {"password": "second"}
    assert not ensure(admin, "user/carl", other).json["changed"]  # update_password is on_create
    changed = ensure(admin, "user/carl", {**other, "update_password": "always"}, dry_run=True)
    assert changed.json["diff"] == [{"path": "password", "old": None, "new": "(hidden)"}]
    assert thrice(admin, "user/carl", {**other, "update_password": "always"})["id"] == made["id"]
    cloud.login("carl", "second", "admin")
    assert thrice(admin, "user/carl", {"default_project": "none"})["default_project"] is None
    assert thrice(admin, "user/carl", {"default_project": ids["till"]})["default_project"] == "till"
    assert thrice(admin, f"user/{made['id']}", {"name": "karl", "is_enabled": False, "email": ""})["name"] == "karl"
    assert admin.delete("/v1/user/Default:karl?wait=20").json["changed"]
    assert not admin.delete(f"/v1/user/{made['id']}?wait=20").json["changed"]


def test_the_own_password_changes_with_a_warning(cloud: Cloud, admin: Caller) -> None:
    boss = cloud.caller("boss", "admin", "admin")
    changed = ensure(boss, "user/boss", {"password": "next", "update_password": "always"}, dry_run=True)
    assert "Put the new password into clouds.yaml" in changed.json["warnings"][0]


def test_groups(cloud: Cloud, admin: Caller, ids: dict[str, str]) -> None:
    made = thrice(admin, "group/shop:night", {"users": ["bea", "ann"], "description": "x"})
    assert (made["users"], made["domain"]) == (["ann", "bea"], "shop")
    for users in (["ann", "bea"], [ids["ann"], "bea", "ann"]):
        assert not ensure(admin, "group/shop:night", {"users": users}).json["changed"], users
    stranger = ids["user/other:ann"]
    assert thrice(admin, "group/shop:night", {"users": ["ann", stranger]})["users"] == sorted(["ann", stranger])
    assert done(admin, "group/shop:night", {"users": ["bea"]}, merge="users")["users"] == sorted(
        ["ann", "bea", stranger])
    assert thrice(admin, "group/shop:night", {"users": []})["users"] == []
    assert admin.delete("/v1/group/shop:night?wait=20").json["changed"]
    boss = cloud.caller("chief", "admin", "reader")
    done(admin, "group/bosses", {"users": ["chief"]})
    done(admin, "role_assignment/role=admin:group=bosses:project=admin")
    boss = cloud.caller("chief", "admin", "reader")
    for refused in (ensure(boss, "group/bosses", {"users": []}), boss.delete("/v1/group/bosses?wait=20"),
                    boss.delete("/v1/role_assignment/role=admin:group=bosses:project=admin?wait=20")):
        assert refused.status == 409 and refused.json["error"]["code"] == "own-login", refused
    assert boss.delete("/v1/role_assignment/role=reader:user=chief:project=admin?wait=20").json["changed"]
    assert admin.delete("/v1/group/bosses?wait=20").json["changed"]


def test_roles(admin: Caller) -> None:
    made = thrice(admin, "role/auditor", {"description": "reads"})
    assert (made["name"], made["domain"]) == ("auditor", None)
    assert thrice(admin, f"role/{made['id']}", {"name": "inspector"})["description"] == "reads"
    assert not ensure(admin, "role/inspector", {}).json["changed"]
    theirs = thrice(admin, "role/local", {"domain": "Default"})
    assert theirs["domain_id"] == "default"
    for name in ("inspector", "local"):
        assert admin.delete(f"/v1/role/{name}?wait=20").json["changed"]
        assert not admin.delete(f"/v1/role/{name}?wait=20").json["changed"]


def test_role_assignments(admin: Caller, ids: dict[str, str]) -> None:
    key = "role=member:user=ann:user_domain=shop:project=till:project_domain=shop"
    made = thrice(admin, f"role_assignment/{key}", {})
    assert made["name"] == "role=member:user=ann:project=till" and made["user_id"] == ids["ann"]
    assert (made["user_domain"], made["project_domain"], made["group"], made["system"]) == ("shop", "shop", None, None)
    for again in (f"role=member:user={ids['ann']}:project={ids['till']}", made["id"]):
        assert not ensure(admin, f"role_assignment/{again}", {}).json["changed"], again
    assert admin.get(f"/v1/role_assignment/{made['id']}").json == made
    for target in ("domain=shop", "system=all"):
        thrice(admin, f"role_assignment/role=reader:group=staff:{target}", {})
    for query, names in (
            ("project=till&project_domain=shop", {"member"}), (f"user={ids['ann']}", {"member"}), ("user=none", set()),
            (f"project_id={ids['till']}", {"member"}), ("group=staff&system=all", {"reader"}),
            ("user=admin&group=staff", set()), ("domain=shop", {"reader"}), ("role=member&group=staff", set())):
        listed = admin.get(f"/v1/role_assignment?{query}")
        assert {one["role"] for one in listed.json["role_assignments"]} == names, (query, listed)
    page = admin.get("/v1/role_assignment?limit=1&sort=-name&fields=role,name").json["role_assignments"]
    assert len(page) == 1 and set(page[0]) == {"role", "name"}
    for gone in (key, "role=reader:group=staff:domain=shop", "role=reader:group=staff:system=all"):
        assert admin.delete(f"/v1/role_assignment/{gone}?wait=20").json["changed"], gone
        assert not admin.delete(f"/v1/role_assignment/{gone}?wait=20").json["changed"], gone
    assert not admin.delete("/v1/role_assignment/role=none:user=ann:project=none?wait=20").json["changed"]


def test_one_assignment_for_many_at_once(admin: Caller, ids: dict[str, str]) -> None:
    key = f"role_assignment/role=manager:user={ids['ann']}:project={ids['till']}"
    with ThreadPoolExecutor(8) as pool:
        replies = [*pool.map(lambda _at: ensure(admin, key, {}), range(8))]
    assert [reply.status for reply in replies] == [200] * 8
    assert sum(reply.json["changed"] for reply in replies) == 1
    assert admin.delete(f"/v1/{key}?wait=20").json["changed"]


def test_application_credentials(cloud: Cloud, admin: Caller) -> None:
    ann, want = cloud.caller("amy", "red"), {"description": "nightly", "roles": ["reader"], "expires_at": "2036-01-31"}
    planned = ensure(ann, "application_credential/backup", want, dry_run=True).json
    made = ensure(ann, "application_credential/backup", want).json
    assert planned["diff"] == made["diff"] and planned["resource"]["secret"] is None
    credential = made["resource"]
    assert credential["roles"] == ["reader"] and credential["expires_at"] == "2036-01-31T00:00:00Z"
    assert (credential["user"], credential["project"]) == ("amy", "red") and len(credential["secret"]) > 30
    for again in (want, {**want, "secret": credential["secret"]}, {"roles": [{"name": "reader", "id": None}]}):
        reply = ensure(ann, "application_credential/backup", again)
        assert reply.status == 200 and not reply.json["changed"] and reply.json["resource"]["secret"] is None, reply
    assert ann.get("/v1/application_credential/backup").json["secret"] is None
    (listed,) = ann.get("/v1/application_credential").json["application_credentials"]
    assert listed["secret"] is None
    for other in ({"roles": ["member"]}, {"secret": "mine"}, {"expires_at": "2037-01-01"}, {"unrestricted": True}):
        refused = ensure(ann, "application_credential/backup", other)
        assert refused.status == 409 and refused.json["error"]["details"]["fields"] == [*other], refused
        assert "mine" not in str(refused.json)
    anew = ensure(ann, "application_credential/backup", {"secret": "mine"}, on_immutable="recreate").json
    assert anew["changed"] and anew["resource"]["secret"] == "mine" and anew["resource"]["id"] != credential["id"]
    login = {"auth": {"identity": {"methods": ["application_credential"], "application_credential": {
        "id": anew["resource"]["id"], "secret": "mine"}}}}
    token = Caller(cloud.port).post("/identity/v3/auth/tokens", login).headers["x-subject-token"]
    program = Caller(cloud.port, token)
    for refused in (ensure(program, "application_credential/own", {}),
                    program.delete("/v1/application_credential/backup?wait=20")):
        assert refused.status == 403 and "restricted" in str(refused.json)
    id = anew["resource"]["id"]
    assert admin.get(f"/v1/application_credential?user_id={ann.user_id}").json["application_credentials"][0]["id"] == id
    stranger = cloud.caller("eve", "blue")
    assert stranger.get(f"/v1/application_credential?user_id={ann.user_id}").status == 404
    assert stranger.get(f"/v1/application_credential/{id}").status == 404
    assert not stranger.delete(f"/v1/application_credential/{id}?wait=20").json["changed"]
    assert admin.delete(f"/v1/application_credential/{id}?wait=20").json["changed"]
    assert ann.get("/v1/application_credential").json["application_credentials"] == []


def test_the_roles_of_the_login_are_the_default(cloud: Cloud) -> None:
    ann = cloud.caller("amy", "red")
    planned, made = (ensure(ann, "application_credential/all", {}, dry_run=dry).json for dry in (True, False))
    assert planned["resource"]["roles"] == made["resource"]["roles"] == ["member", "reader"]
    assert ann.delete("/v1/application_credential/all?wait=20").json["changed"]


def test_the_secret_is_for_its_owner_only(cloud: Cloud) -> None:
    ann, colleague = cloud.caller("amy", "red"), cloud.caller("ben", "red")
    made = ensure(ann, "application_credential/own", {}, request_id="req-0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10")
    assert made.json["resource"]["secret"]
    assert made.json["resource"]["secret"] not in str(colleague.get("/v1/operations").json)
    assert ann.delete("/v1/application_credential/own?wait=20").json["changed"]


def test_lists(admin: Caller, ids: dict[str, str]) -> None:
    def names(path: str, plural: str) -> list[str]:
        return [one["name"] for one in admin.get(f"/v1/{path}").json[plural]]

    assert names("project?domain=shop", "projects") == ["desk", "drawer", "till"]
    assert names("project?domain=none", "projects") == []
    assert names(f"project?domain_id={ids['domain/shop']}&limit=1", "projects") == ["desk"]
    assert names("project?domain=shop&limit=2&marker=desk", "projects") == ["drawer", "till"]
    assert names("project?domain=shop&sort=-name", "projects") == ["till", "drawer", "desk"]
    assert names("project?parent=till", "projects") == ["drawer"]
    assert names("user?name=ann", "users") == ["ann", "ann"]
    assert names(f"user?id={ids['ann']}", "users") == ["ann"]
    assert names("group?domain=shop", "groups") == ["staff"]
    assert names("role?name=member", "roles") == ["member"]
    assert names("domain?is_enabled=true&name=shop", "domains") == ["shop"]


def test_others_see_their_own(cloud: Cloud, admin: Caller) -> None:
    ann = cloud.caller("amy", "red")
    for kind, plural, seen in (("project", "projects", ["red"]), ("user", "users", ["amy"]), ("group", "groups", []),
                               ("domain", "domains", ["Default"])):
        assert [one["name"] for one in ann.get(f"/v1/{kind}").json[plural]] == seen, kind
    for path in ("project/admin", "user/admin", "domain/shop", "group/shop:staff"):
        assert ann.get(f"/v1/{path}").status == 404, path
    for path in ("role", "role/member", "role_assignment", "role_assignment/role=member:user=amy:project=red"):
        assert ann.get(f"/v1/{path}").status == 403, path
    for path in ("project/red", "user/amy", "group/g", "role/r", "domain/d",
                 "role_assignment/role=admin:user=amy:project=red"):
        for refused in (ensure(ann, path, {}), ann.delete(f"/v1/{path}?wait=20")):
            assert refused.status == 403, (path, refused)


def test_a_keystone_of_its_own_is_named(cloud: Cloud, admin: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity_driver, "EmbeddedIdentity", Keystone)
    for kind, module in zip(KINDS, ("identity_domain", "project", "identity_user", "identity_group", "identity_role",
                                    "role_assignment", "application_credential"), strict=True):
        key = "role=member:user=amy:project=red" if kind == "role_assignment" else "x"
        for refused in (admin.get(f"/v1/{kind}"), ensure(admin, f"{kind}/{key}", {}),
                        admin.delete(f"/v1/{kind}/{key}?wait=20")):
            assert refused.status == 501 and refused.json["error"]["code"] == "not-supported", refused
            assert f"openstack.cloud.{module}" in refused.json["error"]["message"]
