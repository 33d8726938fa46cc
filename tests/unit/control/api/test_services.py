# SPDX-License-Identifier: GPL-3.0-or-later
"""os-services: what operators see of agents and conductors, and what they do to hosts."""

import uuid

import pytest
from sqlalchemy import insert, select

from magnetar_control.store import allocations, conductors, hosts
from magnetar_control.store.tables import host_states, migrations

from .compute import CELL1, Compute, emptied

PATH = "/os-services"


def listed(compute, query="", version="2.53"):
    return compute.admin.get(f"{PATH}{query}", version).json["services"]


def moved(compute, **values):
    with compute.cell.write() as connection:
        connection.execute(insert(migrations).values(**{
            "uuid": str(uuid.uuid4()), "server_id": str(uuid.uuid4()), "project_id": "red", "user_id": "alice",
            "type": "migration", "status": "migrating", "source": "kvm1", "target": "kvm2",
            "created_at": "2026-11-21T10:00:00.000000", **values}))


def test_agents_and_conductors_are_listed(compute):
    id = compute.host("kvm1")
    compute.host("kvm2", seen=False)
    conductors.present(compute.cell, "c1:1", "c1")
    conductors.present(compute.cell, "c1:2", "c1")
    one, two, conductor = listed(compute)
    assert one.pop("updated_at")
    assert one == {"id": id, "binary": "nova-compute", "host": "kvm1", "zone": "nova", "status": "enabled",
                   "state": "up", "disabled_reason": None, "forced_down": False}
    assert (two["state"], two["updated_at"]) == ("down", None)
    assert (conductor["binary"], conductor["host"], conductor["zone"], conductor["state"]) == (
        "nova-conductor", "c1", "internal", "up")
    assert str(uuid.UUID(conductor["id"])) == conductor["id"]


def test_what_each_version_shows(small):
    small.host("kvm1")
    conductors.present(small.cell, "c1:1", "c1")
    for one in listed(small, version="2.10"):
        assert isinstance(one["id"], int)
        assert "forced_down" not in one
    for one in listed(small, version="2.11"):
        assert isinstance(one["id"], int)
        assert one["forced_down"] is False


def test_filters(small):
    small.host("kvm1")
    small.host("kvm2")
    conductors.present(small.cell, "c1:1", "c1")
    assert [one["host"] for one in listed(small, "?host=kvm2")] == ["kvm2"]
    assert [one["host"] for one in listed(small, "?binary=nova-conductor")] == ["c1"]
    assert listed(small, "?binary=nova-compute&host=c1") == []
    assert small.admin.get(f"{PATH}?colour=red", "2.74").status == 200
    assert small.admin.get(f"{PATH}?colour=red", "2.75").status == 400


def test_services_of_a_cell_that_does_not_answer(small, tmp_path, monkeypatch):
    from sqlalchemy.exc import OperationalError
    small.host("kvm1")

    def away(*_args):
        raise OperationalError("x", {}, Exception("away"))

    monkeypatch.setattr("magnetar_control.store.services._last_seen", away)
    assert listed(small, version="2.68") == []
    assert listed(small, version="2.69") == [{"binary": "nova-compute", "host": "kvm1", "status": "UNKNOWN"}]


def test_a_host_is_disabled_and_enabled_by_words(compute):
    compute.host("kvm1")
    body = {"host": "kvm1", "binary": "nova-compute"}
    assert compute.admin.put(f"{PATH}/disable", body).json == {"service": {**body, "status": "disabled"}}
    (one,) = listed(compute)
    assert (one["status"], one["disabled_reason"]) == ("disabled", None)
    reason = {"disabled_reason": "new fan"}
    assert compute.admin.put(f"{PATH}/disable-log-reason", {**body, **reason}).json == {
        "service": {**body, **reason, "status": "disabled"}}
    assert listed(compute)[0]["disabled_reason"] == "new fan"
    assert compute.cloud.hosts.get("kvm1").status == "MAINTENANCE"
    assert compute.admin.put(f"{PATH}/enable", body).json == {"service": {**body, "status": "enabled"}}
    (one,) = listed(compute)
    assert (one["status"], one["disabled_reason"]) == ("enabled", None)
    down = compute.admin.put(f"{PATH}/force-down", {**body, "forced_down": "true"}, "2.11")
    assert down.json == {"service": {**body, "forced_down": True}}
    (one,) = listed(compute)
    assert (one["state"], one["forced_down"]) == ("down", True)
    with compute.api.read() as connection:  # what the scheduler reads
        assert hosts.show(connection, "kvm1")["forced_down"]


