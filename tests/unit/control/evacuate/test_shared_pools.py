# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers with volumes in a pool that several hosts reach: the volumes come along from a dead host, as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.host import mounts
from magnetar_core.errors import HypervisorError
from tests.support.control.build import block
from tests.support.waiting import eventually
from tests.unit.control.attachments.asking import Owner
from tests.unit.control.moves.clouds import flavors
from tests.unit.control.moves.inside import Inside

from .evacuating import ENGINES, Evacuating

pytestmark = [ENGINES, pytest.mark.slow]


class Sharing(Inside):
    """``kvm1`` and ``kvm2`` reach the pool ``team``; ``kvm3`` has a folder of its own under this name."""

    @property
    def team(self) -> Path:
        return self.folder / "nfs"

    def agent_of(self, name: str) -> dict[str, Any]:
        self.team.mkdir(exist_ok=True)
        return {"pools": {"team": {"type": "dir", "path": str(self.folder / "own")} if name == "kvm3" else {
            "type": "nfs", "path": str(self.team)}}}


@pytest.fixture(scope="module")
def cloud(databases):
    """Shared by the tests of a module."""
    is_mount, source = Path.is_mount, mounts.mount_source
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "is_mount", lambda path: path.name == "nfs" or is_mount(path))
        patch.setattr(mounts, "mount_source", lambda path: "nas:/team" if path.name == "nfs" else source(path))
        with Sharing(hosts=3, databases=databases, host_down_after=600.0, volume_pools=["default", "team"]) as found:
            flavors(found)
            found.parts.working.settling = lambda: False
            eventually(lambda: {(pool.host, pool.shared) for pool in found.services.volume.host_pools()
                                if pool.name == "team"} == {("kvm1", True), ("kvm2", True), ("kvm3", False)})
            yield found


@pytest.fixture
def admin(cloud):
    """With servers and volumes that go with the test; all hosts are up afterwards."""
    found = Evacuating(cloud)
    yield found
    for name in found.stopped & set(cloud.hosts):
        found.up(name)
    Owner.clear(found)


@pytest.fixture
def booted(admin):
    """A server that boots from a volume of the pool, on a host that reaches it: its uuid, the host and the volume."""
    blocks = [block("image", admin.call.image(), boot_index=0, volume_size=1, volume_type="team",
                    delete_on_termination=True)]
    id = admin.server(imageRef="", block_device_mapping_v2=blocks, flavorRef="small", host="kvm1",
                      version="2.74")["id"]
    volume = admin.attached(id)[0]["volumeId"]
    assert admin.host_of(id) == admin.cloud.services.volume.where(volume) == "kvm1"
    return id, "kvm1", volume


def homes(admin, volume):
    """The hosts whose agents have the volume."""
    return sorted(host for host in admin.cloud.hosts if host not in admin.stopped
                  for one in admin.on_host("volume", host) if one["id"] == volume)


def test_a_server_that_boots_from_a_shared_volume(admin, booted):
    id, host, _volume = booted
    data = admin.volume(host=host, volume_type="team")
    assert admin.attach(id, data).status == 200
    eventually(lambda: admin.state(data) == "in-use")
    before = {one["volumeId"]: one["device"] for one in admin.attached(id)}
    contents = {one: (admin.cloud.team / one).read_bytes() for one in before}
    admin.down(host)
    server = admin.evacuated(id)
    assert (server["OS-EXT-SRV-ATTR:host"], server["status"], server.get("fault")) == ("kvm2", "ACTIVE", None)
    assert {one["volumeId"]: one["device"] for one in admin.attached(id)} == before
    assert {one["id"] for one in admin.has("kvm2", id)["volumes_attached"]} == set(before)
    assert {admin.seen(one)["os-vol-host-attr:host"] for one in before} == {"kvm2@magnetar#team"}
    assert {admin.state(one) for one in before} == {"in-use"}
    assert {one: (admin.cloud.team / one).read_bytes() for one in before} == contents
    admin.boots(host)
    admin.up(host)  # it gives up the server, then the volumes, whose content stays
    eventually(lambda: [homes(admin, one) for one in before] == [["kvm2"]] * 2)
    assert all((admin.cloud.team / one).exists() for one in before)
    admin.clean(id, "kvm2")
    admin.down("kvm2")  # and back, with the volumes
    assert admin.evacuated(id)["OS-EXT-SRV-ATTR:host"] == host
    admin.boots("kvm2")
    admin.up("kvm2")
    eventually(lambda: [homes(admin, one) for one in before] == [[host]] * 2)


def test_a_host_without_the_pool_is_no_target(admin, booted):
    id, host, volume = booted
    admin.down(host)
    assert admin.evacuated(id, host="kvm3")["OS-EXT-SRV-ATTR:host"] == host
    assert admin.cloud.services.volume.where(volume) == host
    admin.boots(host)
    admin.up(host)


def test_where_it_fails_the_volume_stays_with_the_old_host(admin, booted):
    id, host, volume = booted
    admin.down(host)
    admin.cloud.kvm["kvm2"].fake.fail_next("define", HypervisorError("libvirt could not define the domain: no."))
    assert admin.evacuated(id, host="kvm2")["OS-EXT-SRV-ATTR:host"] == host
    assert admin.cloud.services.volume.where(volume) == host
    admin.boots(host)
    admin.up(host)
    eventually(lambda: admin.cloud.kvm[host].runs(id))
    eventually(lambda: homes(admin, volume) == [host])
    assert (admin.cloud.team / volume).exists()


def test_a_detached_volume_is_used_without_its_host(admin):
    """Extended, deleted, and attached on a living host that reaches its pool."""
    one, two = (admin.volume(host="kvm1", volume_type="team") for _number in range(2))
    id = admin.server(flavorRef="small", host="kvm2", version="2.74")["id"]
    admin.down("kvm1")
    assert admin.call.post(f"{admin.api}/volumes/{one}/action", {"os-extend": {"new_size": 2}}).status == 202
    eventually(lambda: (admin.state(one), admin.seen(one)["size"]) == ("available", 2))
    assert admin.cloud.services.volume.where(one) == "kvm2"
    assert admin.attach(id, two).status == 200
    eventually(lambda: admin.state(two) == "in-use")
    assert admin.cloud.services.volume.where(two) == "kvm2"
    assert admin.call.delete(f"{admin.api}/volumes/{one}").status == 202
    eventually(lambda: admin.seen(one) is None)
    assert not (admin.cloud.team / one).exists()
    admin.up("kvm1")
    eventually(lambda: (homes(admin, one), homes(admin, two)) == ([], ["kvm2"]))
    assert (admin.cloud.team / two).exists()
