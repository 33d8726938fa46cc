# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes in storage pools of libvirt (LVM, RBD), on a fake host; folders are in ``test_volume``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import libvirt  # type: ignore[import-untyped]
import pytest

from magnetar_agent.host import inventory
from magnetar_agent.host.storage import NetworkSource
from magnetar_agent.reconcile import reconcile
from magnetar_agent.virt.disks import storage
from magnetar_agent.virt.disks.storage import rbd_source
from magnetar_agent.volumes import pools
from magnetar_core.ensure import check_permissions
from magnetar_core.errors import Cancelled, Conflict, HypervisorError, InvalidField, NoSpace
from magnetar_core.kinds import BY_NOUN
from magnetar_core.operations import Operation
from tests.unit.agent.conftest import SMALL, Host

GIB = 2**30
DISKS = {**SMALL, "disk": 1}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A host with a volume group, which has room for 4 GiB, and a Ceph pool."""
    made = Host(tmp_path / "host", pools={"vg": {"type": "lvm", "libvirt_pool": "vg0"}, "ceph": {"type": "rbd"}})
    made.fake.add_pool("vg0", room=4 * GIB)
    made.fake.add_pool("ceph")
    made.start()
    yield made
    made.agent.close()


def names(host: Host, pool: str = "vg0") -> set[str]:
    return set(host.fake.contents(pool))


def image(host: Host, content: bytes = b"magnetar") -> None:
    path = host.root / "img.raw"
    path.write_bytes(content.ljust(1 << 20, b"\0"))
    host.ensure("image", "img", {"source": {"path": str(path)}, "disk_format": "raw"})


def test_made_grown_and_removed(host: Host) -> None:
    shown = host.ensure("volume", "data", {"size": 1, "pool": "vg"}).resource
    assert (shown["status"], shown["format"], shown["shared"]) == ("available", "raw", False)
    assert not host.ensure("volume", "data", {"size": 1, "pool": "vg"}).changed
    host.ensure("volume", "data", {"size": 2})
    assert host.fake.content("vg0", shown["id"]).size == 2 * GIB
    assert host.ensure("volume", "data", None).changed and names(host) == set()
    assert host.fake.wiped == [shown["id"]]  # the next volume may get the same blocks
    assert host.ensure("volume", "far", {"size": 1, "pool": "ceph"}).resource["shared"]
    host.ensure("volume", "far", None)
    assert len(host.fake.wiped) == 1


def test_copies_of_all_kinds(host: Host) -> None:
    image(host)
    first = host.ensure("volume", "boot", {"image": "img", "pool": "vg"}).resource
    assert first["bootable"] and first["size"] == 1
    assert host.fake.content("vg0", first["id"]).disk.path.open("rb").read(8) == b"magnetar"
    host.ensure("volume_snapshot", "then", {"volume": "boot"})
    for name, pool in (("back", "vg"), ("far", "ceph"), ("here", "default")):
        there = host.ensure("volume", name, {"snapshot": "then", "pool": pool, "format": "raw"}).resource
        disk = host.fake.content({"vg": "vg0"}.get(pool, pool), there["id"]).disk.path if pool != "default" else (
            host.root / "state/volumes" / there["id"])
        assert disk.open("rb").read(8) == b"magnetar"
    assert len(names(host)) == 3  # two volumes and the snapshot


def test_in_a_server_that_runs(host: Host) -> None:
    shown = host.ensure("volume", "data", {"size": 1, "pool": "vg"}).resource
    server = host.server(block_device_mapping=[{"source_type": "volume", "uuid": "data"}], flavor=DISKS).resource
    disk = host.fake.running(server["id"]).disks[1]
    assert disk.block_device and disk.format == "raw" and disk.serial == shown["id"]
    host.ensure("volume", "data", {"size": 2})  # below first, then QEMU is told
    assert host.fake.content("vg0", shown["id"]).size == 2 * GIB
    host.ensure("volume_snapshot", "then", {"volume": "data"})
    assert len(names(host)) == 2 and not list((host.root / "state/volumes").glob("*"))
    host.ensure("volume_attachment", "web1:data", None)
    assert len(host.fake.running(server["id"]).disks) == 2  # the root disk and the config drive


def test_a_full_pool_leaves_nothing(host: Host) -> None:
    image(host)
    with pytest.raises(NoSpace):
        host.ensure("volume", "data", {"size": 5, "pool": "vg"})
    with pytest.raises(NoSpace):
        host.ensure("volume", "data", {"image": "img", "size": 5, "pool": "vg"})
    assert host.agent.host.documents.list("volume") == [] and names(host) == set()
    host.ensure("volume", "data", {"size": 3, "pool": "vg"})
    with pytest.raises(NoSpace):
        host.ensure("volume", "data", {"size": 5})
    with pytest.raises(NoSpace):
        host.ensure("volume_snapshot", "then", {"volume": "data"})
    shown = reconcile.show_resource(host.agent.drivers, BY_NOUN["volume"], "data")
    assert (shown["fault"]["code"], shown["status"]) == ("no-space", "available") and len(names(host)) == 1
    assert host.ensure("volume", "data", {"size": 4}).resource["fault"] is None


@pytest.mark.parametrize("error", [Cancelled(), HypervisorError("qemu-img could not.")], ids=["cancelled", "failed"])
def test_half_a_copy_leaves_nothing(host: Host, error: Exception) -> None:
    image(host)
    host.fake.fail_next("copy_into", error)
    with pytest.raises(type(error)):
        reconcile.ensure_resource(host.agent.drivers, BY_NOUN["volume"], "v", {"image": "img", "pool": "vg"},
                                  check_permissions({}), False, Operation("test"))
    assert names(host) == set() and host.agent.host.documents.list("volume") == []


def test_a_pool_that_is_not_there(host: Host) -> None:
    shown = host.ensure("volume", "data", {"size": 1, "pool": "vg"}).resource
    gone = host.root / "libvirt/pool-vg0"
    gone.rename(gone.with_name("away"))
    with pytest.raises(Conflict, match="no storage pool 'vg0'.*virsh pool-define"):
        host.ensure("volume", "more", {"size": 1, "pool": "vg"})
    assert reconcile.show_resource(host.agent.drivers, BY_NOUN["volume"], "data")["status"] == "error"
    with pytest.raises(Conflict, match="gone from the host"):
        host.ensure("volume", "data", {"size": 2})
    assert inventory.host_resource(host.agent.drivers)["orphans"]["files"] == []
    gone.with_name("away").rename(gone)
    assert host.ensure("volume", "data", {"size": 2}).resource["id"] == shown["id"]


def test_what_it_cannot_hold_is_refused(host: Host) -> None:
    with pytest.raises(InvalidField, match="format: must be raw in pool 'vg'"):
        host.ensure("volume", "data", {"size": 1, "pool": "vg", "format": "qcow2"})
    assert host.ensure("volume", "many", {"size": 1, "pool": "vg", "multiattach": True}).resource["format"] == "raw"


def test_orphans_of_this_host_alone_are_told(host: Host) -> None:
    for pool in ("vg0", "ceph"):
        host.fake.make_content(pool, "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d", GIB)
        host.fake.make_content(pool, "root", GIB)
    (told,) = inventory.host_resource(host.agent.drivers)["orphans"]["files"]
    assert told.endswith("/pool-vg0/8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")


def test_a_root_disk_in_it(host: Host) -> None:
    image(host)
    host.ensure("volume", "boot", {"image": "img", "pool": "vg"})
    shown = host.ensure("server", "web1", {"flavor": SMALL, "block_device_mapping": [
        {"source_type": "volume", "uuid": "boot", "boot_index": 0}]}).resource
    assert host.fake.running(shown["id"]).disks[0].block_device


POOL = """<pool type="rbd"><name>ceph</name><source><host name="mon1" port="6789"/><host name="mon2"/>
<name>volumes</name>%s</source></pool>"""


class FakePool:
    """As much of a virStoragePool as ``rbd`` asks."""

    def connect(self) -> Any:
        return self

    def secretLookupByUsage(self, kind: int, usage: str) -> Any:  # noqa: N802 (libvirt's name)
        assert (kind, usage) == (2, "client.magnetar")
        return self

    def UUIDString(self) -> str:  # noqa: N802
        return "by-usage"


@pytest.mark.parametrize(("auth", "user", "secret"), [
    ("", None, None),
    ('<auth type="ceph" username="m"><secret uuid="by-uuid"/></auth>', "m", "by-uuid"),
    ('<auth type="ceph" username="m"><secret usage="client.magnetar"/></auth>', "m", "by-usage"),
], ids=["none", "uuid", "usage"])
def test_how_qemu_reaches_an_image_of_ceph(auth: str, user: str | None, secret: str | None) -> None:
    assert rbd_source(POOL % auth, "image", FakePool()) == NetworkSource(
        "rbd", "volumes/image", hosts=(("mon1", "6789"), ("mon2", None)), user=user, secret=secret)


def test_a_pool_that_says_nothing_is_told() -> None:
    with pytest.raises(HypervisorError, match="no name of a Ceph pool"):
        rbd_source("<pool type='rbd'><name>x</name></pool>", "image", FakePool())


def test_pools_of_ceph_that_libvirt_has_forgotten_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of type rbd that start by themselves, when the cluster answers; not once the connection has ended."""
    class Pool:
        def __init__(self, name: str, failures: int) -> None:
            self.name, self.failures = lambda: name, failures

        def create(self) -> None:
            if self.failures:
                self.failures -= 1
                raise libvirt.libvirtError("failed to connect to the RADOS monitor")
            stopped.remove(self)

    class Conn:
        def listAllStoragePools(self, flags: int) -> list[Pool]:  # noqa: N802 (libvirt's name)
            asked = libvirt.VIR_CONNECT_LIST_STORAGE_POOLS_INACTIVE | libvirt.VIR_CONNECT_LIST_STORAGE_POOLS_AUTOSTART
            assert flags == asked | libvirt.VIR_CONNECT_LIST_STORAGE_POOLS_RBD
            if len(waited) > 3:
                raise libvirt.libvirtError("the connection is closed")
            return list(stopped)

    waited: list[float] = []
    monkeypatch.setattr(storage.time, "sleep", waited.append)
    stopped = [Pool("one", 0), Pool("two", 2)]
    storage.Storage().start_pools(Conn())
    assert stopped == [] and waited == [storage.AGAIN] * 2
    stopped.append(Pool("never", 99))
    storage.Storage().start_pools(Conn())
    assert len(stopped) == 1 and len(waited) == 4


