# SPDX-License-Identifier: GPL-3.0-or-later
"""Projects, users, roles and the rest: made, shown, changed, removed; and who may."""

import pytest

from tests.support.control.counting import counted

from .cloud import URL


@pytest.fixture
def ann(small):
    """A member's client; also the ids of her project and herself."""
    project = small.project()
    user = small.user(project=project)
    client = small.ask.as_(small.ask.login("ann", "secret", "demo").token)
    client.project, client.user = project, user
    return client


NOUNS = {
    "project": {"description": "x", "colour": "red"}, "user": {"email": "a@b", "colour": "red"},
    "group": {"description": "x"}, "role": {"description": "x"}, "domain": {"description": "x", "enabled": False},
    "service": {"type": "dns"},
}


@pytest.mark.parametrize("noun", NOUNS)
def test_the_life_of_a_noun(cloud, noun):
    ask, path = cloud.admin, f"/v3/{noun}s"
    made = ask("POST", path, {noun: {"name": "one", **NOUNS[noun]}}, 201)[noun]
    assert made.items() >= {"name": "one", **NOUNS[noun]}.items()
    assert made["links"]["self"] == f"{URL}/identity{path}/{made['id']}"
    one = f"{path}/{made['id']}"
    assert ask("GET", one, None, 200)[noun] == made
    assert ask("GET", f"{path}?name=one", None, 200)[f"{noun}s"] == [made]
    assert ask("GET", f"{path}?name=two", None, 200)[f"{noun}s"] == []
    changed = ask("PATCH", one, {noun: {"name": "two", "size": "big"}}, 200)[noun]
    assert changed == {**made, "name": "two", "size": "big"}
    if noun != "service":
        ask("POST", path, {noun: {"name": "two"}}, 409)
    ask("DELETE", one, None, 204)
    ask("GET", one, None, 404)
    ask("DELETE", one, None, 404)


def test_roles_of_domains_are_listed_when_their_domain_is_named(cloud):
    """As Keystone does: without domain_id the roles that hold everywhere."""
    ask = cloud.admin
    domain = ask("POST", "/v3/domains", {"domain": {"name": "lab"}}, 201)["domain"]["id"]
    role = ask("POST", "/v3/roles", {"role": {"name": "of the lab", "domain_id": domain}}, 201)["role"]

    def listed(query: str = "") -> list[str]:
        return [one["name"] for one in ask("GET", f"/v3/roles{query}", None, 200)["roles"]]

    assert {"admin", "member", "reader"} <= {*listed()} and "of the lab" not in listed()
    assert listed(f"?domain_id={domain}") == ["of the lab"]
    assert listed(f"?domain_id={domain}&name=member") == listed("?name=of+the+lab") == []
    assert ask("GET", f"/v3/roles/{role['id']}", None, 200)["role"] == role


def test_the_catalogues_nouns(cloud):
    ask = cloud.admin
    ask("POST", "/v3/regions", {"region": {"id": "west"}}, 201)
    ask("POST", "/v3/regions", {"region": {"id": "west"}}, 409)
    service = ask("POST", "/v3/services", {"service": {"name": "designate", "type": "dns"}}, 201)["service"]["id"]
    body = {"service_id": service, "interface": "public", "region_id": "west", "url": "http://dns/$(project_id)s"}
    endpoint = ask("POST", "/v3/endpoints", {"endpoint": body}, 201)["endpoint"]["id"]
    ask("POST", "/v3/endpoints", {"endpoint": {**body, "interface": "sideways"}}, 400)
    ask("POST", "/v3/endpoints", {"endpoint": {**body, "service_id": "none"}}, 400)
    project = cloud.identity.validate(ask.token).project_id
    found = {entry["type"]: entry for entry in ask("GET", "/v3/auth/catalog", None, 200)["catalog"]}
    assert found["dns"]["endpoints"][0]["url"] == f"http://dns/{project}"
    ask("DELETE", "/v3/regions/west", None, 409)
    ask("DELETE", f"/v3/services/{service}", None, 204)
    ask("GET", f"/v3/endpoints/{endpoint}", None, 404)
    ask("DELETE", "/v3/regions/west", None, 204)


@pytest.mark.parametrize("noun, fields", [
    ("project", {"name": ""}), ("project", {"name": "x" * 65}), ("project", {}), ("project", {"name": 5}),
    ("project", {"name": "a\0"}), ("project", {"name": "a", "enabled": "yes"}), ("project", {"name": "a", "tags": "x"}),
    ("project", {"name": "a", "tags": ["a,b"]}), ("project", {"name": "a", "domain_id": "none"}),
    ("project", {"name": "a", "parent_id": "none"}), ("project", {"name": "a", "more": "\0"}),
    ("user", {"name": "a", "password": ""}), ("user", {"name": "a", "password": 7}), ("user", {"name": "x" * 256}),
    ("user", {"name": "a", "default_project_id": "none"}), ("service", {"name": "a"})])
