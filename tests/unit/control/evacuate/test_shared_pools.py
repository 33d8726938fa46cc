# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers with volumes in a pool that several hosts reach: the volumes come along from a dead host, as they are."""

from __future__ import annotations

import json

import pytest

from magnetar_core.errors import HypervisorError
from tests.support.waiting import eventually
from tests.unit.control.drains.draining import Draining
from tests.unit.control.moves.clouds import row
from tests.unit.control.moves.dying import Fate, through

from .evacuating import ENGINES
from .sharing import Fencing, reached, sharing_cloud

pytestmark = [ENGINES, pytest.mark.slow]


@pytest.fixture(scope="module")
def cloud(databases):
    """Shared by the tests of a module."""
    with sharing_cloud(databases) as found:
        yield found


@pytest.fixture
def admin(cloud):
    """With servers and volumes that go with the test; all hosts are up afterwards."""
    found = Fencing(cloud)
    yield found
    found.tidy()


def room(admin):
    """Whether any host of the cloud may fail, and why not."""
    scope = next(one for one in admin.call.get("/v1/capacity").json["capacities"] if one["scope"] == "cloud")
    return scope["holds"], str(scope)


@pytest.fixture
def booted(admin):
    """A server that boots from a volume of the pool, on a host that reaches it: its uuid, the host and the volume."""
    id, volume = admin.boot("kvm1")
    return id, "kvm1", volume


def test_a_server_that_boots_from_a_shared_volume(admin, booted):
    id, host, _volume = booted
    data = admin.volume(host=host, volume_type="team")
    assert admin.attach(id, data).status == 200
    eventually(lambda: admin.state(data) == "in-use")
    before = {one["volumeId"]: one["device"] for one in admin.attached(id)}
    contents = {one: (admin.cloud.team / one).read_bytes() for one in before}
    admin.dies(host)
    server = admin.evacuated(id)
    assert (server["OS-EXT-SRV-ATTR:host"], server["status"], server.get("fault")) == ("kvm2", "ACTIVE", None)
    assert {one["volumeId"]: one["device"] for one in admin.attached(id)} == before
    assert {one["id"] for one in admin.has("kvm2", id)["volumes_attached"]} == set(before)
    assert {admin.seen(one)["os-vol-host-attr:host"] for one in before} == {"kvm2@magnetar#team"}
    assert {admin.state(one) for one in before} == {"in-use"}
    assert {one: (admin.cloud.team / one).read_bytes() for one in before} == contents
    admin.returns(host)  # it gives up the server, then the volumes, whose content stays
    eventually(lambda: [admin.homes(one) for one in before] == [["kvm2"]] * 2)
    assert all((admin.cloud.team / one).exists() for one in before)
    admin.clean(id, "kvm2")
    admin.dies("kvm2")  # and back, with the volumes
    assert admin.evacuated(id)["OS-EXT-SRV-ATTR:host"] == host
    admin.returns("kvm2")
    eventually(lambda: [admin.homes(one) for one in before] == [[host]] * 2)


def test_a_host_without_the_pool_is_no_target(admin, booted):
    id, host, volume = booted
    admin.dies(host)
    assert admin.evacuated(id, host="kvm3")["OS-EXT-SRV-ATTR:host"] == host
    assert admin.where(volume) == host
    admin.returns(host)


def test_where_it_fails_the_volume_stays_with_the_old_host(admin, booted):
    id, host, volume = booted
    admin.dies(host)
    admin.cloud.kvm["kvm2"].fake.fail_next("define", HypervisorError("libvirt could not define the domain: no."))
    assert admin.evacuated(id, host="kvm2")["OS-EXT-SRV-ATTR:host"] == host
    assert admin.where(volume) == host
    admin.returns(host)
    eventually(lambda: admin.cloud.kvm[host].runs(id))
    eventually(lambda: admin.homes(volume) == [host])
    assert (admin.cloud.team / volume).exists()


