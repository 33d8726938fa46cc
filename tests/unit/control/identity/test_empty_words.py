# SPDX-License-Identifier: GPL-3.0-or-later
"""What is accepted acts: options, filters and fields of identity v3, and what is refused because nothing acts on it."""

import contextlib

import pytest


def refused(answer, *words):
    assert answer.status == 400, answer.body
    for word in words:
        assert word in answer.body["error"]["message"], answer.body


@pytest.mark.parametrize("noun", ["project", "role", "domain"])
def test_what_is_immutable_neither_changes_nor_goes(small, noun):
    ask = small.admin
    made = ask("POST", f"/v3/{noun}s", {noun: {"name": "kept", "options": {"immutable": True}}}, 201)[noun]
    one = f"/v3/{noun}s/{made['id']}"
    assert made["options"] == {"immutable": True}
    ask("PATCH", one, {noun: {"description": "x"}}, 403)
    ask("PATCH", one, {noun: {"description": "x", "options": {"immutable": False}}}, 403)
    ask("DELETE", one, None, 403)
    assert ask("GET", one, None, 200)[noun] == made
    assert ask("PATCH", one, {noun: {"options": {"immutable": None}}}, 200)[noun]["options"] == {}
    ask("PATCH", one, {noun: {"description": "x", **({"enabled": False} if noun == "domain" else {})}}, 200)
    ask("DELETE", one, None, 204)


def test_a_domain_keeps_its_tags(small):
    made = small.admin("POST", "/v3/domains", {"domain": {"name": "east", "tags": ["a"]}}, 201)["domain"]
    assert made["tags"] == ["a"]
    assert [one["name"] for one in small.admin("GET", "/v3/domains?tags=a")["domains"]] == ["east"]


def test_a_locked_password_is_changed_by_administrators_only(small):
    user = small.user(project=small.project())
    one, body = f"/v3/users/{user}", {"user": {"original_password": "secret", "password": "other"}}
    ann = small.ask.as_(small.ask.login("ann", "secret", "demo").token)
    small.admin("PATCH", one, {"user": {"options": {"lock_password": True}}}, 200)
    assert "lock_password" in ann("POST", f"{one}/password", body, 403)["error"]["message"]
    options = small.admin("PATCH", one, {"user": {"options": {"ignore_password_expiry": True}}}, 200)["user"]["options"]
    assert options == {"lock_password": True, "ignore_password_expiry": True}
    small.admin("PATCH", one, {"user": {"options": {"lock_password": None}}}, 200)
    ann("POST", f"{one}/password", body, 204)


@pytest.mark.parametrize("option, value", [
    ("multi_factor_auth_enabled", True), ("multi_factor_auth_rules", [["password", "totp"]]),
    ("ignore_lockout_failure_attempts", True), ("ignore_lockout_failure_attempts", 0), ("colour", "red"),
    ("lock_password", "yes")])
def test_options_that_nothing_acts_on_are_refused(small, option, value):
    refused(small.admin("POST", "/v3/users", {"user": {"name": "bob", "options": {option: value}}}), option)
    refused(small.admin("POST", "/v3/projects", {"project": {"name": "red", "options": {option: value}}}), option)
    assert small.admin("GET", "/v3/users?name=bob")["users"] == []


def test_options_that_say_what_is_so_anyway(small):
    options = {"multi_factor_auth_enabled": False, "multi_factor_auth_rules": [],
               "ignore_lockout_failure_attempts": False, "ignore_change_password_upon_first_use": True}
    small.admin("POST", "/v3/users", {"user": {"name": "bob", "options": options, "federated": []}}, 201)


@pytest.mark.parametrize("noun, fields, name", [
    ("project", {"is_domain": True}, "is_domain"), ("user", {"password_expires_at": "2030-01-01T00:00:00"}, "expires"),
    ("user", {"federated": [{"idp_id": "x"}]}, "federated"), ("user", {"id": "a" * 32}, "id"),
    ("project", {"id": "a" * 32}, "id")])
def test_fields_that_would_be_dropped_are_refused(small, noun, fields, name):
    refused(small.admin("POST", f"/v3/{noun}s", {noun: {"name": "new", **fields}}), name)


@pytest.mark.parametrize("field", ["domain_id", "parent_id", "id"])
def test_what_never_changes_says_so(small, field):
    project = small.project()
    one = f"/v3/projects/{project}"
    now = small.admin("GET", one)["project"]
    refused(small.admin("PATCH", one, {"project": {field: "other"}}), field)
    assert small.admin("PATCH", one, {"project": {field: now[field]}}, 200)["project"] == now


@pytest.fixture
def tagged(small):
    for name, tags in (("red", ["a", "b"]), ("Green", ["b"]), ("blue", [])):
        small.admin("POST", "/v3/projects", {"project": {"name": name, "tags": tags}}, 201)
    return lambda query: [one["name"] for one in small.admin("GET", f"/v3/projects?{query}", None, 200)["projects"]
                          if one["name"] in ("red", "Green", "blue")]