def test_bad_fields_are_a_400_and_change_nothing(small, noun, fields):
    before = small.admin("GET", f"/v3/{noun}s").body
    assert small.admin("POST", f"/v3/{noun}s", {noun: fields}, 400)["error"]["message"]
    assert small.admin("GET", f"/v3/{noun}s").body == before


@pytest.mark.parametrize("body, status", [(b"{", 400), ({}, 400), ([], 400), ({"project": 1}, 400), (b"", 400)])
def test_bad_bodies(small, body, status):
    small.admin("POST", "/v3/projects", body, status)


@pytest.mark.parametrize("path", ["/v3/projects/%00", "/v3/users?name=%00", "/v3/projects/a%00b"])
def test_nul_bytes_in_urls(small, path):
    small.admin("GET", path, None, 400)


def test_unknown_paths_and_methods(small):
    assert small.admin("GET", "/v3/moons", None, 404)["error"]["title"] == "Not Found"
    assert small.admin("PUT", "/v3/projects", None, 405).headers["Allow"] == "GET, POST"
    small.admin("HEAD", f"/v3/users/{small.identity.validate(small.admin.token).user_id}", None, 200)


def test_without_a_token(small):
    got = small.ask("GET", "/v3/projects", None, 401)
    assert got.headers["WWW-Authenticate"] == f'Keystone uri="{URL}/identity"'


ADMINS = [("GET", "/v3/projects"), ("POST", "/v3/projects"), ("GET", "/v3/users"), ("GET", "/v3/roles"),
          ("GET", "/v3/role_assignments"), ("GET", "/v3/services"), ("GET", "/v3/endpoints"), ("POST", "/v3/regions"),
          ("PATCH", "/v3/projects/{project}"), ("DELETE", "/v3/users/{user}"), ("PATCH", "/v3/users/{user}"),
          ("PUT", "/v3/projects/{project}/users/{user}/roles/x"), ("PUT", "/v3/groups/x/users/{user}"),
          ("GET", "/v3/projects/{project}/users/{user}/roles"), ("PUT", "/v3/roles/x/implies/y")]


@pytest.mark.parametrize("method, path", ADMINS)
def test_what_only_administrators_may(ann, method, path):
    ann(method, path.format(project=ann.project, user=ann.user), {}, 403)


def test_users_see_themselves_and_what_is_theirs(small, ann):
    other = small.project("other")
    admin = small.identity.validate(small.admin.token).user_id
    assert ann("GET", f"/v3/users/{ann.user}", None, 200)["user"]["name"] == "ann"
    assert ann("GET", f"/v3/projects/{ann.project}", None, 200)["project"]["name"] == "demo"
    ann("GET", "/v3/domains/default", None, 200)
    for path in (f"/v3/users/{admin}", f"/v3/projects/{other}", f"/v3/users/{admin}/projects",
                 f"/v3/users/{admin}/application_credentials"):
        ann("GET", path, None, 404)
    ann("POST", f"/v3/users/{admin}/password", {"user": {"original_password": "x", "password": "y"}}, 404)
    for path in (f"/v3/users/{ann.user}/projects", "/v3/auth/projects"):
        assert [project["name"] for project in ann("GET", path, None, 200)["projects"]] == ["demo"]
    ann("GET", "/v3/auth/tokens", None, 404, x_subject_token=small.admin.token)
    ann("DELETE", "/v3/auth/tokens", None, 404, x_subject_token=small.admin.token)
    assert small.identity.validate(small.admin.token)


def test_a_password_needs_the_old_one_to_be_changed(small, ann):
    path = f"/v3/users/{ann.user}/password"
    ann("POST", path, {"user": {"original_password": "wrong", "password": "new"}}, 401)
    ann("POST", path, {"user": {"password": "new"}}, 400)
    ann("POST", path, {"user": {"original_password": "secret", "password": "new"}}, 204)
    assert small.ask.login("ann", "secret", "demo").status == 401
    assert small.ask.login("ann", "new", "demo").status == 201


def test_no_answer_shows_a_password(small, ann):
    for path in ("/v3/users", f"/v3/users/{ann.user}"):
        text = str(small.admin("GET", path).body)
        assert "scrypt" not in text
        assert "'password'" not in text


def test_roles_by_groups(cloud):
    project, user = cloud.project(), cloud.user()
    group = cloud.admin("POST", "/v3/groups", {"group": {"name": "ops"}}, 201)["group"]["id"]
    member, role = f"/v3/groups/{group}/users/{user}", cloud.role("manager")
    cloud.admin("PUT", f"/v3/projects/{project}/groups/{group}/roles/{role}", None, 204)
    assert cloud.ask.login("ann", "secret", "demo").status == 401
    for _twice in range(2):
        cloud.admin("PUT", member, None, 204)
    token = cloud.ask.login("ann", "secret", "demo").token
    assert cloud.identity.validate(token).roles == {"manager", "member", "reader"}
    assert [found["name"] for found in cloud.admin("GET", f"/v3/groups/{group}/users")["users"]] == ["ann"]
    assert [found["name"] for found in cloud.admin("GET", f"/v3/users/{user}/groups")["groups"]] == ["ops"]
    cloud.admin("DELETE", member, None, 204)
    assert cloud.identity.validate(token) is None
    cloud.admin("DELETE", member, None, 404)