def test_a_detached_volume_is_used_without_its_host(admin):
    """Extended, deleted, and attached on a living host that reaches its pool."""
    one, two = (admin.volume(host="kvm1", volume_type="team") for _number in range(2))
    id = admin.server(flavorRef="small", host="kvm2", version="2.74")["id"]
    admin.down("kvm1")
    assert admin.call.post(f"{admin.api}/volumes/{one}/action", {"os-extend": {"new_size": 2}}).status == 202
    eventually(lambda: (admin.state(one), admin.seen(one)["size"]) == ("available", 2))
    assert admin.where(one) == "kvm2"
    assert admin.attach(id, two).status == 200
    eventually(lambda: admin.state(two) == "in-use")
    assert admin.where(two) == "kvm2"
    assert admin.call.delete(f"{admin.api}/volumes/{one}").status == 202
    eventually(lambda: admin.seen(one) is None)
    assert not (admin.cloud.team / one).exists()
    admin.up("kvm1")
    eventually(lambda: (admin.homes(one), admin.homes(two)) == ([], ["kvm2"]))
    assert (admin.cloud.team / two).exists()


def test_a_host_that_may_be_on_is_no_reason_to_evacuate(admin, booted):
    """Its guest could still write to the volume. Forced down is an administrator's word that it is off."""
    id, host, volume = booted
    admin.down(host)
    refused = admin.evacuate(id)
    assert refused.status == 409
    message = refused.json["conflictingRequest"]["message"]
    assert volume in message and f"`magnetar host fence {host}`" in message and "--confirmed" in message
    assert admin.statuses(id) == [] and admin.where(volume) == host
    assert admin.force_down(host).status == 200
    assert admin.evacuated(id)["OS-EXT-SRV-ATTR:host"] == "kvm2"
    admin.boots(host)
    admin.come_back(host)
    eventually(lambda: [one[3] for one in admin.statuses(id)] == ["completed"])
    assert admin.force_down(host, False).status == 200
    eventually(lambda: admin.homes(volume) == ["kvm2"])


def test_a_volume_of_another_host_is_behind_the_fence_too(admin):
    """The old host opens it itself, so its own host cannot withdraw it."""
    id, volume = admin.with_volume("kvm1", "kvm2")
    admin.down("kvm1")
    assert admin.evacuate(id).status == 409
    admin.boots("kvm1")
    admin.fencing().fence_host("kvm1", "the administrator", confirmed=True)
    assert admin.evacuated(id)["OS-EXT-SRV-ATTR:host"] == "kvm2"
    assert admin.state(volume) == "in-use" and admin.where(volume) == "kvm2"


def test_a_volume_that_comes_after_the_request(admin):
    """The conductor looks again, before anything is moved."""
    id = admin.server(flavorRef="small", host="kvm1", version="2.74")["id"]
    volume = admin.volume(host="kvm1", volume_type="team")
    assert admin.attach(id, volume).status == 200
    eventually(lambda: admin.state(volume) == "in-use")
    admin.down("kvm1")
    found = through(admin.cloud, id, "evacuate", Fate(0), host=None, forced=False, stopped=False)
    assert found.host == "kvm1" and volume in json.loads(found.fault)["message"]
    assert admin.statuses(id)[-1][3] == "error"


def test_a_host_that_is_forced_down_and_does_not_stop_its_guest(admin, booted, monkeypatch):
    id, host, volume = booted
    assert admin.force_down(host).status == 200

    def refuses(*_given):
        raise HypervisorError("libvirt could not destroy the domain: no.")

    monkeypatch.setattr("magnetar_control.conductor.flows.server_evacuate.stop_guest", refuses)
    assert admin.evacuated(id)["OS-EXT-SRV-ATTR:host"] == host
    fault = json.loads(row(admin.cloud, id).fault)["message"]
    assert "has not stopped the server" in fault and volume in fault
    assert admin.cloud.kvm[host].runs(id) and admin.where(volume) == host
    monkeypatch.undo()
    assert admin.evacuated(id)["OS-EXT-SRV-ATTR:host"] == "kvm2"
    eventually(lambda: not admin.cloud.kvm[host].runs(id))
    eventually(lambda: [one[3] for one in admin.statuses(id)][-1] == "completed")
    assert admin.force_down(host, False).status == 200


