# SPDX-License-Identifier: GPL-3.0-or-later
"""What every ``Hypervisor`` does: the same cases against the fake and, marked ``lab``, this host's libvirt.

The guests have nothing to boot; cases which need a guest that answers are in ``tests/lab/test_hypervisor.py``.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import uuid as uuids
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from magnetar_agent.fake import FakeHypervisor
from magnetar_agent.hypervisor import (
    CRASHED,
    OFF,
    PAUSED,
    RUNNING,
    SUSPENDED,
    Disk,
    DomainSpec,
    Event,
    Export,
    NetworkSpec,
    Nic,
    Passage,
)
from magnetar_core.errors import Cancelled, Conflict, HypervisorError, NoSpace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB = 2**20
HOSTILE = "<&>\"' ]]> ünï \N{SNOWMAN}"


class FakeOutside:
    """Somebody else on the fake's host."""

    def __init__(self, hypervisor: FakeHypervisor) -> None:
        self.hypervisor = hypervisor
        self.define = hypervisor.defined_outside
        self.destroy = hypervisor.destroyed_outside
        self.undefine = hypervisor.undefined_outside
        self.forget = hypervisor.undefined_while_it_runs
        self.network = hypervisor.network_outside
        self.pool = hypervisor.add_pool

    def backup(self, uuid: str, folder: Path) -> None:
        self.hypervisor.backup_outside(uuid)

    def backing_up(self, uuid: str) -> bool:
        return self.hypervisor.copying(uuid)

    def clean(self, prefix: str) -> None:
        """Nothing outlives the fake."""


class LibvirtOutside:
    """Somebody else on this host: plain libvirt."""

    def __init__(self, uri: str) -> None:
        import libvirt

        self.conn = libvirt.open(uri)
        self.folders: list[Path] = []

    def define(self, xml: str) -> None:
        self.conn.defineXML(xml)

    def destroy(self, uuid: str) -> None:
        self.conn.lookupByUUIDString(uuid).destroy()

    def forget(self, uuid: str) -> None:
        self.conn.lookupByUUIDString(uuid).undefine()

    def undefine(self, uuid: str) -> None:
        self.destroy(uuid)
        self.conn.lookupByUUIDString(uuid).undefine()

    def network(self, name: str) -> None:
        self.conn.networkDefineXML(f"<network><name>{name}</name><bridge name='{name[:14]}'/></network>")

    def pool(self, name: str, room: int) -> Path:
        """A pool of files in a file system of its own stands for LVM: libvirt treats both alike."""
        folder = Path(tempfile.mkdtemp(prefix="magnetar-pool-", dir="/var/tmp"))
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={room},mode=0711", "tmpfs", folder], check=True)
        self.folders.append(folder)
        self.conn.storagePoolDefineXML(
            f"<pool type='dir'><name>{name}</name><target><path>{folder}</path></target></pool>").create()
        return folder

    def backup(self, uuid: str, folder: Path) -> None:
        """One that lasts until somebody ends it."""
        folder.mkdir()
        folder.chmod(0o777)
        self.conn.lookupByUUIDString(uuid).backupBegin(
            f"<domainbackup mode='pull'><server transport='unix' socket='{folder}/socket'/><disks><disk name='vda' "
            f"backup='yes' type='file'><scratch file='{folder}/scratch'/></disk></disks></domainbackup>", None)

    def backing_up(self, uuid: str) -> bool:
        return bool(self.conn.lookupByUUIDString(uuid).jobStats()["type"])

    def clean(self, prefix: str) -> None:
        for pool in self.conn.listAllStoragePools():
            if pool.name().startswith(prefix):
                if pool.isActive():
                    pool.destroy()
                pool.undefine()
        for folder in self.folders:
            subprocess.run(["umount", folder], check=True)
            folder.rmdir()
        for domain in self.conn.listAllDomains():
            if domain.name().startswith(prefix):
                if domain.isActive():
                    domain.destroy()
                domain.undefineFlags(1)
        for network in self.conn.listAllNetworks():
            if network.name().startswith(prefix):
                if network.isActive():
                    network.destroy()
                network.undefine()
        self.conn.close()


