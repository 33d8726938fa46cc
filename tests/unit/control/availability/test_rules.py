# SPDX-License-Identifier: GPL-3.0-or-later
"""When nothing is moved: the fencing fails, too many hosts are silent or were fenced, somebody still reaches the host,
or it returns. Slow."""

import logging
from dataclasses import replace

import pytest
from sqlalchemy import update

from magnetar_control.conductor.availability import incident_work
from magnetar_control.conductor.availability.incident_work import AvailabilityWatch
from magnetar_control.fencing.host_fencing import HostFencing
from magnetar_control.store.engine import tables
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.hosts import hosts
from magnetar_core.errors import InvalidSettings
from tests.support.waiting import eventually
from tests.unit.control.moves.clouds import row

pytestmark = pytest.mark.slow
WITNESS = "magnetar_control.conductor.availability.witnesses.is_host_reached"
PEER = "magnetar_agent.api.app.is_host_reached"


def test_where_the_fence_fails_nothing_moves(admin, agent, caplog):
    caplog.set_level(logging.INFO)
    id = admin.boot("kvm1", "web1")
    admin.dies("kvm1")
    agent.behave("on for ever")
    found = admin.until("failed", "kvm1")
    assert "so no server was moved: Host kvm1 is still on" in found["message"]
    assert "magnetar host fence kvm1 --confirmed" in found["message"]
    tries = len(agent.asked)
    for _again in range(3):
        admin.look()
    assert len(agent.asked) == tries and admin.evacuations(id) == 0 and row(admin.cloud, id).host == "kvm1"
    eventually(lambda: any(record.message == "incident.error" for record in caplog.records))
    HostFencing(admin.cloud.parts.store, admin.cloud.parts.settings).fence_host("kvm1", "test", confirmed=True)
    assert admin.until("done", "kvm1")["moved"] == 1 and row(admin.cloud, id).host != "kvm1"


def test_a_failed_fencing_is_tried_again_when_its_incident_is_closed(admin, agent):
    admin.boot("kvm1", "web1")
    admin.dies("kvm1")
    agent.behave("refuses")
    first = admin.until("failed", "kvm1")
    agent.behave("ok")
    admin.close(first["id"])
    assert admin.until("done", "kvm1")["id"] != first["id"]


def test_half_of_the_hosts_are_unseen(admin, agent):
    admin.boot("kvm1", "web1")
    for host in ("kvm1", "kvm2"):
        admin.dies(host)
    for _again in range(2):
        admin.look()
    [found] = admin.incidents()
    assert (found["state"], found["host"], found["name"]) == ("blocked", None, "cell1")
    assert "2 of 4 hosts of cell cell1 are silent (kvm1, kvm2)" in found["message"]
    assert not agent.asked
    admin.up("kvm2")
    assert admin.until("done", "kvm1")["moved"] == 1
    assert admin.incident(None)["state"] == "returned" and agent.power("kvm2") == "on"


def test_a_host_that_was_noticed_before_is_not_fenced_without_quorum(admin, agent, monkeypatch):
    monkeypatch.setattr(WITNESS, lambda _address, _port: True)
    admin.dies("kvm1")
    admin.until("noticed", "kvm1")
    monkeypatch.setattr(WITNESS, lambda _address, _port: False)
    admin.dies("kvm2")
    admin.look()
    assert admin.incident("kvm1")["state"] == "noticed" and not agent.asked


def test_a_maximum_of_hosts_in_a_window(admin, agent, monkeypatch):
    conductor = admin.cloud.parts.working
    monkeypatch.setattr(conductor, "settings", replace(conductor.settings, availability_max_hosts=1))
    admin.boot("kvm2", "web2")
    admin.dies("kvm1")
    admin.until("done", "kvm1")
    admin.dies("kvm2")
    found = admin.until("blocked", "kvm2")
    assert "1 hosts were fenced within 600 seconds (availability_max_hosts)" in found["message"]
    admin.look()
    assert agent.actions("kvm2") == [] and admin.states("kvm2") == {}
    with conductor.database.write() as connection:
        connection.execute(update(tables.incidents).where(tables.incidents.c.host == "kvm1").values(
            fencing_at=utc_now(-601)))
    admin.look()
    assert admin.incident("kvm2")["state"] == "blocked"  # people decide
    admin.close(found["id"])
    assert admin.until("done", "kvm2")["moved"] == 1


@pytest.mark.parametrize(("place", "by"), [(WITNESS, "conductor "), (PEER, "host kvm")])
def test_somebody_still_reaches_the_host(admin, agent, monkeypatch, place, by):
    with monkeypatch.context() as patch:
        patch.setattr(place, lambda _address, _port: True)
        admin.dies("kvm1")
        for _again in range(2):
            admin.look()
        found = admin.incident("kvm1")
        assert found["state"] == "noticed" and f"but {by}" in found["message"], found
        assert "reaches it over the network, so it may be alive" in found["message"] and not agent.asked
    assert admin.until("done", "kvm1")["fenced_at"]


def test_no_peer_can_be_asked(admin, agent, monkeypatch):
    conductor = admin.cloud.parts.working
    monkeypatch.setattr(conductor, "is_up", lambda _name: False)
    admin.dies("kvm1")
    admin.look()
    assert "no other host can tell whether it is alive" in admin.incident("kvm1")["message"]
    assert not agent.asked


