# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that dies is fenced, and its servers are evacuated by their policies."""

import logging
import threading
from dataclasses import replace

import orjson
import pytest
from sqlalchemy import select, update

from magnetar_control.conductor.availability import incident_moves
from magnetar_control.conductor.flows.server_evacuate import Evacuation
from magnetar_control.fencing.host_fencing import HostFencing
from magnetar_control.scheduler.choose import NoValidHost
from magnetar_control.store.engine import tables
from magnetar_control.store.hosts.incidents import MOVING
from tests.support.control.engines import engines
from tests.support.waiting import eventually
from tests.unit.control.moves.clouds import row

from .dying_hosts import four_hosts

pytestmark = [engines("automatic evacuation, postgres"), pytest.mark.slow]


@pytest.fixture(scope="module")
def cloud(databases, agent):
    """On each engine in turn."""
    with four_hosts(agent, databases=databases) as found:
        yield found


def events(caplog):
    """The event types of incidents that receivers were sent."""
    return [record.message for record in caplog.records if record.message.startswith("incident.")]


def test_servers_are_evacuated_by_priority(admin, agent, caplog):
    caplog.set_level(logging.INFO)
    before = len(admin.order())
    last = admin.boot("kvm1", "last", metadata={"ha_priority": "0"})
    usual = admin.boot("kvm1", "usual")
    stays = admin.boot("kvm1", "stays", metadata={"ha": "never", "HA_Enabled": "true"})
    first = admin.boot("kvm1", "first", metadata={"ha_priority": "9"})
    masakari = admin.boot("kvm1", "masakari", metadata={"HA_Enabled": "True"})
    admin.dies("kvm1")
    found = admin.until("done", "kvm1")
    assert agent.power("kvm1") == "off" and agent.actions("kvm1")[:2] == ["off", "status"]
    assert admin.order()[before:] == ["first", "masakari", "usual", "last"]
    assert (found["moved"], found["failed"], found["remaining"]) == (4, 0, 1)
    assert "4 were evacuated, 0 could not be, and 1 remain" in found["message"]
    assert {server["name"]: (server["policy"], server["priority"]) for server in found["servers"]} == {
        "first": ("best-effort", 9), "masakari": ("always", 5), "usual": ("best-effort", 5), "stays": ("never", 5),
        "last": ("best-effort", 0)}
    for id in (last, usual, first, masakari):
        assert admin.runs_elsewhere(id)
    assert row(admin.cloud, stays).host == "kvm1" and admin.evacuations(stays) == 0
    assert None not in (found["noticed_at"], found["fencing_at"], found["fenced_at"], found["finished_at"])
    eventually(lambda: events(caplog) == ["incident.start", "incident.fence.start", "incident.fence.end",
                                          "incident.end"])
    admin.look()  # the fenced host is no new incident
    assert len(admin.incidents()) == 1


def test_so_many_servers_at_the_same_time(admin, monkeypatch):
    conductor = admin.cloud.parts.working
    monkeypatch.setattr(conductor, "settings", replace(conductor.settings, availability_parallel_moves=1))
    ids = [admin.boot("kvm1", f"web{number}") for number in range(3)]
    admin.dies("kvm1")

    def look():
        admin.look()
        states = [state for state, _host in admin.states("kvm1").values()]
        assert states.count(MOVING) <= 1
        return admin.incident("kvm1")["state"] == "done"

    eventually(look, pause=0.05)
    assert all(row(admin.cloud, id).host != "kvm1" for id in ids)


def test_two_conductors_evacuate_each_server_once(admin, agent):
    ids = [admin.boot("kvm1", f"web{number}") for number in range(3)]
    admin.dies("kvm1")
    threads = [threading.Thread(target=admin.until, args=("done", "kvm1")) for _twice in range(2)]
    admin.look()  # so that there is an incident
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(admin.incidents()) == 1 and admin.incident("kvm1")["moved"] == 3
    assert [admin.evacuations(id) for id in ids] == [1, 1, 1]
    assert agent.actions("kvm1").count("off") == 1


@pytest.fixture
def full(monkeypatch):
    """No host has room for an evacuated server, until this is undone."""
    def choose(_move):
        raise NoValidHost("No valid host was found.", explanation="They are full.")

    with monkeypatch.context() as patch:
        patch.setattr(Evacuation, "choose", choose)
        yield patch


def fail_once(admin):
    """Look until the first evacuations from kvm1 have failed."""
    def has_failed():
        admin.look()
        return all(server["attempts"] and server["state"] != MOVING for server in admin.incident("kvm1")["servers"])

    eventually(has_failed, pause=0.05)