def test_assignments(cloud):
    project = cloud.project()
    user = cloud.user(project=project)
    path, role = f"/v3/projects/{project}/users/{user}/roles", cloud.role("member")
    assert [found["name"] for found in cloud.admin("GET", path, None, 200)["roles"]] == ["member"]
    cloud.admin("HEAD", f"{path}/{role}", None, 204)
    cloud.admin("HEAD", f"{path}/{cloud.role('admin')}", None, 404)
    cloud.admin("PUT", f"{path}/none", None, 404)

    def listed(query):
        return cloud.admin("GET", f"/v3/role_assignments?{query}", None, 200)["role_assignments"]

    (one,) = listed(f"user.id={user}")
    assert one["role"] == {"id": role}
    assert one["scope"] == {"project": {"id": project}}
    assert one["links"]["assignment"] == f"{URL}/identity{path}/{role}"
    (named,) = listed(f"scope.project.id={project}&include_names=true")
    assert named["user"] == {"id": user, "name": "ann", "domain": {"id": "default", "name": "Default"}}
    assert named["role"]["name"] == "member"
    spread = listed(f"user.id={user}&effective&include_names")
    assert [found["role"]["name"] for found in spread] == sorted(["member", "reader"], key=cloud.role)
    assert len(listed(f"role.id={cloud.role('reader')}&effective&user.id={user}")) == 1
    assert len(listed("scope.system=all")) == 1
    cloud.admin("DELETE", f"/v3/users/{user}", None, 204)
    assert listed(f"user.id={user}") == []


def test_implied_roles(cloud):
    prior, implied = cloud.role("reader"), cloud.role("admin")
    before = cloud.admin("GET", "/v3/role_inferences", None, 200)["role_inferences"]
    assert len(before) == 3
    cloud.admin("PUT", f"/v3/roles/{prior}/implies/{implied}", None, 201)  # a ring
    token = cloud.ask.login("admin", cloud.password).token
    assert len(cloud.identity.validate(token).roles) == 4
    found = cloud.admin("GET", f"/v3/roles/{prior}/implies", None, 200)["role_inference"]
    assert [role["name"] for role in found["implies"]] == ["admin"]
    cloud.admin("DELETE", f"/v3/roles/{prior}/implies/{implied}", None, 204)
    assert cloud.admin("GET", "/v3/role_inferences")["role_inferences"] == before


def test_what_there_is_none_of(ann, small):
    """In the form in which clients look for it; to make one is refused with what there is instead."""
    own = f"/v3/users/{ann.user}"
    for ask, path, plural in ((ann, "/v3/credentials", "credentials"),
                              (small.admin, "/v3/policies", "policies"), (ann, f"{own}/access_rules", "access_rules"),
                              (ann, f"{own}/credentials/OS-EC2", "credentials")):
        found = ask("GET", path, None, 200).body
        assert found == {plural: [], "links": {"next": None, "previous": None, "self": f"{URL}/identity{path}"}}
        assert "none" in ask("GET", f"{path}/none", None, 404)["error"]["message"]
        assert "makes no" in ask("POST", path, {}, 400)["error"]["message"]
    ann("GET", "/v3/policies", None, 403)


def test_the_role_of_services_is_there_and_implies_nothing(small):
    small.role("service")
    implied = small.admin("GET", f"/v3/roles/{small.role('service')}/implies")["role_inference"]["implies"]
    assert implied == []


def test_domains_keep_what_is_in_them(small):
    small.admin("DELETE", "/v3/domains/default", None, 403)
    domain = small.admin("POST", "/v3/domains", {"domain": {"name": "d"}}, 201)["domain"]["id"]
    small.admin("POST", "/v3/projects", {"project": {"name": "demo", "domain_id": domain}}, 201)
    small.project("demo")  # the same name in another domain
    small.admin("PATCH", f"/v3/domains/{domain}", {"domain": {"enabled": False}}, 200)
    small.admin("DELETE", f"/v3/domains/{domain}", None, 409)


def test_lists_cost_the_same_however_long_they_are(small, monkeypatch):
    monkeypatch.setattr(small.identity.tokens, "recheck_interval", 3600.0)  # however slow the machine is

    def queries(path):
        with counted(identity=small.database) as seen:
            small.admin("GET", path, None, 200)
        return len(seen)

    paths = ("/v3/projects", "/v3/users", "/v3/role_assignments?effective&include_names", "/v3/auth/projects")
    for path in paths:
        small.admin("GET", path)
    before = [queries(path) for path in paths]
    for number in range(5):
        small.project(f"p{number}")
        small.user(f"u{number}", project=small.admin("GET", f"/v3/projects?name=p{number}")["projects"][0]["id"])
    small.identity.validate(small.admin.token)
    assert [queries(path) for path in paths] == before
