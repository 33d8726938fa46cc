# SPDX-License-Identifier: GPL-3.0-or-later
"""os-aggregates and os-availability-zone."""

import pytest

from magnetar_control.store import aggregates, conductors, hosts

PATH = "/os-aggregates"


def made(compute, name="fast", version="2.41", **more):
    reply = compute.admin.post(PATH, {"aggregate": {"name": name, **more}}, version)
    assert reply.status == 200, reply
    return reply.json["aggregate"]


def act(compute, id, action, **args):
    return compute.admin.post(f"{PATH}/{id}/action", {action: args}, "2.41")


def zones(compute):
    found = compute.alice.get("/os-availability-zone").json["availabilityZoneInfo"]
    return {one["zoneName"]: one["zoneState"]["available"] for one in found}


def test_an_aggregate_is_made_shown_changed_and_deleted(compute):
    stub = made(compute, availability_zone="north")
    assert set(stub) == {"id", "uuid", "name", "availability_zone", "created_at", "updated_at", "deleted", "deleted_at"}
    assert (stub["availability_zone"], stub["updated_at"], stub["deleted"]) == ("north", None, False)
    path = f"{PATH}/{stub['id']}"
    shown = compute.admin.get(path, "2.41").json["aggregate"]
    assert shown == {**stub, "hosts": [], "metadata": {"availability_zone": "north"}}
    assert compute.admin.get(PATH, "2.41").json == {"aggregates": [shown]}
    changed = compute.admin.put(path, {"aggregate": {"name": "slow", "availability_zone": "south"}}).json["aggregate"]
    assert (changed["name"], changed["metadata"]) == ("slow", {"availability_zone": "south"})
    assert changed["updated_at"] > shown["created_at"]
    assert compute.admin.put(path, {"aggregate": {"availability_zone": None}}).json["aggregate"]["metadata"] == {}
    gone = compute.admin.delete(path)
    assert (gone.status, gone.json) == (200, None)
    again = compute.admin.get(path)
    assert (again.status, again.message) == (404, f"Aggregate {stub['id']} could not be found.")


def test_the_uuid_is_shown_since_2_41(small):
    id = made(small)["id"]
    assert "uuid" not in small.admin.get(f"{PATH}/{id}", "2.40").json["aggregate"]
    assert "uuid" not in made(small, "other", "2.40")


def test_hosts_and_metadata(compute):
    compute.host("kvm1")
    id = made(compute)["id"]
    assert act(compute, id, "add_host", host="kvm1").json["aggregate"]["hosts"] == ["kvm1"]
    again = act(compute, id, "add_host", host="kvm1")
    assert (again.status, again.message) == (409, f"Aggregate {id} already has host kvm1.")
    assert act(compute, id, "add_host", host="kvm9").message == "Compute host kvm9 could not be found."
    changed = act(compute, id, "set_metadata", metadata={"ssd": "true", "gpu": "no"}).json["aggregate"]
    assert changed["metadata"] == {"ssd": "true", "gpu": "no"}
    changed = act(compute, id, "set_metadata", metadata={"gpu": None}).json["aggregate"]
    assert changed["metadata"] == {"ssd": "true"}
    with compute.api.read() as connection:  # what the scheduler reads
        (found,) = aggregates.every(connection)
    assert (found.metadata, found.hosts) == ({"ssd": "true"}, ["kvm1"])
    full = compute.admin.delete(f"{PATH}/{id}")
    assert (full.status, full.message) == (
        400, f"Cannot perform action 'delete' on aggregate {id}. Reason: Host aggregate is not empty.")
    assert act(compute, id, "remove_host", host="kvm1").json["aggregate"]["hosts"] == []
    none = act(compute, id, "remove_host", host="kvm1")
    assert (none.status, none.message) == (404, f"Aggregate {id} has no host kvm1.")


def test_zones_follow_aggregates_at_once(compute):
    compute.host("kvm1")
    compute.host("kvm2")
    assert zones(compute) == {"nova": True}
    id = made(compute, availability_zone="north")["id"]
    act(compute, id, "add_host", host="kvm1")
    assert zones(compute) == {"north": True, "nova": True}
    act(compute, id, "set_metadata", metadata={"availability_zone": "south"})
    assert zones(compute) == {"south": True, "nova": True}
    act(compute, id, "remove_host", host="kvm1")
    assert zones(compute) == {"nova": True}


def test_a_host_is_in_one_zone_only(small):
    small.host("kvm1")
    north, south = made(small, "n", availability_zone="north")["id"], made(small, "s", availability_zone="south")["id"]
    plain = made(small, "p")["id"]
    act(small, north, "add_host", host="kvm1")
    assert act(small, plain, "add_host", host="kvm1").status == 200
    reply = act(small, south, "add_host", host="kvm1")
    assert reply.status == 409
    assert "One or more hosts already in availability zone(s) north" in reply.message
    for reply in (act(small, plain, "set_metadata", metadata={"availability_zone": "south"}),
                  small.admin.put(f"{PATH}/{plain}", {"aggregate": {"availability_zone": "south"}})):
        assert reply.status == 400
    assert act(small, plain, "set_metadata", metadata={"availability_zone": "north"}).status == 200


