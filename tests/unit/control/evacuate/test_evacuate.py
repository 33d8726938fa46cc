# SPDX-License-Identifier: GPL-3.0-or-later
"""A server of a dead host is built anew on another, with its ports, volumes and name."""

import json
import threading

import pytest

from magnetar_control.conductor.worker import retry
from magnetar_core.errors import HypervisorError
from tests.support.agent.iso import read
from tests.support.control.build import block
from tests.support.waiting import eventually
from tests.unit.control.moves.clouds import claims, disabled, row

from .evacuating import ENGINES

pytestmark = [ENGINES, pytest.mark.slow]
SMALL = (1, 128, 1, 0)


@pytest.mark.parametrize(("before", "version", "after"), [
    (None, "2.94", "ACTIVE"), (None, "2.95", "SHUTOFF"), ("os-stop", "2.94", "SHUTOFF"), ("error", "2.94", "ACTIVE")])
def test_a_server_of_a_dead_host(admin, before, version, after):
    id = admin.server(networks="auto", flavorRef="small")["id"]
    host, nics = admin.host_of(id), row(admin.cloud, id).interfaces
    if before == "os-stop":
        assert admin.call.act(id, before).status == 202
        admin.call.settled(id)
    elif before:
        assert admin.call.act(id, "os-resetState", {"state": "error"}).status == 202
    admin.down(host)
    server = admin.evacuated(id, version)
    there = server["OS-EXT-SRV-ATTR:host"]
    assert (server["status"], server.get("fault")) == (after, None) and there != host
    assert admin.statuses(id) == [("evacuation", host, there, "done")]
    assert claims(admin.cloud, id) == {"server": (there, SMALL), "migration": (host, SMALL)}
    assert row(admin.cloud, id).interfaces == nics
    assert [(one["host"], one["port_state"]) for one in admin.cloud.services.network.ports(id)] == [(there, "ACTIVE")]
    assert admin.cloud.kvm[there].runs(id) is (after == "ACTIVE")
    admin.up(host)
    admin.clean(id, there)
    assert admin.statuses(id) == [("evacuation", host, there, "completed")]


@pytest.mark.parametrize(("version", "asked", "told"), [
    ("2.13", {"onSharedStorage": False}, True), ("2.94", {}, False), ("2.94", {"adminPass": "Mine-1"}, True)])
def test_no_password_is_drawn_that_nobody_is_told(admin, version, asked, told):
    id = admin.server(flavorRef="small", config_drive=True)["id"]
    host = admin.host_of(id)
    admin.down(host)
    answer = admin.evacuate(id, version, **asked)
    password = asked.get("adminPass") or (answer.json or {}).get("adminPass")
    there = admin.call.settled(id)["OS-EXT-SRV-ATTR:host"]
    drive = admin.cloud.kvm[there].agent.host.settings.state_dir / "servers" / id / "config.iso"
    meta = json.loads(read(drive.read_bytes(), "rr_path")["openstack/latest/meta_data.json"])
    admin.up(host)
    assert (meta.get("admin_pass"), bool(password)) == (password, told)


@pytest.fixture
def dead(admin):
    """A running server and its host, which is down, and is up again afterwards."""
    id = admin.server(flavorRef="small")["id"]
    host = admin.host_of(id)
    admin.down(host)
    yield id, host
    admin.up(host)


def others(admin, host):
    """The other hosts, by name."""
    return [name for name in admin.cloud.hosts if name != host]


def test_without_another_host_it_is_in_error_until_it_is_evacuated_again(admin, dead):
    id, host = dead
    one, two = others(admin, host)
    with disabled(admin.cloud, one), disabled(admin.cloud, two):
        assert admin.evacuated(id)["status"] == "ERROR"
    assert "No valid host" in row(admin.cloud, id).fault
    assert admin.statuses(id) == [("evacuation", host, None, "error")]
    assert claims(admin.cloud, id) == {"server": (host, SMALL)} and admin.host_of(id) == host
    again = admin.evacuated(id)
    assert again["OS-EXT-SRV-ATTR:host"] != host and again["status"] == "ACTIVE"


