# SPDX-License-Identifier: GPL-3.0-or-later
"""os-aggregates: what the scheduler reads of them, cells that do not answer, and how many queries a list is."""

from magnetar_control.store.hosts import aggregates

PATH = "/os-aggregates"


def made(compute, name="fast", version="2.41", **more):
    reply = compute.admin.post(PATH, {"aggregate": {"name": name, **more}}, version)
    assert reply.status == 200, reply
    return reply.json["aggregate"]


def act(compute, id, action, **args):
    return compute.admin.post(f"{PATH}/{id}/action", {action: args}, "2.41")


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
        (found,) = aggregates.fetch_aggregate_rows(connection)
    assert (found.metadata, found.hosts) == ({"ssd": "true"}, ["kvm1"])
    full = compute.admin.delete(f"{PATH}/{id}")
    assert (full.status, full.message) == (
        400, f"Cannot perform action 'delete' on aggregate {id}. Reason: Host aggregate is not empty.")
    assert act(compute, id, "remove_host", host="kvm1").json["aggregate"]["hosts"] == []
    none = act(compute, id, "remove_host", host="kvm1")
    assert (none.status, none.message) == (404, f"Aggregate {id} has no host kvm1.")


def test_a_multiplier_is_a_finite_number(small):
    small.host("kvm1")
    id = made(small)["id"]
    assert act(small, id, "set_metadata", metadata={"ram_weight_multiplier": "-1.5"}).status == 200
    for said in ("nan", "inf", "-1e999", "much"):
        reply = act(small, id, "set_metadata", metadata={"ssd": "true", "ram_weight_multiplier": said})
        assert reply.status == 400 and "metadata.ram_weight_multiplier" in reply.message, reply
        assert "must be a finite number" in reply.message
    assert small.admin.get(f"{PATH}/{id}").json["aggregate"]["metadata"] == {"ram_weight_multiplier": "-1.5"}
    assert act(small, id, "set_metadata", metadata={"ram_weight_multiplier": None}).json["aggregate"]["metadata"] == {}


def test_metadata_that_stands_may_be_said_again(small):
    """Horizon sends all of it with each change."""
    id = made(small)["id"]
    with small.api.write() as connection:
        aggregates.update_aggregate_row(connection, id, metadata={"cpu_allocation_ratio": "many"})
    again = act(small, id, "set_metadata", metadata={"cpu_allocation_ratio": "many", "ssd": "true"})
    assert again.json["aggregate"]["metadata"] == {"cpu_allocation_ratio": "many", "ssd": "true"}, again
    assert act(small, id, "set_metadata", metadata={"cpu_allocation_ratio": "more"}).status == 400


def test_zones_stay_while_nobody_knows_what_is_on_the_hosts(small, monkeypatch):
    small.host("kvm1")
    id = made(small, availability_zone="north")["id"]
    monkeypatch.setattr("magnetar_control.store.hosts.services.rows_of_cells", lambda *_args: [None])
    assert act(small, id, "add_host", host="kvm1").status == 409


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