def test_the_zone_of_servers_does_not_change_under_them(small):
    small.host("kvm1")
    small.server(host="kvm1")
    id = made(small, availability_zone="north")["id"]
    reply = act(small, id, "add_host", host="kvm1")
    assert reply.status == 409
    assert "contain instances in this zone" in reply.message
    plain = made(small, "plain")["id"]
    assert act(small, plain, "add_host", host="kvm1").status == 200
    assert act(small, plain, "set_metadata", metadata={"availability_zone": "north"}).status == 400
    assert act(small, plain, "set_metadata", metadata={"availability_zone": "nova"}).status == 200
    assert act(small, plain, "remove_host", host="kvm1").status == 200


def test_zones_stay_while_nobody_knows_what_is_on_the_hosts(small, monkeypatch):
    small.host("kvm1")
    id = made(small, availability_zone="north")["id"]
    monkeypatch.setattr("magnetar_control.store.services._over_cells", lambda *_args: [None])
    assert act(small, id, "add_host", host="kvm1").status == 409


@pytest.mark.parametrize("body", [
    {}, {"name": ""}, {"name": " a"}, {"name": "x" * 256}, {"name": "a", "availability_zone": "a:b"},
    {"name": "a", "availability_zone": ""}, {"name": "a", "availability_zone": "x" * 256},
    {"name": "a", "colour": "red"}, {"name": 1}])
def test_a_wrong_aggregate_is_refused(small, body):
    assert small.admin.post(PATH, {"aggregate": body}).status == 400
    assert small.admin.get(PATH).json == {"aggregates": []}


def test_names_are_unique(compute):
    made(compute)
    other = made(compute, "other")["id"]
    again = compute.admin.post(PATH, {"aggregate": {"name": "fast"}})
    assert (again.status, again.message) == (409, "Aggregate fast already exists.")
    assert compute.admin.put(f"{PATH}/{other}", {"aggregate": {"name": "fast"}}).status == 409
    assert compute.admin.put(f"{PATH}/{other}", {"aggregate": {"name": "other"}}).status == 200


@pytest.mark.parametrize(("action", "args"), [
    ("add_host", {}), ("add_host", {"host": "a b"}), ("add_host", {"host": 1}), ("remove_host", {"hosts": "a"}),
    ("set_metadata", {}), ("set_metadata", {"metadata": {"a/b": "c"}}), ("set_metadata", {"metadata": {"a": 1}}),
    ("set_metadata", {"metadata": {"a": "x" * 256}}), ("paint", {})])
def test_wrong_actions_are_refused(small, action, args):
    assert act(small, made(small)["id"], action, **args).status == 400


def test_aggregates_are_for_administrators(small):
    id = made(small)["id"]
    for caller in (small.alice, small.rita):
        for method, path, body in (
                ("GET", PATH, None), ("POST", PATH, {"aggregate": {"name": "a"}}), ("GET", f"{PATH}/{id}", None),
                ("PUT", f"{PATH}/{id}", {"aggregate": {"name": "a"}}), ("DELETE", f"{PATH}/{id}", None),
                ("POST", f"{PATH}/{id}/action", {"add_host": {"host": "a"}}),
                ("POST", f"{PATH}/{id}/action", {"remove_host": {"host": "a"}}),
                ("POST", f"{PATH}/{id}/action", {"set_metadata": {"metadata": {}}})):
            assert caller.call(method, path, body).status == 403
    assert small.admin.get(f"{PATH}/x").status == 400
    assert small.admin.put(f"{PATH}/{id}", {"aggregate": {}}).status == 400


def test_zones_with_disabled_hosts_only_are_not_available(compute):
    compute.host("kvm1")
    with compute.api.write() as connection:
        hosts.set_host(connection, "kvm1", disabled=True)
    compute.cloud.hosts.all(fresh=True)
    assert zones(compute) == {"nova": False}
    assert compute.admin.get("/os-availability-zone/detail").json["availabilityZoneInfo"] == [
        {"zoneName": "nova", "zoneState": {"available": False}, "hosts": None}]


def test_administrators_see_what_is_in_the_zones(compute):
    compute.host("kvm1")
    compute.host("kvm2", seen=False)
    conductors.present(compute.cell, "c1:1", "c1")
    assert compute.alice.get("/os-availability-zone/detail").status == 403
    internal, nova = compute.admin.get("/os-availability-zone/detail").json["availabilityZoneInfo"]
    assert (internal["zoneName"], nova["zoneName"]) == ("internal", "nova")
    assert internal["hosts"]["c1"]["nova-conductor"]["available"] is True
    assert nova["hosts"]["kvm1"]["nova-compute"].pop("updated_at")
    assert nova["hosts"] == {
        "kvm1": {"nova-compute": {"active": True, "available": True}},
        "kvm2": {"nova-compute": {"active": True, "available": False, "updated_at": None}}}
    listed = compute.alice.get("/os-availability-zone").json["availabilityZoneInfo"]
    assert listed == [{"zoneName": "nova", "zoneState": {"available": True}, "hosts": None}]


def test_queries_do_not_grow(small):
    for number in range(5):
        small.host(f"kvm{number}")
        act(small, made(small, str(number))["id"], "add_host", host=f"kvm{number}")
    with small.counted() as seen:
        assert len(small.admin.get(PATH).json["aggregates"]) == 5
    assert len(seen) == 2
    with small.counted() as seen:
        small.admin.get("/os-availability-zone/detail")
    assert len(seen) <= 5