def test_a_volume_is_detached_without_its_host(admin):
    """The server's host opens it itself, and gets it."""
    id, volume = admin.with_volume("kvm2", "kvm1")
    admin.down("kvm1")
    assert admin.call.call("POST", f"{admin.api}/volumes/{volume}/action", {"os-extend": {"new_size": 2}}, headers={
        "OpenStack-API-Version": "volume 3.42"}).status == 202
    eventually(lambda: admin.seen(volume)["size"] == 2)
    assert admin.where(volume) == "kvm2" and admin.state(volume) == "in-use"
    assert admin.detach(id, volume).status == 202
    eventually(lambda: admin.state(volume) == "available")
    assert admin.has("kvm2", id)["volumes_attached"] == []
    admin.up("kvm1")
    eventually(lambda: admin.homes(volume) == ["kvm2"])
    assert admin.on_host("volume_export", "kvm1") == [] and (admin.cloud.team / volume).exists()


def test_a_server_whose_volumes_host_is_dead_moves_and_goes(admin):
    id, volume = admin.with_volume("kvm2", "kvm1")
    other, lost = admin.with_volume("kvm2", "kvm1")
    admin.down("kvm1")
    admin.call.delete(f"/v2.1/servers/{other}")
    assert admin.call.settled(other) is None
    eventually(lambda: admin.state(lost) == "available")
    assert admin.call.delete(f"{admin.api}/volumes/{lost}").status == 202
    eventually(lambda: admin.seen(lost) is None)
    assert not (admin.cloud.team / lost).exists()
    admin.up("kvm1")
    eventually(lambda: admin.homes(lost) == [])
    assert admin.call.act(id, "os-migrateLive", {"host": None, "block_migration": "auto"}, "2.30").status == 202
    assert admin.call.settled(id)["OS-EXT-SRV-ATTR:host"] == "kvm1"
    assert [one["id"] for one in admin.has("kvm1", id)["volumes_attached"]] == [volume]


def test_a_pool_that_a_host_loses_and_finds_under_another_path(admin, booted):
    id, host, volume = booted
    kvm2, elsewhere = admin.cloud.kvm["kvm2"], admin.cloud.folder / "elsewhere"
    elsewhere.symlink_to(admin.cloud.team)
    settings = kvm2.agent.host.settings
    try:
        pool = settings.pools["team"]
        settings.pools["team"] = {**pool, "path": str(admin.cloud.folder / "unmounted")}
        eventually(lambda: ("kvm2", True, "down") in reached(admin.cloud), seconds=60)
        admin.dies(host)
        assert admin.evacuate(id).status == 409
        settings.pools["team"] = {**pool, "path": str(elsewhere)}
        eventually(lambda: ("kvm2", True, "up") in reached(admin.cloud), seconds=60)
        assert admin.evacuated(id)["OS-EXT-SRV-ATTR:host"] == "kvm2"
        assert admin.cloud.kvm["kvm2"].runs(id) and admin.where(volume) == "kvm2"
    finally:
        settings.pools["team"] = pool


def test_a_volume_whose_living_host_has_lost_the_pool(admin):
    """Another host of the pool extends and deletes it."""
    volume = admin.volume(host="kvm1", volume_type="team")
    settings = admin.cloud.kvm["kvm1"].agent.host.settings
    pool = settings.pools["team"]
    try:
        settings.pools["team"] = {**pool, "path": str(admin.cloud.folder / "unmounted")}
        eventually(lambda: ("kvm1", True, "down") in reached(admin.cloud), seconds=60)
        assert admin.call.post(f"{admin.api}/volumes/{volume}/action", {"os-extend": {"new_size": 2}}).status == 202
        eventually(lambda: (admin.state(volume), admin.seen(volume)["size"]) == ("available", 2))
        assert admin.where(volume) == "kvm2"
        eventually(lambda: admin.homes(volume) == ["kvm2"])
    finally:
        settings.pools["team"] = pool
        eventually(lambda: ("kvm1", True, "up") in reached(admin.cloud), seconds=60)