class Place:
    """A hypervisor, what happened on it, somebody else on it, and a folder that QEMU can reach."""

    def __init__(self, hypervisor: Any, outside: Any, folder: Path) -> None:
        self.hypervisor, self.outside, self.folder = hypervisor, outside, folder
        self.prefix = "mt" + uuids.uuid4().hex[:8]
        self.events: list[Event] = []
        hypervisor.on_event(self.events.append)

    def spec(self, **changes: Any) -> DomainSpec:
        """A small domain whose disk exists."""
        uuid = str(uuids.uuid4())
        folder = self.folder / uuid
        folder.mkdir(mode=0o750)
        disk = Disk(folder / "disk", "vda", tag="root <disk>")
        self.hypervisor.make_disk(disk.path, "qcow2", 16 * MIB)
        self.hypervisor.permit([folder])
        made = DomainSpec(uuid=uuid, name=f"{self.prefix}-{uuid[:8]}", title=HOSTILE, vcpus=1, ram_mib=32,
                          virt_type="qemu", machine="q35", disks=(disk,), nics=(), console_log=folder / "console.log",
                          description=HOSTILE, metadata={"name": HOSTILE, HOSTILE: "x"})
        return replace(made, **changes)

    def defined(self, **changes: Any) -> str:
        """The uuid of a domain of ours."""
        spec = self.spec(**changes)
        self.hypervisor.define(spec)
        return spec.uuid

    def foreign(self, spec: DomainSpec) -> None:
        """Somebody else defines *spec*, without our metadata."""
        self.outside.define(re.sub("(?s)<metadata>.*</metadata>", "", self.hypervisor.render(spec)))

    def state(self, uuid: str) -> str:
        domain = self.hypervisor.domain(uuid)
        assert domain == self.hypervisor.domains().get(uuid)
        return str(domain.state) if domain else "missing"

    def happened(self, uuid: str, what: str) -> Event:
        return eventually(lambda: next((e for e in self.events if e.uuid == uuid and e.what == what), None))