@pytest.mark.parametrize(("word", "body", "version", "status"), [
    ("enable", {"host": "kvm1"}, "2.1", 400), ("enable", {"host": "kvm9", "binary": "nova-compute"}, "2.1", 404),
    ("disable", {"host": "kvm1", "binary": "nova-conductor"}, "2.1", 400),
    ("disable", {"host": "a b", "binary": "nova-compute"}, "2.1", 400),
    ("disable-log-reason", {"host": "kvm1", "binary": "nova-compute"}, "2.1", 400),
    ("disable-log-reason", {"host": "kvm1", "binary": "nova-compute", "disabled_reason": "x" * 256}, "2.1", 400),
    ("disable-log-reason", {"host": "kvm1", "binary": "nova-compute", "disabled_reason": ""}, "2.1", 400),
    ("force-down", {"host": "kvm1", "binary": "nova-compute", "forced_down": True}, "2.10", 404),
    ("force-down", {"host": "kvm1", "binary": "nova-compute"}, "2.11", 400),
    ("force-down", {"host": "kvm1", "binary": "nova-compute", "forced_down": "perhaps"}, "2.11", 400),
    ("enable", {"host": "kvm1", "binary": "nova-compute"}, "2.53", 404), ("paint", {"host": "kvm1"}, "2.1", 404)])
def test_wrong_words_are_refused(small, word, body, version, status):
    small.host("kvm1")
    assert small.admin.put(f"{PATH}/{word}", body, version).status == status


def test_a_host_is_changed_by_uuid(compute):
    id = compute.host("kvm1")
    reply = compute.admin.put(f"{PATH}/{id}", {"status": "disabled", "disabled_reason": "new fan"}, "2.53")
    shown = reply.json["service"]
    assert (shown["id"], shown["status"], shown["disabled_reason"], shown["state"]) == (id, "disabled", "new fan", "up")
    shown = compute.admin.put(f"{PATH}/{id}", {"forced_down": True}, "2.53").json["service"]
    assert (shown["forced_down"], shown["state"], shown["disabled_reason"]) == (True, "down", "new fan")
    shown = compute.admin.put(f"{PATH}/{id}", {"status": "enabled", "forced_down": False}, "2.53").json["service"]
    assert (shown["forced_down"], shown["state"], shown["disabled_reason"]) == (False, "up", None)


@pytest.mark.parametrize(("id", "body", "status"), [
    (None, {}, 400), (None, {"status": "off"}, 400), (None, {"disabled_reason": "x"}, 400),
    (None, {"status": "enabled", "disabled_reason": "x"}, 400), (None, {"colour": "red"}, 400),
    (None, {"forced_down": 7}, 400), ("x", {"status": "enabled"}, 400),
    ("00000000-0000-4000-8000-000000000000", {"status": "enabled"}, 404)])
def test_wrong_changes_are_refused(small, id, body, status):
    own = small.host("kvm1")
    assert small.admin.put(f"{PATH}/{id or own}", body, "2.53").status == status


def test_what_may_be_claimed_follows_the_settings(sqlite_three, tmp_path):
    api = Compute(sqlite_three, tmp_path, cpu_allocation_ratio=2.0)
    id = api.host("kvm1")
    api.admin.put(f"{PATH}/{id}", {"status": "disabled"}, "2.53")
    with api.api.read() as connection:
        assert hosts.show(connection, "kvm1")["vcpus_limit"] == 16
    emptied(sqlite_three)


