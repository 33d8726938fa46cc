# SPDX-License-Identifier: GPL-3.0-or-later
"""os-server-groups: what the scheduler reads of them, and how many queries a list is."""

from sqlalchemy import insert

from magnetar_control.store.engine.tables import server_group_members
from magnetar_control.store.hosts.hosts import fetch_scheduling_group

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
        found = fetch_scheduling_group(connection, server)
    assert (found.policy, found.max_per_host) == ("anti-affinity", 3)
    assert compute.alice.delete(f"{PATH}/{id}").status == 204
    again = compute.alice.delete(f"{PATH}/{id}")
    assert (again.status, again.message) == (404, f"Instance group {id} could not be found.")
    with compute.api.read() as connection:
        assert fetch_scheduling_group(connection, server) is None


def test_a_list_is_two_queries_however_long(small):
    for number in range(5):
        joined(small, made(small.alice, str(number))["id"], small.server())
    with small.counted() as seen:
        assert len(small.alice.get(PATH).json["server_groups"]) == 5
    assert len(seen) == 2