def test_a_server_whose_pool_does_not_run(host: Host) -> None:
    """It is shown, cannot start, gives the volume back, and may go."""
    host.ensure("volume", "data", {"size": 1, "pool": "vg"})
    mapping = [{"source_type": "volume", "uuid": "data"}]
    host.server(block_device_mapping=mapping, flavor=DISKS, power="off")
    (host.root / "libvirt/pool-vg0").rename(host.root / "libvirt/away")
    assert host.show()["power_state"] == "off"
    with pytest.raises(HypervisorError, match="pool-vg0"):
        host.server(power="running")
    with pytest.raises(Conflict, match="no storage pool 'vg0'"):
        host.server(power="off", description="defined again")
    assert host.ensure("volume_attachment", "web1:data", None).changed
    (host.root / "libvirt/away").rename(host.root / "libvirt/pool-vg0")
    host.ensure("volume_attachment", "web1:data", {"server": "web1", "volume": "data"})
    (host.root / "libvirt/pool-vg0").rename(host.root / "libvirt/away")
    assert host.ensure("server", "web1", None).changed
    (host.root / "libvirt/away").rename(host.root / "libvirt/pool-vg0")
    shown = reconcile.show_resource(host.agent.drivers, BY_NOUN["volume"], "data")
    assert (shown["status"], shown["attachments"]) == ("available", [])


