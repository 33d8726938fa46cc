# SPDX-License-Identifier: GPL-3.0-or-later
"""A deleted server can be had back for a while, with all that it has; then it is gone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from magnetar_control.conductor.flows import server_soft_delete
from magnetar_control.conductor.flows.flows import CELL
from magnetar_control.conductor.periodic.audit import run_with_state
from magnetar_control.store.servers import servers
from magnetar_core.power import SOFT_DELETED
from tests.support.control.counting import counted
from tests.support.waiting import eventually
from tests.unit.control.moves.clouds import at, check, claims, row
from tests.unit.control.moves.dying import ask as ask_for
from tests.unit.control.moves.dying import take
from tests.unit.control.shelve.shelving import settings

from .keeping import ENGINES, HOUR

pytestmark = ENGINES


def test_it_is_off_keeps_all_and_comes_back(owner):
    before = owner.server(networks="auto", flavorRef="small", name="web1")
    id, host = before["id"], owner.host_of(before["id"])
    volume = owner.volume(host=owner.other(host))
    assert owner.attach(id, volume).status == 200
    eventually(lambda: owner.state(volume) == "in-use")
    held, ports = claims(owner.cloud, id), owner.ports(id)
    deleted = owner.delete(id)
    assert (deleted["OS-EXT-STS:vm_state"], deleted["OS-EXT-STS:power_state"]) == (SOFT_DELETED, 4)
    assert check(owner.cloud, id)["power_state"] == "off" and owner.host_of(id) == host
    assert (claims(owner.cloud, id), owner.ports(id)) == (held, ports)
    assert owner.state(volume) == "in-use" and [one["volumeId"] for one in owner.attached(id)] == [volume]
    last = owner.last_action(id)
    assert (last["action"], [one["event"] for one in last["events"]]) == ("delete", ["compute_soft_delete_instance"])
    assert owner.act(id, "restore")["status"] == "ACTIVE"
    assert owner.state_of(id) == ("active", None, False)
    assert check(owner.cloud, id)["power_state"] == "running"
    assert (claims(owner.cloud, id), owner.ports(id), owner.state(volume)) == (held, ports, "in-use")
    last = owner.last_action(id)
    assert (last["action"], [one["event"] for one in last["events"]]) == ("restore", ["compute_restore_instance"])
    assert owner.act(id, "os-stop")["status"] == "SHUTOFF"


@pytest.mark.parametrize("before", ["os-stop", "pause", "suspend", "rescue"])
def test_from_every_state_it_comes_back_running(owner, before):
    id = owner.server(flavorRef="small")["id"]
    assert owner.call.act(id, before).status in (200, 202)
    owner.call.settled(id)
    owner.delete(id)
    assert check(owner.cloud, id)["power_state"] == "off"
    assert owner.act(id, "restore")["status"] == "ACTIVE"
    found = check(owner.cloud, id)
    assert (found["power_state"], found["rescue"]) == ("running", None)


def test_a_shelved_server_loses_its_image_and_not_its_disk(owner):
    id = owner.server(flavorRef="small", name="web2")["id"]
    with settings(owner.cloud, shelved_offload_time=-1):
        owner.act(id, "shelve")
    owner.delete(id)
    assert owner.named("web2-shelved") == [] and row(owner.cloud, id).shelved_image_id is None
    assert owner.act(id, "restore")["status"] == "ACTIVE"


def test_a_resize_that_waits_is_confirmed(owner):
    id = owner.server(flavorRef="small")["id"]
    owner.act(id, "resize", {"flavorRef": "large"})
    host = owner.host_of(id)
    owner.delete(id)
    [(_consumer, (place, _amounts))] = claims(owner.cloud, id).items()
    assert place == host
    restored = owner.act(id, "restore")
    assert (restored["status"], owner.host_of(id)) == ("ACTIVE", host)
    assert owner.act(id, "os-stop")["status"] == "SHUTOFF"


def test_to_delete_it_again_lets_its_time_begin_anew(owner):
    id = owner.server(flavorRef="small")["id"]
    owner.delete(id)
    owner.age(id, HOUR - 1)
    before = row(owner.cloud, id).soft_deleted_at
    owner.delete(id)
    assert row(owner.cloud, id).soft_deleted_at > before


def test_forced_it_goes_at_once(owner):
    for first in (lambda _id: None, owner.delete):
        id = owner.server(networks="auto", flavorRef="small")["id"]
        first(id)
        assert owner.call.act(id, "forceDelete").status == 202
        owner.gone(id)
        assert claims(owner.cloud, id) == {} and at(owner.cloud, id) == {} and owner.ports(id) == []


def test_its_time_is_over(owner):
    old, young = (owner.server(flavorRef="small")["id"] for _each in range(2))
    owner.delete(old)
    owner.delete(young)
    owner.age(old, HOUR + 1)
    with settings(owner.cloud, reclaim_instance_interval=0):
        assert server_soft_delete.reclaim_expired(owner.cloud.parts.working) == 0
    assert server_soft_delete.reclaim_expired(owner.cloud.parts.working) == 1
    assert server_soft_delete.reclaim_expired(owner.cloud.parts.working) == 0
    owner.gone(old)
    assert claims(owner.cloud, old) == {} and at(owner.cloud, old) == {}
    assert owner.call.act(old, "restore").status == 404
    assert owner.act(young, "restore")["status"] == "ACTIVE"
    owner.age(young, HOUR + 1)
    assert server_soft_delete.reclaim_expired(owner.cloud.parts.working) == 0, "it is not soft-deleted any more"


def test_where_nothing_is_over_one_look_is_all(owner):
    id, working = owner.server(flavorRef="small")["id"], owner.cloud.parts.working
    owner.delete(id)
    with counted(here=True, cell=working.database) as seen:
        assert server_soft_delete.reclaim_expired(working) == 0
    assert len(seen) == 1, seen
    with settings(owner.cloud, reclaim_instance_interval=0), counted(here=True, cell=working.database) as seen:
        assert server_soft_delete.reclaim_expired(working) == 0
    assert seen == []


def test_the_audit_finds_nothing_and_a_guest_that_is_off_is_not_followed(owner):
    cloud, id = owner.cloud, owner.server(networks="auto", flavorRef="small")["id"]
    owner.delete(id)
    parts = cloud.parts
    assert run_with_state(parts.store, parts.working.agents, cloud.services, 0.1)[0] == []
    assert owner.state_of(id) == (SOFT_DELETED, None, True)


def test_a_restore_that_fails_leaves_it_soft_deleted(owner):
    id = owner.server(flavorRef="small")["id"]
    owner.delete(id)
    with owner.cloud.parts.agents.client(owner.cloud.hosts[owner.host_of(id)]) as agent:
        agent.delete("server", id)
    assert owner.act(id, "restore")["status"] == "SOFT_DELETED"
    assert owner.state_of(id) == (SOFT_DELETED, None, True)
    assert owner.last_action(id)["message"] == "Error"


def test_a_host_that_is_silent_is_waited_for(owner):
    cloud, id = owner.cloud, owner.server(flavorRef="small")["id"]
    host = owner.host_of(id)
    for request, status, wanted in (
            (lambda: owner.call.delete(f"/v2.1/servers/{id}"), 204, (SOFT_DELETED, None, True)),
            (lambda: owner.call.act(id, "restore"), 202, ("active", None, False))):
        cloud.kill_agent(host)
        try:
            assert request().status == status  # nobody has noticed yet that it is down
            before = row(cloud, id)
            assert before.task_state in ("soft-deleting", "restoring") and before.deleted_at is None
        finally:
            cloud.start_agent(host)
            cloud.wait_agent(host)
        eventually(lambda wanted=wanted: owner.state_of(id) == wanted)
    assert check(cloud, id)["power_state"] == "running"


def test_it_does_not_stop_a_conductor_that_notes_something(owner):
    """Both lock the action first, and then the server's row."""
    cloud, id = owner.cloud, owner.server(flavorRef="small")["id"]
    work = take(cloud, ask_for(cloud, id, "pause"))
    with ThreadPoolExecutor(1) as others:
        with work.database.write() as connection:
            work.confirm_lease(connection)
            asked = others.submit(owner.call.delete, f"/v2.1/servers/{id}")
            if work.database.kind == "postgresql":
                eventually(lambda: connection.execute(text("SELECT 1 FROM pg_locks WHERE NOT granted")).first())
            servers.update_server_progress(connection, id, "pausing", progress=50)
        assert asked.result(120).status == 204
    CELL["pause"](work)
    assert owner.call.settled(id)["status"] == "SOFT_DELETED"
