# SPDX-License-Identifier: GPL-3.0-or-later
"""A drain moves what can move, says why others stay, and ends when its host is enabled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.waiting import eventually
from tests.unit.control.evacuate.evacuating import Evacuating
from tests.unit.control.moves.clouds import check, flavors, remove, row
from tests.unit.control.moves.inside import Inside

from .draining import Draining


@pytest.fixture(scope="module")
def cloud() -> Iterator[Inside]:
    with Inside(hosts=3, host_down_after=600.0) as made:
        flavors(made)
        yield made


@pytest.fixture
def admin(cloud: Inside) -> Iterator[Draining]:
    """All hosts are enabled and without servers afterwards."""
    made = Draining(cloud)
    yield made
    servers = cloud.admin.get("/v2.1/servers?all_tenants=1").json["servers"]
    for server in servers:
        cloud.admin.act(server["id"], "unlock")
    for host in cloud.hosts:
        made.enabled(host)
    remove(cloud, [server["id"] for server in servers])


def test_running_servers_move_live_and_stopped_ones_cold(cloud: Inside, admin: Draining) -> None:
    running, stopped = admin.boot("kvm1", name="running"), admin.boot("kvm1", name="stopped")
    admin.act(stopped, "os-stop")
    found = admin.drained("kvm1", reason="new memory")
    assert (found["state"], found["reason"], found["stays"], found["waiting"]) == ("maintenance", "new memory", [], [])
    assert {(server["name"], server["how"], server["to"]) for server in found["moved"]} == {
        ("running", "live", row(cloud, running).host), ("stopped", "cold", row(cloud, stopped).host)}
    assert check(cloud, running)["power_state"] == "running"
    assert check(cloud, stopped)["power_state"] == "off"
    assert admin.actions(running) == ["create", "live-migration"]
    assert admin.actions(stopped)[-2:] == ["migrate", "confirmResize"]
    service = cloud.admin.get("/v2.1/os-services?host=kvm1&binary=nova-compute").json["services"][0]
    assert (service["status"], service["disabled_reason"]) == ("disabled", "new memory")
    again = admin.put("kvm1").json
    assert (again["steps"], again["changed"]) == ([], False), again
    admin.enabled("kvm1")
    assert admin.left("kvm1") == []
    assert admin.shown("kvm1")["state"] == "enabled"


def test_a_dry_run_names_the_new_hosts_and_changes_nothing(cloud: Inside, admin: Draining) -> None:
    moves, locked = admin.boot("kvm1", name="moves"), admin.boot("kvm1", name="locked")
    assert cloud.admin.act(locked, "lock", {"locked_reason": "audit"}, "2.73").status == 202
    planned = admin.put("kvm1", query="?dry_run=true").json
    assert [step["verb"] for step in planned["steps"]] == ["record", "disable", "move"]
    [move], [stay] = planned["resource"]["moved"], planned["resource"]["stays"]
    assert (move["name"], move["how"], move["to"] in ("kvm2", "kvm3")) == ("moves", "live", True)
    assert stay["name"] == "locked" and "An administrator has locked it (audit)" in stay["reason"]
    assert admin.shown("kvm1")["drain"] is None and admin.left("kvm1") == []
    assert row(cloud, moves).host == "kvm1"
    assert cloud.admin.get("/v2.1/os-services?host=kvm1").json["services"][0]["status"] == "enabled"


def test_servers_that_may_not_move_stay_with_a_reason_until_the_next_request(cloud: Inside, admin: Draining) -> None:
    locked, suspended = admin.boot("kvm1", name="locked"), admin.boot("kvm1", name="suspended")
    assert cloud.admin.act(locked, "lock").status == 202
    admin.act(suspended, "suspend")
    found = admin.drained("kvm1")
    assert found["moved"] == [] and found["volumes"] == 0
    assert {server["name"]: server["reason"].split(".")[0] for server in found["stays"]} == {
        "locked": "An administrator has locked it",
        "suspended": "It is suspended, and its saved memory cannot be moved"}
    assert admin.put("kvm1").json["steps"] == []
    assert cloud.admin.act(locked, "unlock").status == 202
    found = admin.drained("kvm1")
    assert [server["name"] for server in found["moved"]] == ["locked"]
    assert [server["name"] for server in found["stays"]] == ["suspended"]
    cloud.admin.delete(f"/v2.1/servers/{suspended}")
    assert cloud.admin.settled(suspended) is None
    eventually(lambda: admin.shown("kvm1")["stays"] == [])


def test_servers_of_the_last_host_stay(cloud: Inside, admin: Draining) -> None:
    server = admin.boot("kvm3", name="last")
    assert admin.drained("kvm1")["moved"] == admin.drained("kvm2")["moved"] == []
    found = admin.drained("kvm3")
    [stay] = found["stays"]
    assert stay["id"] == server and "No valid host was found" in stay["reason"], stay
    assert check(cloud, server)["power_state"] == "running"
    planned = admin.put("kvm3", query="?dry_run=true").json
    assert planned["steps"] == [] and planned["resource"]["stays"][0]["id"] == server
    admin.enabled("kvm1")
    assert [(one["id"], one["to"]) for one in admin.drained("kvm3")["moved"]] == [(server, "kvm1")]


def test_hosts_that_are_drained_together_do_not_exchange_servers(cloud: Inside, admin: Draining) -> None:
    ids = [admin.boot(host) for host in ("kvm1", "kvm2", "kvm1", "kvm2")]
    for host in ("kvm1", "kvm2"):
        assert admin.put(host, query="?wait=0").status == 202
    eventually(lambda: [admin.shown(host)["drain"] for host in ("kvm1", "kvm2")] == ["drained", "drained"] and all(
        row(cloud, id).host == "kvm3" for id in ids))
    for id in ids:
        check(cloud, id)


def test_enabling_the_service_ends_the_drain(cloud: Inside, admin: Draining) -> None:
    server = admin.boot("kvm1")
    assert cloud.admin.act(server, "lock").status == 202
    admin.drained("kvm1")
    service = cloud.admin.get("/v2.1/os-services?host=kvm1", "2.53").json["services"][0]["id"]
    assert cloud.admin.put(f"/v2.1/os-services/{service}", {"status": "enabled"}, "2.53").status == 200
    eventually(lambda: admin.shown("kvm1")["drain"] is None)
    assert row(cloud, server).host == "kvm1" and admin.left("kvm1") == []


def test_a_drain_ends_while_a_request_waits_for_it(cloud: Inside, admin: Draining,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    working = cloud.parts.working
    monkeypatch.setattr(working, "settings", replace(working.settings, drain_parallel_moves=0))
    server = admin.boot("kvm1")
    waits = admin.put("kvm1", query="?wait=0").json["operation"]["id"]
    eventually(lambda: admin.shown("kvm1")["drain"] == "draining")
    assert [one["id"] for one in admin.shown("kvm1")["waiting"]] == [server]
    admin.enabled("kvm1")
    eventually(lambda: cloud.admin.get(f"/v1/operations/{waits}").json["status"] == "failed", pause=0.2)
    assert "was ended meanwhile" in cloud.admin.get(f"/v1/operations/{waits}").json["error"]["message"]
    assert row(cloud, server).host == "kvm1"


def test_servers_that_are_shelved_are_offloaded(cloud: Inside, admin: Draining,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    working = cloud.parts.working
    monkeypatch.setattr(working, "settings", replace(working.settings, shelved_offload_time=-1))
    server = admin.boot("kvm1")
    assert admin.act(server, "shelve")["status"] == "SHELVED"  # type: ignore[index]
    [moved] = admin.drained("kvm1")["moved"]
    assert moved == {"id": server, "name": "web1", "how": "offload"}
    assert row(cloud, server).host is None


def test_what_is_refused(cloud: Inside, admin: Draining) -> None:
    assert admin.put("kvm9").status == 404
    reply = admin.put("kvm1", "empty")
    assert reply.status == 400 and reply.json["error"]["details"]["field"] == "state"
    reply = admin.put("kvm1", "enabled", reason="new memory")
    assert reply.status == 400 and reply.json["error"]["details"]["field"] == "reason"
    bob = Draining(cloud)
    bob.admin = cloud.caller("bob", "blue")
    assert [bob.put("kvm1").status, bob.admin.get("/v1/host_maintenance/kvm1").status] == [403, 403]
    assert admin.shown("kvm1")["drain"] is None


def test_servers_that_are_deleted_or_arrive_meanwhile(cloud: Inside, admin: Draining) -> None:
    """A deleted server leaves no result, and one that arrives on a drained host is moved, too."""
    deleted = admin.boot("kvm1", name="deleted")
    assert cloud.admin.act(deleted, "lock").status == 202
    assert [server["name"] for server in admin.drained("kvm1")["stays"]] == ["deleted"]
    cloud.admin.delete(f"/v2.1/servers/{deleted}")
    assert cloud.admin.settled(deleted) is None
    arrives = admin.boot("kvm2", name="arrives")
    args = {"host": "kvm1", "force": True, "block_migration": "auto"}
    assert cloud.admin.act(arrives, "os-migrateLive", args, "2.30").status == 202
    eventually(lambda: admin.actions(arrives) == ["create", "live-migration", "live-migration"], pause=0.2)
    eventually(lambda: [server["id"] for server in admin.shown("kvm1")["moved"]] == [arrives], pause=0.2)
    assert admin.shown("kvm1")["stays"] == [] and row(cloud, arrives).host != "kvm1"


def test_a_host_that_does_not_answer_is_named(cloud: Inside, admin: Draining) -> None:
    server, operator = admin.boot("kvm1"), Evacuating(cloud)
    operator.down("kvm1")
    try:
        reply = admin.put("kvm1")
        assert reply.status == 409 and "does not answer" in reply.json["error"]["message"], reply
        assert admin.shown("kvm1")["waiting"] == [{"id": server, "name": "web1"}]
    finally:
        operator.up("kvm1")
    eventually(lambda: admin.shown("kvm1")["drain"] == "drained", pause=0.2)
    assert admin.shown("kvm1")["message"] is None and row(cloud, server).host != "kvm1"