def test_best_effort_is_tried_once_and_always_until_it_succeeds(admin, full):
    once, always = admin.boot("kvm1", "once"), admin.boot("kvm1", "again", metadata={"ha": "always"})
    admin.dies("kvm1")
    fail_once(admin)
    found = {server["name"]: server for server in admin.incident("kvm1")["servers"]}
    assert "They are full" in found["once"]["reason"] and "They are full" in found["again"]["reason"]
    assert (found["once"]["state"], found["again"]["state"]) == ("failed", "waiting")
    full.undo()
    admin.look()
    assert admin.evacuations(always) == 1  # its pause is not over
    assert admin.incident("kvm1")["state"] == "evacuating"
    with admin.cloud.parts.working.database.write() as connection:
        connection.execute(update(tables.incident_servers).values(not_before=None))
    found = admin.until("done", "kvm1")
    assert (found["moved"], found["failed"]) == (1, 1)
    assert (admin.evacuations(once), admin.evacuations(always)) == (1, 2)
    assert row(admin.cloud, once).host == "kvm1" and row(admin.cloud, always).host != "kvm1"


def test_a_server_that_cannot_be_evacuated(admin):
    paused = admin.boot("kvm1", "paused")
    volume = admin.volume(host="kvm1")
    pinned = admin.boot("kvm1", "pinned", metadata={"ha": "always"})
    assert admin.attach(pinned, volume).status == 200
    assert admin.call.act(paused, "pause").status == 202
    assert admin.call.settled(paused)["status"] == "PAUSED"
    admin.dies("kvm1")
    found = admin.until("done", "kvm1")
    reasons = {server["name"]: server["reason"] for server in found["servers"]}
    assert found["failed"] == 2 and "It is in vm_state paused" in reasons["paused"]
    assert f"Volume {volume} of the server lies on host kvm1" in reasons["pinned"]


def test_servers_that_others_move_or_delete(admin):
    moved, deleted = admin.boot("kvm1", "moved", metadata={"ha": "never"}), admin.boot("kvm1", "deleted")
    admin.dies("kvm1")
    with admin.cloud.parts.working.database.write() as connection:  # someone deletes it
        connection.execute(update(tables.servers).where(tables.servers.c.id == deleted).values(task_state="deleting"))
    admin.until("evacuating", "kvm1")
    assert admin.evacuated(moved)["OS-EXT-SRV-ATTR:host"] != "kvm1"
    with admin.cloud.parts.working.database.write() as connection:
        connection.execute(update(tables.servers).where(tables.servers.c.id == deleted).values(task_state=None))
    admin.call.delete(f"/v2.1/servers/{deleted}")
    assert admin.call.settled(deleted) is None
    admin.until("done", "kvm1")
    assert admin.states("kvm1") == {"moved": ("moved", row(admin.cloud, moved).host), "deleted": ("remains", None)}


def test_a_host_that_is_unfenced_meanwhile(admin, full):
    """Servers that are not evacuated yet stay on it. It is judged again only after it was heard."""
    admin.boot("kvm1", "again", metadata={"ha": "always"})
    admin.dies("kvm1")
    fail_once(admin)
    full.undo()
    HostFencing(admin.cloud.parts.store, admin.cloud.parts.settings).unfence_host("kvm1", "test")
    found = admin.until("done", "kvm1")
    assert found["servers"][0]["reason"] == incident_moves.UNFENCED
    admin.look()
    assert len(admin.incidents()) == 1  # although it is silent still
    admin.be_silent("kvm1")
    admin.look()
    assert len(admin.incidents()) == 2


def test_a_stored_typo_is_logged_once_and_counts_as_absent(admin, caplog):
    id = admin.boot("kvm1", "typo")
    with admin.cloud.parts.working.database.write() as connection:
        connection.execute(update(tables.servers).where(tables.servers.c.id == id).values(
            metadata=orjson.dumps({"ha": "allways", "ha_priority": "10"}).decode()))
    admin.dies("kvm1")
    found = admin.until("done", "kvm1")
    assert [(server["policy"], server["priority"], server["state"]) for server in found["servers"]] == [
        ("best-effort", 5, "moved")]
    texts = [record.message for record in caplog.records if "so it is ignored" in record.message]
    assert texts == [
        f"server {id}: metadata ha must be one of always, best-effort, never, and is 'allways', so it is ignored",
        f"server {id}: metadata ha_priority must be a number from 0 to 9, and is '10', so it is ignored"]


def test_nothing_is_done_while_it_is_off(admin, monkeypatch):
    """The periodic task does nothing unless the settings say so."""
    from magnetar_control.conductor.availability.incident_work import AvailabilityWatch

    conductor = admin.cloud.parts.working
    admin.dies("kvm1")
    monkeypatch.setattr("magnetar_control.conductor.availability.incident_work.time.monotonic", lambda: 0.0)
    watch = AvailabilityWatch(conductor)
    watch.check_hosts()
    monkeypatch.setattr(conductor, "settings", replace(conductor.settings, availability_enabled=False))
    watch.check_hosts()
    with conductor.database.read() as connection:
        assert connection.execute(select(tables.incidents.c.id)).all() == []