def eventually(find: Callable[[], Any], seconds: float = 10) -> Any:
    """What *find* gives, as soon as it gives something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = find()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


@pytest.fixture(params=["fake", pytest.param("libvirt", marks=pytest.mark.lab)])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="magnetar-contract-", dir="/var/tmp"))
    folder.chmod(0o711)
    if request.param == "fake":
        fake = FakeHypervisor(folder)
        made = Place(fake, FakeOutside(fake), folder)
    else:
        from magnetar_agent.virt import LibvirtHypervisor

        made = Place(LibvirtHypervisor("qemu:///system", folder), LibvirtOutside("qemu:///system"), folder)
    try:
        yield made
    finally:
        made.outside.clean(made.prefix)
        made.hypervisor.close()
        shutil.rmtree(folder)
    assert not any(thread.name.startswith("libvirt-") for thread in threading.enumerate())


def test_host(place: Place) -> None:
    assert place.hypervisor.connected()
    facts = place.hypervisor.host()
    assert {"id", "name", "hypervisor_type", "hypervisor_version", "libvirt_version", "cpu_model", "vcpus", "memory_mb",
            "virt_types", "kvm"} <= set(facts)
    assert facts["vcpus"] > 0 and facts["memory_mb"] > 0 and "qemu" in facts["virt_types"]
    kvm = place.hypervisor.kvm()
    assert set(kvm) == {"usable", "reason", "checked_at"} and kvm["checked_at"]
    assert ("kvm" in place.hypervisor.host()["virt_types"]) == kvm["usable"]


def test_a_defined_domain_is_seen_as_it_was_asked_for(place: Place) -> None:
    spec = place.spec(nics=(Nic("52:54:00:00:00:01", network="no-such-net", tag="a&b"),
                            Nic("52:54:00:00:00:02", "e1000e", bridge="br0")))
    place.hypervisor.define(spec)
    seen = place.hypervisor.domain(spec.uuid)
    assert seen is not None
    assert (seen.uuid, seen.name, seen.title, seen.description) == (spec.uuid, spec.name, HOSTILE, HOSTILE)
    assert (seen.state, seen.owned, seen.persistent) == (OFF, True, True)
    assert (seen.vcpus, seen.ram_mib, seen.virt_type) == (1, 32, "qemu") and "q35" in seen.machine
    assert seen.disks == spec.disks and seen.nics == spec.nics
    assert place.happened(spec.uuid, "defined")


def test_defining_again_changes_it(place: Place) -> None:
    spec = place.spec()
    for _time in range(2):
        place.hypervisor.define(spec)
    place.hypervisor.define(replace(spec, vcpus=2, title="other"))
    seen = place.hypervisor.domain(spec.uuid)
    assert seen is not None and (seen.vcpus, seen.title) == (2, "other")


def test_a_change_from_outside_is_seen_at_once(place: Place) -> None:
    hypervisor, spec = place.hypervisor, place.spec()
    hypervisor.define(spec)
    for running in (False, True):
        if running:
            hypervisor.start(spec.uuid)
        for number in range(8):
            said = f"{running} {number}"
            place.outside.define(hypervisor.render(replace(spec, description=said)))
            assert hypervisor.domains()[spec.uuid].description == said
            assert hypervisor.domain(spec.uuid).description == said


def test_control_characters_and_line_breaks_pass(place: Place) -> None:
    uuid = place.defined(title="a\nb\x01", description="c\x00d\n\ud800", metadata={"k\x02": "v\x03\ufffe"})
    seen = place.hypervisor.domain(uuid)
    assert seen is not None and seen.title == "a b\ufffd" and seen.description == "c\ufffdd\n\ufffd"


def test_power(place: Place) -> None:
    hypervisor, uuid = place.hypervisor, place.defined()
    steps = [(hypervisor.start, RUNNING), (hypervisor.pause, PAUSED), (hypervisor.resume, RUNNING),
             (hypervisor.reset, RUNNING), (hypervisor.save, SUSPENDED), (hypervisor.start, RUNNING),
             (hypervisor.save, SUSPENDED), (hypervisor.discard_save, OFF), (hypervisor.start, RUNNING),
             (hypervisor.destroy, OFF)]
    for act, state in steps:
        act(uuid)
        assert place.state(uuid) == state, act
        if act != hypervisor.reset:
            act(uuid)  # what is as it was asked for is no error
            assert place.state(uuid) == state, act
    for what in ("started", "suspended", "resumed", "rebooted", "stopped"):
        assert place.happened(uuid, what)
    hypervisor.undefine(uuid)
    assert place.state(uuid) == "missing" and place.happened(uuid, "undefined")


def test_start_paused_also_from_a_save(place: Place) -> None:
    uuid = place.defined()
    place.hypervisor.start(uuid, paused=True)
    assert place.state(uuid) == PAUSED
    place.hypervisor.resume(uuid)
    place.hypervisor.save(uuid)
    place.hypervisor.start(uuid, paused=True)
    assert place.state(uuid) == PAUSED


def test_undefine_forgets_a_save_and_refuses_a_running_domain(place: Place) -> None:
    uuid = place.defined()
    place.hypervisor.start(uuid)
    with pytest.raises(HypervisorError, match="runs"):
        place.hypervisor.undefine(uuid)
    assert place.state(uuid) == RUNNING
    place.hypervisor.save(uuid)
    place.hypervisor.undefine(uuid)
    place.hypervisor.undefine(uuid)
    assert place.state(uuid) == "missing"


def test_what_is_off_cannot_be_paused(place: Place) -> None:
    uuid = place.defined()
    for act in (place.hypervisor.pause, place.hypervisor.resume, place.hypervisor.save, place.hypervisor.reset,
                place.hypervisor.reboot):
        with pytest.raises(HypervisorError, match="not running"):
            act(uuid)
    place.hypervisor.shutdown(uuid)
    place.hypervisor.destroy(uuid)
    assert place.state(uuid) == OFF


def test_a_missing_disk_is_named(place: Place) -> None:
    spec = place.spec()
    place.hypervisor.define(spec)
    spec.disks[0].path.unlink()
    with pytest.raises(HypervisorError, match=re.escape(str(spec.disks[0].path))):
        place.hypervisor.start(spec.uuid)
    assert place.state(spec.uuid) in (OFF, CRASHED)


def test_a_missing_network_is_named(place: Place) -> None:
    uuid = place.defined(nics=(Nic("52:54:00:00:00:03", network="no-such-net"),))
    with pytest.raises(HypervisorError, match="no-such-net"):
        place.hypervisor.start(uuid)


def test_killed_from_outside(place: Place) -> None:
    uuid = place.defined()
    place.hypervisor.start(uuid)
    place.outside.destroy(uuid)
    assert place.state(uuid) == OFF and place.hypervisor.domain(uuid).reason == "outside"
    assert place.happened(uuid, "stopped").reason == "outside"


def test_undefined_from_outside(place: Place) -> None:
    uuid = place.defined()
    place.hypervisor.start(uuid)
    place.outside.undefine(uuid)
    assert place.state(uuid) == "missing" and place.happened(uuid, "undefined")
    with pytest.raises(Conflict, match="from outside"):
        place.hypervisor.start(uuid)
    place.hypervisor.destroy(uuid)
    place.hypervisor.undefine(uuid)


def test_undefined_from_outside_while_it_runs(place: Place) -> None:
    """It would be gone when it stops, until it is defined again."""
    spec, hypervisor = place.spec(), place.hypervisor
    for again in (True, False):
        hypervisor.define(spec)
        hypervisor.start(spec.uuid)
        place.outside.forget(spec.uuid)
        seen = hypervisor.domain(spec.uuid)
        assert seen is not None and (seen.state, seen.persistent) == (RUNNING, False)
        if again:
            hypervisor.define(spec)
            seen = hypervisor.domain(spec.uuid)
            assert seen is not None and (seen.state, seen.persistent) == (RUNNING, True)
        hypervisor.destroy(spec.uuid)
        assert (hypervisor.domain(spec.uuid) is not None) == again


def test_other_peoples_domains_are_not_touched(place: Place) -> None:
    spec = place.spec()
    place.foreign(spec)
    before = place.hypervisor.domain(spec.uuid)
    assert before is not None and not before.owned
    hypervisor = place.hypervisor
    with pytest.raises(Conflict, match=spec.name):
        hypervisor.define(spec)
    with pytest.raises(Conflict, match=spec.name):
        hypervisor.define(replace(place.spec(), name=spec.name))
    for act in (hypervisor.undefine, hypervisor.start, hypervisor.shutdown, hypervisor.destroy, hypervisor.pause,
                hypervisor.resume, hypervisor.save, hypervisor.discard_save, hypervisor.reboot, hypervisor.reset):
        with pytest.raises(Conflict):
            act(spec.uuid)
    assert hypervisor.domain(spec.uuid) == before


def test_a_clone_with_a_copy_of_our_metadata_is_not_ours(place: Place) -> None:
    spec = place.spec()
    other = str(uuids.uuid4())
    xml = place.hypervisor.render(spec).replace(f"<uuid>{spec.uuid}", f"<uuid>{other}")
    place.outside.define(xml)
    assert not place.hypervisor.domain(other).owned
    with pytest.raises(Conflict):
        place.hypervisor.undefine(other)


def test_devices_of_a_running_domain(place: Place) -> None:
    hypervisor, spec = place.hypervisor, place.spec()
    hypervisor.define(spec)
    assert hypervisor.running(spec.uuid) is None
    disk = Disk(spec.disks[0].path.with_name("volume"), "vdb", "raw", serial="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    hypervisor.make_disk(disk.path, "raw", 4 * MIB)
    hypervisor.permit([disk.path])
    with pytest.raises(HypervisorError, match="not running"):
        hypervisor.attach(spec.uuid, disk)
    hypervisor.start(spec.uuid)
    for _time in range(2):
        hypervisor.attach(spec.uuid, disk)
    seen = hypervisor.running(spec.uuid)
    assert [d.target for d in seen.disks] == ["vda", "vdb"] and replace(seen.disks[1], tag=None) == disk
    assert [d.target for d in hypervisor.domain(spec.uuid).disks] == ["vda"]  # the definition is another matter
    hypervisor.resize(spec.uuid, "vdb", 8 * MIB)
    assert hypervisor.disk(disk.path).virtual_size == 8 * MIB
    with pytest.raises(HypervisorError):
        hypervisor.resize(spec.uuid, "vdz", 8 * MIB)
    hypervisor.destroy(spec.uuid)
    assert hypervisor.running(spec.uuid) is None
    hypervisor.start(spec.uuid)
    assert [d.target for d in hypervisor.running(spec.uuid).disks] == ["vda"]
    hypervisor.detach(spec.uuid, disk)  # gone already
    hypervisor.attach(spec.uuid, disk)
    hypervisor.destroy(spec.uuid)
    hypervisor.detach(spec.uuid, disk)


def test_networks(place: Place) -> None:
    hypervisor, name = place.hypervisor, place.prefix
    spec = NetworkSpec(str(uuids.uuid4()), name, "isolated", name[:14], "192.168.219.1", 24, "192.168.219.2",
                       "192.168.219.99", "lab.example", 1400)
    for _time in range(2):
        hypervisor.make_network(spec)
    seen = hypervisor.networks()[name]
    assert (seen.uuid, seen.bridge) == (spec.uuid, spec.bridge) and seen.active and seen.autostart and seen.owned
    assert hypervisor.leases(name) == [] and hypervisor.leases("no-such-net") == []
    with pytest.raises(Conflict, match=name):
        hypervisor.make_network(replace(spec, uuid=str(uuids.uuid4())))
    uuid = place.defined(nics=(Nic("52:54:00:00:00:04", network=name),))
    hypervisor.start(uuid)
    assert place.state(uuid) == RUNNING
    hypervisor.destroy(uuid)
    for _time in range(2):
        hypervisor.remove_network(name)
    assert name not in hypervisor.networks()


def test_other_peoples_networks_are_not_touched(place: Place) -> None:
    name = place.prefix
    place.outside.network(name)
    assert not place.hypervisor.networks()[name].owned
    with pytest.raises(Conflict, match=name):
        place.hypervisor.make_network(NetworkSpec(str(uuids.uuid4()), name, "nat", name, "192.168.218.1", 24))
    with pytest.raises(Conflict, match=name):
        place.hypervisor.remove_network(name)
    assert name in place.hypervisor.networks()


@pytest.mark.parametrize("format", ["raw", "qcow2"])
def test_disks(place: Place, format: str) -> None:
    hypervisor, path = place.hypervisor, place.folder / "a disk, -with --odd:name"
    assert hypervisor.disk(path) is None
    path.with_name(path.name + ".part").write_bytes(b"left by an interrupted attempt")
    hypervisor.make_disk(path, format, 10 * MIB)
    assert (hypervisor.disk(path).format, hypervisor.disk(path).virtual_size) == (format, 10 * MIB)
    hypervisor.grow_disk(path, format, 20 * MIB)
    hypervisor.grow_disk(path, format, 20 * MIB)
    assert hypervisor.disk(path).virtual_size == 20 * MIB
    with pytest.raises(HypervisorError, match="shrunk"):
        hypervisor.grow_disk(path, format, 10 * MIB)
    overlay = place.folder / "overlay"
    hypervisor.make_disk(overlay, "qcow2", 30 * MIB, backing=path, backing_format=format)
    assert (hypervisor.disk(overlay).virtual_size, hypervisor.disk(overlay).backing) == (30 * MIB, path)
    assert not list(place.folder.glob("*.part*"))


def test_an_overlay_needs_its_base(place: Place) -> None:
    with pytest.raises(HypervisorError, match="nothing-here"):
        place.hypervisor.make_disk(place.folder / "o", "qcow2", MIB, place.folder / "nothing-here", "raw")
    assert not list(place.folder.glob("o*"))


def test_copies(place: Place) -> None:
    hypervisor, source, copy = place.hypervisor, place.folder / "source", place.folder / "copy"
    source.write_bytes(b"magnetar" * 131072)
    told: list[tuple[int, int]] = []
    hypervisor.copy_disk(source, "raw", copy, "raw", lambda done, total: told.append((done, total)))
    assert copy.read_bytes() == source.read_bytes()
    assert told[-1] == (MIB, MIB) and told == sorted(told)
    hypervisor.copy_disk(source, "raw", place.folder / "other", "qcow2", lambda done, total: None)
    assert hypervisor.disk(place.folder / "other").format == "qcow2"


def test_a_cancelled_copy_leaves_nothing(place: Place) -> None:
    source = place.folder / "source"
    source.write_bytes(b"x" * 4 * MIB)

    def cancel(done: int, total: int) -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        place.hypervisor.copy_disk(source, "raw", place.folder / "copy", "qcow2", cancel)
    with pytest.raises(HypervisorError, match="nothing-here"):
        place.hypervisor.copy_disk(place.folder / "nothing-here", "raw", place.folder / "copy", "raw", cancel)
    assert not list(place.folder.glob("copy*"))


def test_iso(place: Place) -> None:
    path = place.folder / "config.iso"
    place.hypervisor.make_iso(path, "config-2", {"openstack/latest/meta_data.json": b"{}"})
    assert path.read_bytes()[0x8001:0x8006] == b"CD001" and b"config-2" in path.read_bytes()[:0x9000]
    assert not list(place.folder.glob("*.part"))


def test_a_copy_of_a_disk_in_use(place: Place) -> None:
    """It stands alone, whatever the disk stands on."""
    hypervisor, spec = place.hypervisor, place.spec()
    path, base = spec.disks[0].path, spec.disks[0].path.with_name("base")
    path.rename(base)
    hypervisor.make_disk(path, "qcow2", 16 * MIB, backing=base, backing_format="qcow2")
    other = Disk(path.with_name("other"), "vdb", "raw")
    hypervisor.make_disk(other.path, "raw", MIB)
    hypervisor.define(replace(spec, disks=(*spec.disks, other)))
    copy = path.with_name("copy")
    with pytest.raises(HypervisorError):
        hypervisor.begin_copy(spec.uuid, "vda", copy)
    for act in (hypervisor.start, hypervisor.pause):
        act(spec.uuid)
        told: list[tuple[int, int]] = []
        hypervisor.begin_copy(spec.uuid, "vda", copy)
        hypervisor.finish_copy(spec.uuid, copy, lambda done, total, told=told: told.append((done, total)))
        seen = hypervisor.disk(copy)
        assert seen is not None and (seen.format, seen.virtual_size, seen.backing) == ("qcow2", 16 * MIB, None)
        assert told == sorted(told)
        copy.unlink()
    assert {p.name for p in path.parent.iterdir()} <= {"disk", "base", "other", "console.log"}


def test_a_copy_that_is_cancelled_or_left_behind(place: Place) -> None:
    hypervisor, uuid = place.hypervisor, place.defined()
    copy = place.folder / uuid / "copy"
    hypervisor.start(uuid)

    def cancel(done: int, total: int) -> None:
        raise Cancelled

    hypervisor.begin_copy(uuid, "vda", copy)
    with pytest.raises(Cancelled):
        hypervisor.finish_copy(uuid, copy, cancel)
    hypervisor.begin_copy(uuid, "vda", copy)
    for _time in range(2):
        hypervisor.abort_copy(uuid, copy)
    with pytest.raises(HypervisorError):
        hypervisor.finish_copy(uuid, copy, lambda done, total: None)
    hypervisor.begin_copy(uuid, "vda", copy)
    place.outside.destroy(uuid)
    with pytest.raises(HypervisorError):
        hypervisor.finish_copy(uuid, copy, lambda done, total: None)
    hypervisor.abort_copy(uuid, copy)
    assert not list(copy.parent.glob("copy*")) and place.state(uuid) == OFF


def test_nothing_strays(place: Place) -> None:
    uuid = place.defined()
    place.hypervisor.stray(uuid)
    place.hypervisor.start(uuid)
    place.hypervisor.stray(uuid)
    assert place.state(uuid) == "running"


def test_a_backup_by_other_tools_goes_on(place: Place) -> None:
    hypervisor, uuid = place.hypervisor, place.defined()
    hypervisor.start(uuid)
    place.outside.backup(uuid, place.folder / "backup")
    hypervisor.abort_copy(uuid, place.folder / uuid / "copy")  # begin_copy is refused, for which libvirt takes 30 s
    assert place.outside.backing_up(uuid)


def test_a_guest_without_an_agent(place: Place) -> None:
    hypervisor, uuid = place.hypervisor, place.defined()
    hypervisor.start(uuid)
    assert not hypervisor.freeze(uuid)
    hypervisor.thaw(uuid)
    with pytest.raises(Conflict, match="qemu-guest-agent") as refused:
        hypervisor.set_password(uuid, "root", "unspeakable")
    assert "unspeakable" not in str(refused.value)
    hypervisor.inject_nmi(uuid)
    hypervisor.destroy(uuid)
    with pytest.raises(HypervisorError, match="not running"):
        hypervisor.inject_nmi(uuid)


def test_nothing_is_guessed_from_what_a_guest_wrote(place: Place) -> None:
    """A raw disk with a qcow2 header in it, which names another file, is a raw disk."""
    disk, copy = place.folder / "disk", place.folder / "copy"
    place.hypervisor.make_disk(place.folder / "header", "qcow2", 64 * MIB)
    disk.write_bytes((place.folder / "header").read_bytes()[:MIB].ljust(MIB, b"\0"))
    place.hypervisor.grow_disk(disk, "raw", 2 * MIB)
    assert disk.stat().st_size == 2 * MIB
    place.hypervisor.copy_disk(disk, "raw", copy, "raw", lambda done, total: None)
    assert copy.read_bytes() == disk.read_bytes()


def test_a_storage_pool(place: Place) -> None:
    hypervisor, pool = place.hypervisor, f"{place.prefix}-pool"
    with pytest.raises(Conflict, match="has no storage pool"):
        hypervisor.check_pool(pool)
    folder = place.outside.pool(pool, 16 * MIB)
    hypervisor.check_pool(pool)
    assert hypervisor.contents(pool) == {} and hypervisor.content(pool, "one") is None
    for _time in range(2):
        hypervisor.make_content(pool, "one", 4 * MIB)
    found = hypervisor.content(pool, "one")
    assert found is not None and found.size == 4 * MIB and hypervisor.contents(pool) == {"one": found}
    assert (found.disk.format, found.disk.target, found.disk.path) == ("raw", "", folder / "one")
    for _time in range(2):
        hypervisor.grow_content(pool, "one", 8 * MIB)
    hypervisor.grow_content(pool, "one", 4 * MIB)
    assert hypervisor.content(pool, "one").size == 8 * MIB
    with pytest.raises(HypervisorError, match="gone"):
        hypervisor.grow_content(pool, "two", 8 * MIB)
    with pytest.raises(NoSpace):
        hypervisor.make_content(pool, "two", 64 * MIB)
    assert list(hypervisor.contents(pool)) == ["one"] and hypervisor.content(pool, "one").size == 8 * MIB
    (folder / "other").write_bytes(bytes(MIB))  # another host's
    assert hypervisor.content(pool, "other").size == MIB
    for wipe in (True, False):
        hypervisor.remove_content(pool, "one", wipe)
    assert list(hypervisor.contents(pool)) == ["other"]


def test_copies_into_a_storage_pool(place: Place) -> None:
    hypervisor, pool, source = place.hypervisor, f"{place.prefix}-pool", place.folder / "source"
    place.outside.pool(pool, 16 * MIB)
    hypervisor.make_content(pool, "one", 4 * MIB)
    target = hypervisor.content(pool, "one").disk
    target.path.write_bytes(b"x" * 4 * MIB)
    source.write_bytes(b"magnetar" * 1024 + bytes(MIB))
    told: list[tuple[int, int]] = []
    hypervisor.copy_into(source, "raw", target, lambda done, total: told.append((done, total)))
    assert told and told == sorted(told) and told[-1][0] == told[-1][1]
    assert target.path.read_bytes()[:source.stat().st_size] == source.read_bytes()
    assert target.path.stat().st_size == 4 * MIB
    source.write_bytes(bytes(8 * MIB))
    with pytest.raises(HypervisorError):
        hypervisor.copy_into(source, "raw", target, lambda done, total: None)
    with pytest.raises(HypervisorError, match="nothing-here"):
        hypervisor.copy_into(place.folder / "nothing-here", "raw", target, lambda done, total: None)


def _connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(5)
        try:
            sock.connect(str(path))
            return bool(sock.recv(8))
        except OSError:
            return False


def test_a_disk_for_another_host(place: Place) -> None:
    hypervisor, folder = place.hypervisor, place.folder / "export"
    folder.mkdir(mode=0o770)
    hypervisor.permit([folder])
    folder.chmod(0o770)
    disk = Disk(folder / "disk", "", "qcow2")
    export = Export("e1", "volume", disk, folder / "nbd")
    with pytest.raises(HypervisorError, match="qemu-nbd does not serve"):
        hypervisor.serve(replace(export, id="e0"))
    hypervisor.unserve("e0")
    hypervisor.make_disk(disk.path, "qcow2", MIB)
    for _time in range(2):
        hypervisor.serve(export)
        assert hypervisor.serving("e1") == export and _connects(export.socket)
    other = replace(export, disk=replace(disk, readonly=True))
    hypervisor.serve(other)
    assert hypervisor.serving("e1") == other and _connects(export.socket)
    for _time in range(2):
        hypervisor.unserve("e1")
        assert hypervisor.serving("e1") is None and not _connects(export.socket)


def test_a_stand_in_while_a_domain_has_the_disk(place: Place) -> None:
    """It is served as it is, and what clients write is lost; then the disk itself."""
    hypervisor, folder = place.hypervisor, place.folder / "export"
    folder.mkdir(mode=0o770)
    hypervisor.permit([folder])
    folder.chmod(0o770)
    uuid = place.defined()
    hypervisor.start(uuid, paused=True)
    disk = hypervisor.domain(uuid).disks[0]
    export = Export("e2", "volume", Disk(disk.path, "", "qcow2"), folder / "nbd", stand_in=True)
    hypervisor.serve(export)
    assert hypervisor.serving("e2") == export and _connects(export.socket)
    hypervisor.destroy(uuid)
    hypervisor.serve(replace(export, stand_in=False))
    assert _connects(export.socket)
    hypervisor.unserve("e2")
    assert [path.name for path in folder.iterdir()] == []


def test_libvirts_socket_takes_connections(place: Place) -> None:
    """Another host's libvirt comes through it."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(5)
        sock.connect(str(place.hypervisor.libvirt_socket()))