def test_a_host_that_returns_before_the_fence(admin, agent, monkeypatch):
    id = admin.boot("kvm1", "web1")
    monkeypatch.setattr(WITNESS, lambda _address, _port: True)
    admin.dies("kvm1")
    admin.until("noticed", "kvm1")
    admin.up("kvm1")
    found = admin.until("returned", "kvm1")
    assert found["message"] == "Host kvm1 is heard again. No server was moved." and found["finished_at"]
    assert not agent.asked and admin.evacuations(id) == 0 and admin.opened() == []


def test_a_host_that_returns_when_its_fence_was_decided(admin, agent, monkeypatch):
    """The conductor died in between."""
    with monkeypatch.context() as patch:
        patch.setattr(incident_work, "_advance_fencing", lambda *_args: None)
        patch.setattr(incident_work, "STEPS", {**incident_work.STEPS, "fencing": lambda *_args: None})
        admin.dies("kvm1")
        admin.until("fencing", "kvm1")
    admin.up("kvm1")
    admin.until("returned", "kvm1")
    assert not agent.asked


@pytest.mark.parametrize("column", ["disabled", "forced_down"])
def test_an_operator_takes_over(admin, agent, monkeypatch, column):
    monkeypatch.setattr(WITNESS, lambda _address, _port: True)
    admin.dies("kvm1")
    admin.until("noticed", "kvm1")
    conductor = admin.cloud.parts.working
    with admin.cloud.parts.api_database.write() as connection:
        hosts.update_host_row(connection, "kvm1", conductor.ratios, **{column: True})
    try:
        found = admin.until("closed", "kvm1")
        assert found["message"] == "An operator has changed host kvm1, so nothing more is done."
        admin.look()
        assert len(admin.incidents()) == 1 and not agent.asked
    finally:
        with admin.cloud.parts.api_database.write() as connection:
            hosts.update_host_row(connection, "kvm1", conductor.ratios, **{column: False})


def test_a_host_without_a_power_device(admin, agent, monkeypatch):
    conductor = admin.cloud.parts.working
    fencing = {host: device for host, device in conductor.settings.fencing.items() if host != "kvm1"}
    monkeypatch.setattr(conductor, "settings", replace(conductor.settings, fencing=fencing))
    admin.boot("kvm1", "web1")
    admin.dies("kvm1")
    found = admin.until("failed", "kvm1")
    assert "has no power device in the setting fencing, so nothing was done" in found["message"]
    HostFencing(admin.cloud.parts.store, conductor.settings).fence_host("kvm1", "test", confirmed=True)
    assert admin.until("done", "kvm1")["moved"] == 1


def test_a_refused_host_is_not_silent(admin):
    admin.dies("kvm1")
    with admin.cloud.parts.working.database.write() as connection:
        connection.execute(update(tables.host_states).where(tables.host_states.c.host == "kvm1").values(
            problem="AUTO: its report is malformed"))
    admin.look()
    assert admin.incidents() == []


def test_a_conductor_judges_only_after_it_has_listened(admin, monkeypatch):
    """Also when its process stood still, as in a frozen virtual machine."""
    now, looks = [1000.0], []
    monkeypatch.setattr("magnetar_control.conductor.availability.incident_work.time.monotonic", lambda: now[0])
    monkeypatch.setattr(incident_work, "work_on_incidents", lambda _conductor: looks.append(now[0]))
    monkeypatch.setattr(incident_work, "continue_evacuations", lambda _conductor: None)
    watch = AvailabilityWatch(admin.cloud.parts.working)

    def listen(seconds):
        for _moment in range(int(seconds / 100)):
            now[0] += 100
            watch.check_hosts()

    watch.check_hosts()
    listen(500)
    assert looks == []
    listen(200)
    assert looks == [1600.0, 1700.0]
    now[0] += 5000  # it is frozen
    watch.check_hosts()
    listen(500)
    assert len(looks) == 2
    listen(100)
    assert len(looks) == 3


def test_evacuations_continue_while_a_conductor_listens(admin):
    admin.boot("kvm1", "web1")
    admin.dies("kvm1")
    admin.look()
    assert admin.incident("kvm1")["state"] == "evacuating"
    watch = AvailabilityWatch(admin.cloud.parts.working)
    eventually(lambda: (watch.check_hosts(), admin.incident("kvm1")["state"] == "done")[1], pause=0.05)


def test_what_the_last_heartbeat_reported_does_not_hide_a_host(admin):
    admin.dies("kvm1")
    with admin.cloud.parts.api_database.write() as connection:
        connection.execute(update(tables.hosts).where(tables.hosts.c.name == "kvm1").values(updated_at=utc_now(-690)))
    admin.look()
    assert admin.incident("kvm1")["state"] in ("evacuating", "done")  # it has no server


def test_a_malformed_policy_of_a_project_is_refused_at_the_start(admin):
    from magnetar_control.compute.availability.ha_policy import check_project_policies

    settings = replace(admin.cloud.parts.settings, availability_projects={"p1": "sometimes"})
    with pytest.raises(InvalidSettings, match="availability_projects: the policy of project p1 must be one of always"):
        check_project_policies(settings)
