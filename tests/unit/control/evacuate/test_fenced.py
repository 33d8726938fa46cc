# SPDX-License-Identifier: GPL-3.0-or-later
"""A host with a power device loses its servers only when it is off for certain."""

import json

import pytest

from magnetar_control.conductor.hosts import host_return
from magnetar_control.fencing import fence_agents
from magnetar_control.fencing.host_fencing import HostFencing
from magnetar_control.store.hosts import fencings
from tests.support.fence_agent import FakeFenceAgent
from tests.support.waiting import eventually
from tests.unit.control.moves.clouds import claims, flavors, row
from tests.unit.control.moves.dying import Fate, through
from tests.unit.control.moves.inside import Inside

from .evacuating import ENGINES

pytestmark = [ENGINES, pytest.mark.slow]


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    return FakeFenceAgent(tmp_path_factory.mktemp("fence"))


@pytest.fixture(scope="module")
def cloud(databases, agent):
    """Three hosts with power devices; shared by the tests of a module."""
    with Inside(hosts=3, databases=databases, host_down_after=600.0, fence_tries=2,
                **agent.settings("kvm1", "kvm2", "kvm3")) as found:
        flavors(found)
        found.parts.working.settling = lambda: False
        yield found


@pytest.fixture
def fencing(cloud, agent, monkeypatch):
    """The commands of an administrator. All hosts are unfenced afterwards."""
    monkeypatch.setattr(fence_agents, "PAUSE", 0.01)
    agent.behave("ok")
    (agent.folder / "asked").unlink(missing_ok=True)
    found = HostFencing(cloud.parts.store, cloud.parts.settings)
    yield found
    agent.behave("ok")
    for status in found.host_statuses():
        if status.fencing and status.fencing.holds_host:
            found.unfence_host(status.host, "the end of the test")


@pytest.fixture
def lost(admin, fencing):
    """A running server, and its host, whose agent does not answer; it does again afterwards."""
    id = admin.server(flavorRef="small")["id"]
    host = admin.host_of(id)
    admin.down(host)
    yield id, host
    fencing_row = row_of(admin, host)
    if fencing_row and fencing_row.holds_host:
        fencing.unfence_host(host, "the end of the test")
    if host in admin.stopped:
        admin.up(host)


def row_of(admin, host):
    with admin.cloud.parts.api_database.read() as connection:
        return fencings.fetch_fencing_row(connection, host)


def events(admin, id):
    """The events of the server's last action, as an administrator sees them."""
    action = admin.call.get(f"/v2.1/servers/{id}/os-instance-actions", "2.84").json["instanceActions"][0]
    return admin.call.get(f"/v2.1/servers/{id}/os-instance-actions/{action['request_id']}", "2.84").json[
        "instanceAction"]["events"]


def service(admin, host):
    """The compute service of a host as `openstack compute service list` shows it."""
    return admin.call.get(f"/v2.1/os-services?host={host}&binary=nova-compute", "2.53").json["services"][0]


def test_an_evacuation_fences_the_host_first(admin, lost, agent, fencing):
    id, host = lost
    there = admin.evacuated(id)["OS-EXT-SRV-ATTR:host"]
    assert there != host and agent.power(host) == "off"
    assert agent.actions(host)[:2] == ["off", "status"]
    assert row_of(admin, host).requested_by == f"the evacuation of server {id}"
    shown = service(admin, host)
    assert (shown["state"], shown["status"], shown["forced_down"]) == ("down", "disabled", True)
    assert shown["disabled_reason"].startswith("Fenced at ")
    refused = admin.force_down(host, False)
    assert refused.status == 400 and "`magnetar host unfence" in refused.json["badRequest"]["message"]
    fencing.unfence_host(host, "test")
    shown = service(admin, host)
    assert (shown["status"], shown["disabled_reason"], shown["forced_down"]) == ("enabled", None, False)
    admin.up(host)
    admin.clean(id, there)


@pytest.mark.parametrize(("mode", "reason"), [
    ("refuses", "exit status 1"), ("on for ever", "Host kvm"), ("garbage", "exit status 77"), ("lies", "contradicts")])
def test_where_the_fence_fails_nothing_moves(admin, lost, agent, mode, reason):
    id, host = lost
    agent.behave(mode)
    before = claims(admin.cloud, id)
    server = admin.evacuated(id)
    assert (server["OS-EXT-SRV-ATTR:host"], server["status"]) == (host, "ACTIVE")
    fault = json.loads(row(admin.cloud, id).fault)
    assert fault["message"].startswith(f"Host {host} is not off for certain, since its fencing has failed")
    assert reason in fault["details"] and reason in row_of(admin, host).message and fault["code"] == 500
    assert reason in events(admin, id)[-1]["details"]
    assert admin.statuses(id)[-1][3] == "error" and claims(admin.cloud, id) == before
    assert row_of(admin, host).state == "failed" and not service(admin, host)["forced_down"]
    agent.behave("ok")
    there = admin.evacuated(id)["OS-EXT-SRV-ATTR:host"]
    assert there != host and row(admin.cloud, id).host == there


def test_servers_of_a_host_share_one_fencing(admin, agent, fencing):
    first = admin.server(flavorRef="small")["id"]
    host = admin.host_of(first)
    ids = [first, *(admin.server(flavorRef="small", availability_zone=f"nova:{host}")["id"] for _more in range(2))]
    admin.down(host)
    agent.behave("slow")
    for id in ids:
        assert admin.evacuate(id).status == 200
    for id in ids:
        assert admin.call.settled(id)["OS-EXT-SRV-ATTR:host"] != host
    assert agent.actions(host).count("off") == 1 and fencing.host_statuses(host)[0].power == "off"


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_conductor_that_dies_meanwhile(admin, lost, agent, number):
    """Before it writes that it fences, before it writes that it has, or after that: another one goes on."""
    id, host = lost
    fate = Fate(number)
    found = through(admin.cloud, id, "evacuate", fate, host=None, forced=False, stopped=False)
    assert fate.died and found.host != host and (found.vm_state, found.fault) == ("active", None)
    assert agent.power(host) == "off" and row_of(admin, host).state == "fenced"
    assert row_of(admin, host).busy_until is None and service(admin, host)["forced_down"]


def test_a_host_that_was_switched_on_is_fenced_again(admin, lost, agent, fencing, monkeypatch):
    id, host = lost
    fencing.fence_host(host, "test")
    agent.set_power(host, "on")
    monkeypatch.setattr("magnetar_control.fencing.host_fencing.CONFIRMED", 0.0)
    assert admin.evacuated(id)["OS-EXT-SRV-ATTR:host"] != host
    assert agent.power(host) == "off"


def test_a_fenced_host_that_answers_starts_nothing_and_is_not_up(admin, lost, fencing, monkeypatch):
    """Somebody has pressed its button. Its servers start when it is unfenced."""
    monkeypatch.setattr(host_return, "FENCED_POLL_INTERVAL", 0.1)
    id, host = lost
    fencing.fence_host(host, "test")
    admin.boots(host)
    admin.come_back(host)
    eventually(lambda: not admin.state_of(host).problem)
    assert service(admin, host)["state"] == "down" and not admin.cloud.kvm[host].runs(id)
    fencing.unfence_host(host, "test")
    eventually(lambda: admin.cloud.kvm[host].runs(id))


def test_a_host_that_is_up_is_not_fenced(admin, agent, fencing):
    id = admin.server(flavorRef="small")["id"]
    assert admin.evacuate(id).status == 400
    assert not agent.asked
