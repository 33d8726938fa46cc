# SPDX-License-Identifier: GPL-3.0-or-later
"""os-services: what is done to hosts and its traces, cells that do not answer, and how many queries a list is."""

import uuid

from sqlalchemy import insert, select, update

from magnetar_control.api.network.app import network_application
from magnetar_control.services.network.tables import security_group_hosts
from magnetar_control.store.claims import allocations
from magnetar_control.store.engine.tables import host_states, migrations
from magnetar_control.store.hosts import hosts
from magnetar_control.store.hosts.services import fetch_service_rows
from tests.support.control.serving import ADMIN, Asker, authenticate

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


def test_services_of_a_cell_that_does_not_answer(small, tmp_path, monkeypatch):
    from sqlalchemy.exc import OperationalError
    small.host("kvm1")

    def away(*_args):
        raise OperationalError("x", {}, Exception("away"))

    monkeypatch.setattr("magnetar_control.store.hosts.services._last_seen", away)
    assert listed(small, version="2.68") == []
    assert listed(small, version="2.69") == [{"binary": "nova-compute", "host": "kvm1", "status": "UNKNOWN"}]


def test_a_service_tells_why_its_host_is_refused(compute):
    compute.host("kvm1")
    with compute.cell.write() as connection:
        connection.execute(update(host_states).values(problem="AUTO: its agent says that it is host 'stranger'"))
    (service,) = listed(compute)
    assert (service["state"], service["status"]) == ("down", "enabled")
    assert service["disabled_reason"] == "AUTO: its agent says that it is host 'stranger'"
    assert not compute.cloud.hosts.all(fresh=True)["kvm1"].up
    compute.admin.put(f"{PATH}/disable-log-reason", {
        "host": "kvm1", "binary": "nova-compute", "disabled_reason": "fan"})
    assert listed(compute)[0]["disabled_reason"] == "fan"


def test_services_of_compute_hosts_are_network_agents(compute):
    compute.host("kvm1")
    application = network_application(compute.cloud.services.network, authenticate,
                                      lambda: fetch_service_rows(compute.store, "nova", 60))
    (agent,) = Asker(application, ADMIN)("GET", "/v2.0/agents")["agents"]
    assert (agent["host"], agent["alive"], agent["availability_zone"]) == ("kvm1", True, "nova")
    with compute.api.read() as connection:
        created_at = connection.execute(select(hosts.hosts.c.created_at)).scalar_one()
    assert agent["created_at"] == f"{created_at[:19]}Z"


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
        assert hosts.fetch_host_row(connection, "kvm1").forced_down


def test_disabling_changes_nothing_of_what_may_be_claimed(sqlite_three, tmp_path):
    """The host's watch has set it, of settings and aggregates (``test_limits.py`` of the scheduler)."""
    api = Compute(sqlite_three, tmp_path, cpu_allocation_ratio=2.0)
    id = api.host("kvm1")
    api.admin.put(f"{PATH}/{id}", {"status": "disabled"}, "2.53")
    with api.api.read() as connection:
        assert hosts.fetch_host_row(connection, "kvm1").vcpus_limit == 128
    emptied(sqlite_three)


def test_an_empty_host_is_removed_with_all_that_is_kept_of_it(compute):
    id = compute.host("kvm1")
    aggregate = compute.admin.post("/os-aggregates", {"aggregate": {"name": "a"}}).json["aggregate"]["id"]
    compute.admin.post(f"/os-aggregates/{aggregate}/action", {"add_host": {"host": "kvm1"}})
    with compute.api.write() as connection:
        connection.execute(insert(security_group_hosts), [
            {"group_id": str(uuid.uuid4()), "host": host, "due": True} for host in ("kvm1", "kvm2")])
    assert compute.admin.delete(f"{PATH}/{id}", "2.53").status == 204
    assert listed(compute) == []
    assert compute.admin.get(f"/os-aggregates/{aggregate}").json["aggregate"]["hosts"] == []
    with compute.api.read() as connection:
        assert connection.execute(select(security_group_hosts.c.host)).scalars().all() == ["kvm2"]
    with compute.cell.read() as connection:
        assert connection.execute(select(host_states)).all() == []
    again = compute.admin.delete(f"{PATH}/{id}", "2.53")
    assert (again.status, again.message) == (404, f"Service {id} not found.")


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
        assert allocations.claim_host_resources(connection, server, server, id, allocations.Amounts(1, 64, 1),
                                                cell_id=CELL1)
    assert small.admin.delete(f"{PATH}/{id}", "2.53").status == 409
    with small.api.write() as connection:
        allocations.release_consumer_claims(connection, server)
    assert small.admin.delete(f"{PATH}/{id}", "2.53").status == 204


def test_queries_do_not_grow(small):
    for number in range(6):
        small.host(f"kvm{number}")
    with small.counted() as seen:
        assert len(listed(small)) == 6
    assert len(seen) <= 5
