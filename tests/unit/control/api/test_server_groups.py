# SPDX-License-Identifier: GPL-3.0-or-later
"""os-server-groups: forms, policies, whose they are, quota."""

import pytest
from sqlalchemy import insert

from magnetar_control.store.hosts import group_of
from magnetar_control.store.tables import server_group_members

from .compute import Compute, emptied

PATH = "/os-server-groups"
SPREAD = {"name": "web", "policy": "anti-affinity", "rules": {"max_server_per_host": "3"}}


def made(caller, name="web", version="2.1", **more):
    body = {"name": name, **({"policy": "affinity"} if int(version[2:]) >= 64 else {"policies": ["affinity"]}), **more}
    reply = caller.post(PATH, {"server_group": body}, version)
    assert reply.status == 200, reply
    return reply.json["server_group"]


def joined(compute, group, server):
    with compute.api.write() as connection:
        connection.execute(insert(server_group_members).values(group_id=group, server_id=server))


def test_a_group_is_made_shown_and_deleted(compute):
    reply = compute.alice.post(PATH, {"server_group": SPREAD}, "2.64")
    group = reply.json["server_group"]
    id = group.pop("id")
    assert (reply.status, group) == (200, {
        "name": "web", "policy": "anti-affinity", "rules": {"max_server_per_host": 3}, "members": [],
        "project_id": "red", "user_id": "alice"})
    server = compute.server()
    joined(compute, id, server)
    shown = {**group, "id": id, "members": [server]}
    assert compute.rita.get(f"{PATH}/{id}", "2.64").json == {"server_group": shown}
    assert compute.rita.get(PATH, "2.64").json == {"server_groups": [shown]}
    with compute.api.read() as connection:  # what the scheduler reads
        found = group_of(connection, server)
    assert (found.policy, found.max_per_host) == ("anti-affinity", 3)
    assert compute.alice.delete(f"{PATH}/{id}").status == 204
    again = compute.alice.delete(f"{PATH}/{id}")
    assert (again.status, again.message) == (404, f"Instance group {id} could not be found.")
    with compute.api.read() as connection:
        assert group_of(connection, server) is None


@pytest.mark.parametrize(("version", "keys"), [
    ("2.1", {"policies", "metadata"}), ("2.13", {"policies", "metadata", "project_id", "user_id"}),
    ("2.63", {"policies", "metadata", "project_id", "user_id"}),
    ("2.64", {"policy", "rules", "project_id", "user_id"})])
def test_what_each_version_shows(small, version, keys):
    group = made(small.alice, version=version)
    assert set(group) == {"id", "name", "members"} | keys
    assert small.alice.get(f"{PATH}/{group['id']}", version).json == {"server_group": group}
    assert small.alice.get(PATH, version).json == {"server_groups": [group]}


@pytest.mark.parametrize(("body", "version"), [
    ({"name": "a"}, "2.1"), ({"policies": ["affinity"]}, "2.1"), ({"name": "a", "policies": []}, "2.1"),
    ({"name": "a", "policies": ["affinity", "anti-affinity"]}, "2.1"), ({"name": "a", "policies": ["near"]}, "2.1"),
    ({"name": "a", "policies": ["soft-affinity"]}, "2.14"), ({"name": "a", "policies": ["affinity"]}, "2.64"),
    ({"name": "a", "policy": "affinity"}, "2.63"), ({"name": "a"}, "2.64"),
    ({"name": " a", "policy": "affinity"}, "2.64"),
    ({"name": "x" * 256, "policy": "affinity"}, "2.64"), ({"name": "", "policy": "affinity"}, "2.64"),
    ({"name": "a", "policy": "affinity", "rules": {"max_server_per_host": 2}}, "2.64"),
    ({"name": "a", "policy": "anti-affinity", "rules": {"max_server_per_host": 0}}, "2.64"),
    ({"name": "a", "policy": "anti-affinity", "rules": {"colour": 1}}, "2.64"),
    ({"name": "a", "policy": "affinity", "colour": "red"}, "2.64"), ([], "2.64")])
def test_a_wrong_group_is_refused(small, body, version):
    assert small.alice.post(PATH, {"server_group": body}, version).status == 400
    assert small.alice.get(PATH).json == {"server_groups": []}


def test_soft_policies_since_2_15(small):
    assert made(small.alice, version="2.15", policies=["soft-anti-affinity"])["policies"] == ["soft-anti-affinity"]
    assert made(small.alice, version="2.64", policy="soft-affinity")["rules"] == {}


def test_other_projects_groups_do_not_exist(compute):
    id = made(compute.alice)["id"]
    assert compute.bob.get(f"{PATH}/{id}").status == 404
    assert compute.bob.delete(f"{PATH}/{id}").status == 404
    assert compute.bob.get(f"{PATH}?all_projects=1").json == {"server_groups": []}
    assert compute.admin.get(PATH).json == {"server_groups": []}
    assert [one["id"] for one in compute.admin.get(f"{PATH}?all_projects=1").json["server_groups"]] == [id]
    assert compute.admin.get(f"{PATH}/{id}").status == 200
    assert compute.admin.delete(f"{PATH}/{id}").status == 204


def test_readers_only_read(small):
    id = made(small.alice)["id"]
    assert small.rita.post(PATH, {"server_group": {"name": "a", "policies": ["affinity"]}}).status == 403
    assert small.rita.delete(f"{PATH}/{id}").status == 403
    assert small.rita.get(f"{PATH}/{id}").status == 200


def test_pages(compute):
    for name in ("a", "b", "c"):
        made(compute.alice, name)

    def names(query):
        return [one["name"] for one in compute.alice.get(f"{PATH}?{query}").json["server_groups"]]

    assert (names("limit=2"), names("offset=2"), names("limit=1&offset=1")) == (["a", "b"], ["c"], ["b"])
    for query in ("limit=-1", "offset=x", "limit=a"):
        assert compute.alice.get(f"{PATH}?{query}").status == 400
    assert compute.alice.get(f"{PATH}?colour=red", "2.74").status == 200
    assert compute.alice.get(f"{PATH}?colour=red", "2.75").status == 400


def test_no_more_groups_than_the_quota(sqlite_three, tmp_path):
    api = Compute(sqlite_three, tmp_path, quota_server_groups=1)
    made(api.alice)
    reply = api.alice.post(PATH, {"server_group": {"name": "b", "policies": ["affinity"]}})
    assert (reply.status, reply.message) == (403, "Quota exceeded, too many server groups.")
    assert api.alice.get("/limits").json["limits"]["absolute"]["totalServerGroupsUsed"] == 1
    emptied(sqlite_three)


def test_a_list_is_two_queries_however_long(small):
    for number in range(5):
        joined(small, made(small.alice, str(number))["id"], small.server())
    with small.counted() as seen:
        assert len(small.alice.get(PATH).json["server_groups"]) == 5
    assert len(seen) == 2