def test_conductors_are_not_changed(small):
    conductors.present(small.cell, "c1:1", "c1")
    reply = small.admin.put(f"{PATH}/{listed(small)[0]['id']}", {"status": "disabled"}, "2.53")
    assert (reply.status, reply.message) == (
        400, "Updating a nova-conductor service is not supported. Only nova-compute services can be updated.")


def test_a_host_with_evacuated_servers_stays_down(small):
    id = small.host("kvm1")
    small.admin.put(f"{PATH}/{id}", {"forced_down": True}, "2.53")
    moved(small, type="evacuation", status="done")
    assert small.admin.put(f"{PATH}/{id}", {"forced_down": False}, "2.53").status == 400
    body = {"host": "kvm1", "binary": "nova-compute", "forced_down": False}
    assert small.admin.put(f"{PATH}/force-down", body, "2.11").status == 400


def test_an_empty_host_is_removed_with_all_that_is_kept_of_it(compute):
    id = compute.host("kvm1")
    aggregate = compute.admin.post("/os-aggregates", {"aggregate": {"name": "a"}}).json["aggregate"]["id"]
    compute.admin.post(f"/os-aggregates/{aggregate}/action", {"add_host": {"host": "kvm1"}})
    assert compute.admin.delete(f"{PATH}/{id}", "2.53").status == 204
    assert listed(compute) == []
    assert compute.admin.get(f"/os-aggregates/{aggregate}").json["aggregate"]["hosts"] == []
    with compute.cell.read() as connection:
        assert connection.execute(select(host_states)).all() == []
    again = compute.admin.delete(f"{PATH}/{id}", "2.53")
    assert (again.status, again.message) == (404, f"Service {id} not found.")


def test_a_host_is_removed_by_number_before_2_53(small):
    small.host("kvm1")
    number = listed(small, version="2.52")[0]["id"]
    assert small.admin.delete(f"{PATH}/x", "2.52").status == 400
    assert small.admin.delete(f"{PATH}/{number}", "2.53").status == 400
    assert small.admin.delete(f"{PATH}/{number}", "2.52").status == 204


def test_a_host_in_use_stays(small):
    id = small.host("kvm1")
    small.host("kvm2")
    server = small.server(host="kvm1")
    reply = small.admin.delete(f"{PATH}/{id}", "2.53")
    assert reply.status == 409
    assert "hosting instances" in reply.message
    with small.cell.write() as connection:
        connection.exec_driver_sql("DELETE FROM servers")
    moved(small, source="kvm2", target="kvm1")
    assert "in-progress migrations" in small.admin.delete(f"{PATH}/{id}", "2.53").message
    with small.cell.write() as connection:
        connection.exec_driver_sql("UPDATE migrations SET status = 'completed'")
    with small.api.write() as connection:
        assert allocations.claim(connection, server, server, id, allocations.Amounts(1, 64, 1), cell_id=CELL1)
    assert small.admin.delete(f"{PATH}/{id}", "2.53").status == 409
    with small.api.write() as connection:
        allocations.release(connection, server)
    assert small.admin.delete(f"{PATH}/{id}", "2.53").status == 204


def test_a_conductor_that_is_no_more_is_removed(small):
    conductors.present(small.cell, "c1:1", "c1")
    assert small.admin.delete(f"{PATH}/{listed(small)[0]['id']}", "2.53").status == 204
    assert listed(small) == []


def test_services_are_for_administrators(small):
    id = small.host("kvm1")
    for caller in (small.alice, small.rita):
        assert caller.get(PATH).status == 403
        assert caller.put(f"{PATH}/{id}", {"status": "disabled"}, "2.53").status == 403
        assert caller.put(f"{PATH}/disable", {"host": "kvm1", "binary": "nova-compute"}).status == 403
        assert caller.delete(f"{PATH}/{id}", "2.53").status == 403


def test_queries_do_not_grow(small):
    for number in range(6):
        small.host(f"kvm{number}")
    with small.counted() as seen:
        assert len(listed(small)) == 6
    assert len(seen) <= 5