CHOSEN = "0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11"
MADE = {"volume": {"name": "mine", "size": 1}, "volume from an image": {"name": "mine", "image": "img"},
        "volume_snapshot": {"name": "mine", "volume": "data"}}


@pytest.fixture
def places(host: Host, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Where the pools have their content; ``team`` is a folder that other hosts share."""
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "team")
    (host.root / "team").mkdir()
    pools = {**host.agent.host.settings.pools, "team": {"type": "nfs", "path": str(host.root / "team")}}
    host.settings["pools"] = pools
    host.agent.host.settings = dataclasses.replace(host.agent.host.settings, pools=pools)
    (host.root / "state/volumes").mkdir(mode=0o711)
    return {"vg": host.root / "libvirt/pool-vg0", "ceph": host.root / "libvirt/pool-ceph",
            "default": host.root / "state/volumes", "team": host.root / "team"}


@pytest.mark.parametrize("what", MADE)
@pytest.mark.parametrize("pool", ["vg", "ceph", "default", "team"])
def test_content_of_another_is_not_taken_over(host: Host, places: dict[str, Path], pool: str, what: str) -> None:
    """A uuid may be chosen; what is called so already is another host's, or of a document that was lost."""
    image(host)
    host.ensure("volume", "data", {"size": 1, "pool": pool})
    noun = what.partition(" ")[0]
    theirs = places[pool] / CHOSEN
    theirs.write_bytes(b"theirs".ljust(4096, b"."))
    want = MADE[what] if noun == "volume_snapshot" else {**MADE[what], "pool": pool}
    for _time in range(2):
        with pytest.raises(Conflict, match=f"{CHOSEN}.*Choose another id"):
            host.ensure(noun, CHOSEN, want)
        assert host.agent.host.documents.get(noun, CHOSEN) is None
    host.restart()
    assert theirs.read_bytes().startswith(b"theirs") and len(theirs.read_bytes()) == 4096
    assert CHOSEN not in host.fake.wiped and len([*places[pool].glob("*-*")]) == 2
    theirs.unlink()
    assert host.ensure(noun, CHOSEN, want).resource["status"] == "available"
    host.ensure(noun, CHOSEN, None)
    assert len([*places[pool].glob("*-*")]) == 1


@pytest.mark.parametrize("pool", ["ceph", "team"])
def test_two_hosts_that_make_the_same_at_once(host: Host, places: dict[str, Path], pool: str) -> None:
    """The other one has begun after this one has looked."""
    look, theirs = type(pools.find_pool(host.agent.host, pool)).has, places[pool] / CHOSEN

    def late(place: Any, id: str) -> bool:
        found = look(place, id)
        if pool == "ceph":
            theirs.write_bytes(b"theirs")
        else:
            theirs.with_name(f"{CHOSEN}.begun").touch()
        return found
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(pools.find_pool(host.agent.host, pool)), "has", late)
        if pool == "team":
            theirs.with_name(f"{CHOSEN}.begun").touch()
        with pytest.raises(Conflict, match="Choose another id"):
            host.ensure("volume", CHOSEN, {"name": "mine", "size": 1, "pool": pool})
    assert [path.name for path in places[pool].glob("*-*")] == [CHOSEN if pool == "ceph" else f"{CHOSEN}.begun"]