def test_a_drain_takes_servers_to_hosts_of_the_pool(admin, booted):
    """Their volumes hold back neither the drain nor the room to fail; volumes of the host itself do both."""
    id, host, volume = booted
    draining = Draining(admin.cloud)
    local = admin.volume(host=host, volume_type="default")
    other = admin.server(flavorRef="small", host=host, version="2.74")["id"]
    assert room(admin)[0]
    assert admin.attach(other, local).status == 200
    eventually(lambda: admin.state(local) == "in-use")
    holds, reason = room(admin)
    assert not holds and "VolumeHostFilter" in reason
    shown = draining.drained(host)
    try:
        assert [one["id"] for one in shown["moved"]] == [id]
        assert [local in one["reason"] for one in shown["stays"]] == [True] and shown["volumes"] == 1
        assert admin.host_of(id) == "kvm2" and admin.where(volume) == host
        assert admin.cloud.kvm["kvm2"].runs(id) and admin.state(volume) == "in-use"
    finally:
        draining.enabled(host)


@pytest.mark.parametrize("action", ["os-migrateLive", "migrate"])
def test_a_move_copies_no_volume_and_avoids_hosts_without_the_pool(admin, booted, action):
    id, _host, volume = booted
    content = (admin.cloud.team / volume).stat()
    args = {"host": None, "block_migration": "auto"} if action == "os-migrateLive" else None
    for there in ("kvm2", "kvm1"):
        assert admin.call.act(id, action, args, "2.30").status == 202
        server = admin.call.settled(id)
        assert (server["OS-EXT-SRV-ATTR:host"], server.get("fault")) == (there, None)
        if action == "migrate":
            assert admin.call.act(id, "confirmResize").status == 204
            eventually(lambda: admin.call.server(id)["status"] == "ACTIVE")
        assert admin.where(volume) == "kvm1"
        assert (admin.cloud.team / volume).stat().st_ino == content.st_ino
    named = {"host": "kvm3", "block_migration": "auto"} if args else {"host": "kvm3"}
    admin.call.act(id, action, named, "2.56")
    assert admin.call.settled(id)["OS-EXT-SRV-ATTR:host"] == "kvm1"


def test_unshelving_takes_the_root_volume_along(admin, booted):
    id, host, volume = booted
    inode = (admin.cloud.team / volume).stat().st_ino
    assert admin.call.act(id, "shelve").status == 202
    eventually(lambda: admin.call.server(id)["status"] == "SHELVED_OFFLOADED")
    admin.down(host)
    assert admin.call.act(id, "unshelve").status == 202
    server = admin.call.settled(id)
    assert (server["status"], server["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", "kvm2"), server.get("fault")
    assert admin.where(volume) == "kvm2" and (admin.cloud.team / volume).stat().st_ino == inode


def test_a_server_that_is_deleted_while_its_volume_changes_hosts(admin, booted, monkeypatch):
    """Nothing of it is left, on either host; the volume goes with it."""
    id, host, volume = booted
    admin.dies(host)
    homes = admin.cloud.services.volume.homes
    adopt = homes._adopt

    def deleted_meanwhile(*given):
        assert admin.call.delete(f"/v2.1/servers/{id}").status == 204
        adopt(*given)

    monkeypatch.setattr(homes, "_adopt", deleted_meanwhile)
    assert admin.evacuate(id).status == 200
    eventually(lambda: admin.call.get(f"/v2.1/servers/{id}").status == 404, seconds=60)
    monkeypatch.undo()
    eventually(lambda: admin.seen(volume) is None, seconds=60)
    admin.returns(host)
    eventually(lambda: not admin.removals())
    assert admin.homes(volume) == [] and not (admin.cloud.team / volume).exists()
    assert not any(admin.cloud.kvm[name].knows(id) for name in admin.cloud.hosts)