@pytest.mark.parametrize(("version", "force"), [("2.67", {"force": True}), ("2.67", {}), ("2.68", {})])
def test_a_host_that_is_named(admin, dead, version, force):
    """A forced one need not be enabled; the scheduler takes none that is not."""
    id, host = dead
    _one, two = others(admin, host)
    with disabled(admin.cloud, two):
        server = admin.evacuated(id, version, host=two, **force)
    assert server["OS-EXT-SRV-ATTR:host"] == (two if force else host)
    if not force:
        assert admin.evacuated(id, version, host=two)["OS-EXT-SRV-ATTR:host"] == two


def test_a_forced_host_without_room_takes_nothing(admin, dead, monkeypatch):
    id, host = dead
    monkeypatch.setattr("magnetar_control.store.claims.allocations._raise", lambda *_args, **_more: False)
    assert admin.evacuated(id, "2.67", host=others(admin, host)[0], force=True)["status"] == "ACTIVE"
    monkeypatch.undo()
    assert [one[3] for one in admin.statuses(id)] == ["error"]
    assert claims(admin.cloud, id) == {"server": (host, SMALL)}


@pytest.mark.parametrize("named", [False, True])
def test_a_host_that_fails(admin, dead, named, monkeypatch):
    """Another one is tried; the one that was named is the only one, and the server may be evacuated again."""
    id, host = dead
    one, two = others(admin, host)
    stayed = []
    monkeypatch.setattr(admin.cloud.services.network, "stay", lambda server_id, _sure: stayed.append(server_id))
    with disabled(admin.cloud, two):  # so that the first gets it
        admin.cloud.kvm[one].fake.fail_next("start", HypervisorError("libvirt could not start the domain: no memory."))
        if named:
            server = admin.evacuated(id, host=one)
            assert (server["status"], server["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", host)
            assert admin.statuses(id) == [("evacuation", host, one, "failed")]
            assert claims(admin.cloud, id) == {"server": (host, SMALL)}
            assert not admin.cloud.kvm[one].knows(id)
            assert stayed == [id]  # its ports are not on their way any more
    if not named:
        admin.evacuated(id)
        eventually(lambda: admin.call.settled(id))
    server = admin.evacuated(id) if named else admin.call.server(id)
    assert server["OS-EXT-SRV-ATTR:host"] in (one, two)
    assert admin.statuses(id)[-1][3] == "done"


def test_a_target_that_dies_is_left_to_the_next_evacuation(admin, dead, monkeypatch):
    id, host = dead
    one, two = others(admin, host)
    dead_too = threading.Event()

    def dies(*_args):
        """From then on nobody is patient with it; before and afterwards a slow machine has its time."""
        admin.down(one)
        monkeypatch.setattr(retry, "TRIES", 0)
        monkeypatch.setattr("magnetar_core.http.client.RETRY_FOR", 0.2)
        dead_too.set()
        raise HypervisorError("the power is off")

    monkeypatch.setattr(admin.cloud.kvm[one].fake, "start", dies)
    server = admin.evacuated(id, host=one)
    assert (server["status"], server["OS-EXT-SRV-ATTR:host"]) == ("ERROR", host)
    assert [status[1:] for status in admin.statuses(id)] == [(host, one, "failed"), (one, None, "done")]
    assert claims(admin.cloud, id) == {"server": (host, SMALL)}
    assert dead_too.wait(120)  # else it takes the patience of the tests after this one
    monkeypatch.undo()
    assert admin.evacuated(id)["OS-EXT-SRV-ATTR:host"] == two
    admin.up(one)
    assert admin.statuses(id)[1][1:] == (one, None, "completed")
    assert not admin.cloud.kvm[one].knows(id) and admin.cloud.kvm[one].fake.domain(id) is None


def test_what_waits_for_the_dead_host_makes_way(admin, dead):
    id, host = dead
    volume = admin.volume(host=others(admin, host)[0])
    assert admin.attach(id, volume).status == 200
    assert admin.call.act(id, "os-stop").status == 202
    assert admin.evacuated(id)["OS-EXT-SRV-ATTR:host"] != host
    assert admin.state(volume) == "in-use" and [one["volumeId"] for one in admin.attached(id)] == [volume]


def test_a_reset_takes_it_back(admin, dead):
    """Also one that waits in the queue: nothing of it stays open."""
    id, host = dead
    one, two = others(admin, host)
    with disabled(admin.cloud, one), disabled(admin.cloud, two):
        assert admin.evacuate(id).status == 200
        assert admin.call.act(id, "os-resetState", {"state": "active"}).status == 202
        eventually(lambda: admin.statuses(id) and admin.statuses(id)[0][3] == "error")
    assert claims(admin.cloud, id) == {"server": (host, SMALL)}


def test_a_deletion_in_the_midst_of_it(admin, dead, monkeypatch):
    id, _host = dead

    def asked(*_args, **_more):
        assert admin.call.delete(f"/v2.1/servers/{id}").status == 204
        raise HypervisorError("it was deleted meanwhile")

    monkeypatch.setattr("magnetar_control.conductor.flows.server_evacuate.make_server", asked)
    assert admin.evacuate(id).status == 200
    assert admin.call.settled(id) is None
    assert claims(admin.cloud, id) == {}


def test_volumes_of_other_hosts_come_along(admin):
    id = admin.server(flavorRef="small")["id"]
    host = admin.host_of(id)
    volumes = [admin.volume(host=name) for name in others(admin, host)]
    for volume in volumes:
        assert admin.attach(id, volume).status == 200
    eventually(lambda: {admin.state(volume) for volume in volumes} == {"in-use"})
    before = {one["volumeId"]: one["device"] for one in admin.attached(id)}
    admin.down(host)
    there = admin.evacuated(id)["OS-EXT-SRV-ATTR:host"]
    assert {one["volumeId"]: one["device"] for one in admin.attached(id)} == before
    assert {one["id"] for one in admin.has(there, id)["volumes_attached"]} == set(volumes)
    [other] = [name for name in others(admin, host) if name != there]
    assert [one["peers"] for one in admin.on_host("volume_export", other)] == [[there]]
    assert admin.on_host("volume_export", there) == []
    admin.up(host)
    admin.clean(id, there)
    assert [one["peers"] for one in admin.on_host("volume_export", other)] == [[there]]
    assert admin.on_host("volume_attachment", host) == []
    assert {admin.state(volume) for volume in volumes} == {"in-use"}


def test_volumes_are_given_back_where_it_fails(admin):
    id = admin.server(flavorRef="small")["id"]
    host = admin.host_of(id)
    one, two = others(admin, host)
    volume = admin.volume(host=two)
    assert admin.attach(id, volume).status == 200
    eventually(lambda: admin.state(volume) == "in-use")
    admin.down(host)
    admin.cloud.kvm[one].fake.fail_next("define", HypervisorError("libvirt could not define the domain: no."))
    assert admin.evacuated(id, host=one)["OS-EXT-SRV-ATTR:host"] == host
    assert [found["peers"] for found in admin.on_host("volume_export", two)] == [[host]]
    admin.boots(host)
    admin.up(host)
    eventually(lambda: admin.cloud.kvm[host].runs(id))


def test_a_volume_on_the_dead_host_is_not_lost(admin):
    id = admin.server(flavorRef="small")["id"]
    host = admin.host_of(id)
    volume = admin.volume(host=host)
    assert admin.attach(id, volume).status == 200
    eventually(lambda: admin.state(volume) == "in-use")
    admin.down(host)
    try:
        reply = admin.evacuate(id)
        assert reply.status == 409 and volume in str(reply.json) and "lies on its host" in str(reply.json)
        assert admin.statuses(id) == [] and admin.call.server(id)["status"] == "ACTIVE"
    finally:
        admin.up(host)


def test_a_root_disk_that_is_a_volume(admin):
    """It is kept where its host is alive: the server goes there."""
    blocks = [block("image", admin.call.image(), boot_index=0, volume_size=1, delete_on_termination=True)]
    id = admin.server(imageRef="", block_device_mapping_v2=blocks, flavorRef="small")["id"]
    place = admin.host_of(id)
    assert admin.call.act(id, "migrate").status == 202
    assert admin.call.settled(id)["status"] == "VERIFY_RESIZE"
    assert admin.call.act(id, "confirmResize").status == 204
    eventually(lambda: admin.call.server(id)["status"] == "ACTIVE")
    before, host = admin.attached(id), admin.host_of(id)
    assert host != place
    admin.down(host)
    assert admin.evacuated(id)["OS-EXT-SRV-ATTR:host"] == place, row(admin.cloud, id).fault
    assert admin.attached(id) == before
    assert [one["device"] for one in admin.has(place, id)["volumes_attached"]] == ["vda"]
    admin.up(host)
    admin.clean(id, place)