@pytest.mark.parametrize("pool", ["vg", "ceph", "default", "team"])
def test_what_this_host_began_is_made_again(host: Host, places: dict[str, Path], pool: str) -> None:
    """Also what an agent of before began, which noted only what it makes the volume from."""
    image(host)
    host.ensure("volume", "data", {"image": "img", "pool": pool, "format": "raw"})
    document = host.agent.host.documents.find("volume", "data")
    content = places[pool] / document.id
    for begun in ({"begun": True}, {"source_name": "img"}):
        if pool in ("vg", "ceph"):
            content.write_bytes(b"half")
        else:
            content.rename(content.with_name(f"{document.id}.new"))
        document.state = {**begun, "unfinished": True, "making": True}
        host.agent.host.documents.write(document)
        host.restart()
        assert content.open("rb").read(8) == b"magnetar" and content.stat().st_size == GIB
        assert reconcile.show_resource(host.agent.drivers, BY_NOUN["volume"], "data")["status"] == "available"
    document.state = {"begun": True, "unfinished": True, "making": True}
    host.agent.host.documents.write(document)
    host.ensure("volume", "data", None)
    assert list(places[pool].glob("*-*")) == []


def test_a_volume_of_before_goes_with_its_content(host: Host, places: dict[str, Path]) -> None:
    for pool, place in places.items():
        made = host.ensure("volume", pool, {"size": 1, "pool": pool}).resource
        document = host.agent.host.documents.find("volume", pool)
        document.state = {"made": True, "bytes": GIB}
        host.agent.host.documents.write(document)
        host.ensure("volume", pool, None)
        assert not (place / made["id"]).exists()