def test_a_cpu_that_a_host_gives_fits_it(place: Place) -> None:
    uuid = place.defined()
    place.hypervisor.start(uuid, paused=True)
    cpu = place.hypervisor.cpu(uuid)
    assert cpu is None or (cpu.startswith("<cpu") and place.hypervisor.cpu_fits(cpu))


def test_arrived_is_what_is_active_and_lasts(place: Place) -> None:
    spec, hypervisor = place.spec(), place.hypervisor
    assert not hypervisor.arrived(spec.uuid)
    hypervisor.define(spec)
    assert not hypervisor.arrived(spec.uuid)
    hypervisor.start(spec.uuid, paused=True)
    assert hypervisor.arrived(spec.uuid)
    hypervisor.resume(spec.uuid)
    assert hypervisor.arrived(spec.uuid)
    place.outside.forget(spec.uuid)  # as an incoming one is before its end
    assert not hypervisor.arrived(spec.uuid)
    hypervisor.destroy(spec.uuid)


def test_a_domain_without_a_job_is_not_astray(place: Place) -> None:
    uuid = place.defined()
    place.hypervisor.stray(uuid)
    place.hypervisor.start(uuid)
    place.hypervisor.stray(uuid)
    assert place.state(uuid) == RUNNING


@pytest.mark.parametrize("state", [OFF, PAUSED, RUNNING])
def test_a_migration_that_cannot_be_leaves_the_domain_alone(place: Place, state: str) -> None:
    """Nobody answers at the other end."""
    uuid, hypervisor = place.defined(), place.hypervisor
    if state != OFF:
        hypervisor.start(uuid, paused=state == PAUSED)
    passage = Passage(
        libvirt=place.folder / "libvirt", qemu=place.folder / "qemu", disks=place.folder / "disks",
        persistent=hypervisor.render(place.spec(uuid=uuid)), folder=(place.folder, place.folder), nics={},
        bandwidth=None, max_downtime=None, auto_converge=True, time_limit=None, on_time_limit="abort")
    gone: list[str] = []
    with pytest.raises(HypervisorError, match="not running" if state == OFF else "could not migrate"):
        hypervisor.migrate(uuid, passage, lambda _facts: None, lambda: bool(gone.append("called")))
    assert place.state(uuid) == state and not gone
    hypervisor.destroy(uuid)