@pytest.mark.parametrize("query, names", [
    ("tags=a,b", ["red"]), ("tags=b", ["Green", "red"]), ("tags-any=a,c", ["red"]), ("not-tags=a,b", ["Green", "blue"]),
    ("not-tags-any=a,b", ["blue"]), ("name__contains=re", ["Green", "red"]), ("name__startswith=g", []),
    ("name__istartswith=g", ["Green"]), ("name__iendswith=EN", ["Green"]), ("is_domain=true", []),
    ("is_domain=false", ["Green", "blue", "red"])])
def test_filters_act(tagged, query, names):
    assert sorted(tagged(query)) == names


def test_a_list_has_pages(small):
    every = [one["id"] for number in range(5) for one in [small.admin(
        "POST", "/v3/groups", {"group": {"name": f"g{number}"}}, 201)["group"]]]
    first = small.admin("GET", "/v3/groups?limit=2", None, 200)
    assert [one["id"] for one in first["groups"]] == every[:2]
    assert first["links"]["next"].endswith(f"/v3/groups?limit=2&marker={every[1]}")
    last = small.admin("GET", f"/v3/groups?limit=2&marker={every[3]}", None, 200)
    assert [one["id"] for one in last["groups"]] == every[4:]
    assert last["links"]["next"] is None
    refused(small.admin("GET", "/v3/groups?marker=nobody"), "marker")
    refused(small.admin("GET", "/v3/groups?limit=0"), "limit")


@pytest.mark.parametrize("path", [
    "projects", "users", "groups", "roles", "regions", "services", "endpoints", "domains", "role_assignments", "limits",
    "registered_limits", "auth/projects"])
def test_parameters_that_are_none_are_refused(small, path):
    answer = small.admin("GET", f"/v3/{path}?colour=red")
    refused(answer, "colour", "there are ")
    assert "__" not in answer.body["error"]["message"]


def test_families_of_projects(small):
    ask = small.admin
    top = small.project()
    middle, low = [ask("POST", "/v3/projects", {"project": {"name": name, "parent_id": top}}, 201)["project"]["id"]
                   for name in ("middle", "beside")]
    low = ask("POST", "/v3/projects", {"project": {"name": "low", "parent_id": middle}}, 201)["project"]["id"]
    shown = ask("GET", f"/v3/projects/{middle}?parents_as_ids&subtree_as_ids=True", None, 200)["project"]
    assert shown["parents"] == {top: {"default": None}}
    assert shown["subtree"] == {low: None}
    assert ask("GET", f"/v3/projects/{low}?subtree_as_ids")["project"]["subtree"] is None
    shown = ask("GET", f"/v3/projects/{middle}?parents_as_list&subtree_as_list", None, 200)["project"]
    assert [one["project"]["id"] for one in shown["parents"]] == [top]
    assert [one["project"]["id"] for one in shown["subtree"]] == [low]
    ask("GET", f"/v3/projects/{middle}?parents_as_list&parents_as_ids", None, 400)
    user = small.user(project=middle)
    ann = small.ask.as_(small.ask.login("ann", "secret", "middle").token)
    assert ann("GET", f"/v3/projects/{middle}?parents_as_list", None, 200)["project"]["parents"] == []
    found = ask("GET", f"/v3/role_assignments?scope.project.id={top}&include_subtree=true", None, 200)
    assert [one["user"]["id"] for one in found["role_assignments"]] == [user]


def test_tags_one_by_one(small):
    every = f"/v3/projects/{small.project()}/tags"
    small.admin("PUT", f"{every}/red", None, 201)
    small.admin("PUT", f"{every}/red", None, 201)
    small.admin("GET", f"{every}/red", None, 204)
    small.admin("GET", f"{every}/blue", None, 404)
    assert small.admin("PUT", every, {"tags": ["blue", "green"]}, 200).body == {"tags": ["blue", "green"]}
    small.admin("DELETE", f"{every}/blue", None, 204)
    small.admin("DELETE", f"{every}/blue", None, 404)
    assert small.admin("GET", every, None, 200).body == {"tags": ["green"]}
    small.admin("DELETE", every, None, 204)
    assert small.admin("GET", every, None, 200).body == {"tags": []}
    refused(small.admin("PUT", every, {}), "tags")


@pytest.mark.parametrize("query, word", [
    ("user.id=a&group.id=b", "group.id"), ("scope.project.id=a&scope.domain.id=b", "scope.domain.id"),
    ("scope.system=some", "scope.system"), ("include_subtree=true", "scope.project.id")])
def test_assignments_that_cannot_be_asked_for(small, query, word):
    refused(small.admin("GET", f"/v3/role_assignments?{query}"), word)


def test_no_role_is_inherited(small):
    ask = small.admin
    found = ask("GET", "/v3/role_assignments?scope.OS-INHERIT:inherited_to=projects", None, 200)
    assert found["role_assignments"] == []
    path = "/v3/OS-INHERIT/projects/a/users/b/roles"
    assert ask("GET", f"{path}/inherited_to_projects", None, 200)["roles"] == []
    refused(ask("PUT", f"{path}/c/inherited_to_projects"), "each project")


@pytest.mark.parametrize("fields, name", [
    ({"expires_at": "2020-01-01T00:00:00"}, "expires_at"), ({"project_id": "other"}, "project_id"),
    ({"colour": "red"}, "colour")])
def test_application_credentials_that_could_not_act(small, fields, name):
    user = small.user(project=small.project())
    ann = small.ask.as_(small.ask.login("ann", "secret", "demo").token)
    path = f"/v3/users/{user}/application_credentials"
    refused(ann("POST", path, {"application_credential": {"name": "ci", **fields}}), name)
    assert ann("GET", path, None, 200)["application_credentials"] == []


def test_the_region_that_old_clients_name_is_that_of_the_endpoint(small):
    ask = small.admin
    service = ask("POST", "/v3/services", {"service": {"name": "dns", "type": "dns"}}, 201)["service"]["id"]
    new = {"service_id": service, "interface": "public", "url": "http://dns", "region": "west", "enabled": True}
    made = ask("POST", "/v3/endpoints", {"endpoint": new}, 201)["endpoint"]
    assert (made["region_id"], made["region"]) == ("west", "west")
    assert ask("GET", "/v3/regions/west", None, 200)["region"]["description"] == ""
    one = f"/v3/endpoints/{made['id']}"
    assert ask("PATCH", one, {"endpoint": {"region": "east"}}, 200)["endpoint"]["region_id"] == "east"
    assert ask("PATCH", one, {"endpoint": {"region": "x", "region_id": "west"}}, 200)["endpoint"]["region"] == "west"
    refused(ask("PATCH", one, {"endpoint": {"region_id": "nowhere"}}), "region_id")
    refused(ask("PATCH", one, {"endpoint": {"region": "a/b"}}), "region")


@pytest.mark.parametrize("path, key", [
    ("endpoints?enabled=False", "endpoints"), ("services?enabled=False", "services"), ("limits?domain_id=x", "limits")])
def test_lists_of_what_is_not_there_are_empty(small, path, key):
    assert small.admin("GET", f"/v3/{path}", None, 200)[key] == []


def test_a_project_lies_in_the_domain_of_its_parent(small):
    ask = small.admin
    east = ask("POST", "/v3/domains", {"domain": {"name": "east"}}, 201)["domain"]["id"]
    top = small.project("top", domain_id=east)
    low = ask("GET", f"/v3/projects/{small.project('low', parent_id=top)}")["project"]
    assert (low["domain_id"], low["parent_id"]) == (east, top)
    assert ask("GET", f"/v3/projects/{small.project('beside', parent_id=east)}")["project"]["domain_id"] == east
    refused(ask("POST", "/v3/projects", {"project": {"name": "x", "parent_id": top, "domain_id": "default"}}), east)
    refused(ask("POST", "/v3/projects", {"project": {"name": "x", "parent_id": "nobody"}}), "parent_id")


def test_projects_lie_below_each_other_to_a_bound(small):
    lowest = ""
    for number in range(5):
        lowest = small.project(f"p{number}", **({"parent_id": lowest} if lowest else {}))
    answer = small.admin("POST", "/v3/projects", {"project": {"name": "x", "parent_id": lowest}}, 403)
    assert "depth" in answer["error"]["message"]


def test_tags_that_are_given_at_once_are_all_kept(small, monkeypatch):
    """Whoever adds one reads those that are there in the transaction that writes."""
    every = f"/v3/projects/{small.project()}/tags"
    added, told = small.identity.tokens.change, []

    @contextlib.contextmanager
    def late():
        if not told:
            told.append(True)
            small.admin("PUT", f"{every}/first", None, 201)
        with added() as connection:
            yield connection

    monkeypatch.setattr(small.identity.tokens, "change", late)
    small.admin("PUT", f"{every}/second", None, 201)
    assert small.admin("GET", every, None, 200).body == {"tags": ["first", "second"]}


@pytest.mark.parametrize("secret", [12345678, {"word": 12345678}, ["12345678"], "12345678" * 1000])
def test_no_answer_repeats_a_secret(small, secret):
    user = small.user(project=small.project())
    ann = small.ask.as_(small.ask.login("ann", "secret", "demo").token)
    one = f"/v3/users/{user}"
    for answer in (
            small.admin("POST", "/v3/users", {"user": {"name": "bob", "password": secret}}),
            small.admin("PATCH", one, {"user": {"password": secret}}),
            ann("POST", f"{one}/password", {"user": {"original_password": "secret", "password": secret}}),
            ann("POST", f"{one}/application_credentials", {
                "application_credential": {"name": "ci", "secret": secret}})):
        assert answer.status == 400
        assert "12345678" not in str(answer.body)
