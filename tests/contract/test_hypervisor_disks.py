# SPDX-License-Identifier: GPL-3.0-or-later
"""The contract of hypervisors: disks, images, copies and exports. See ``test_hypervisor``."""

from __future__ import annotations

import socket
import subprocess
import uuid as uuids
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from magnetar_agent.host.storage import Backing, Disk, DiskKey, DiskSeen, Export, Injection, NetworkSource
from magnetar_core.errors import Cancelled, Conflict, HypervisorError, NoGuestAgent
from magnetar_core.power import OFF, RUNNING
from tests.unit.core.images import sparse_vmdk

from .place import MIB, LibvirtOutside, Place


@pytest.mark.parametrize("format", ["raw", "qcow2"])
def test_disks(place: Place, format: str) -> None:
    hypervisor, path = place.hypervisor, place.folder / "a disk, -with --odd:name"
    assert hypervisor.disk(path, format) is None
    path.with_name(path.name + ".part").write_bytes(b"left by an interrupted attempt")
    hypervisor.make_disk(path, format, 10 * MIB)
    assert (hypervisor.disk(path, format).format, hypervisor.disk(path, format).virtual_size) == (format, 10 * MIB)
    hypervisor.grow_disk(path, format, 20 * MIB)
    hypervisor.grow_disk(path, format, 20 * MIB)
    assert hypervisor.disk(path, format).virtual_size == 20 * MIB
    with pytest.raises(HypervisorError, match="shrunk"):
        hypervisor.grow_disk(path, format, 10 * MIB)
    overlay = place.folder / "overlay"
    hypervisor.make_disk(overlay, "qcow2", 30 * MIB, Backing(path, format))
    seen = hypervisor.disk(overlay, "qcow2")
    assert (seen.virtual_size, seen.backing) == (30 * MIB, path)
    assert not [left for disk in (path, overlay) for left in place.folder.glob(f"{disk.name}.part*")]


def test_what_cannot_be_written_into(place: Place) -> None:
    """What can be: tests/lab/servers/test_injection.py."""
    assert isinstance(place.hypervisor.lacks_injection(), str)
    away = Disk(place.folder / "away", "vda", "raw", remote=NetworkSource("rbd", "pool/image"))
    with pytest.raises(HypervisorError, match="Ceph"):
        place.hypervisor.inject(away, Injection(1, key="ssh-ed25519 AAAA me"), kvm=False)


def test_an_encrypted_disk(place: Place) -> None:
    """Nothing opens it without its key, which no definition has: not to grow, copy or start with it."""
    hypervisor, spec, key = place.hypervisor, place.spec(), DiskKey(str(uuid4()), "0123456789abcdef" * 4)
    path, copy = spec.disks[0].path.with_name("hidden"), spec.disks[0].path.with_name("copy")
    hypervisor.make_disk(path, "luks", 4 * MIB, key=key)
    with pytest.raises(HypervisorError):
        hypervisor.grow_disk(path, "luks", 8 * MIB)
    hypervisor.grow_disk(path, "luks", 8 * MIB, key=key)
    seen = hypervisor.disk(path, "luks")
    assert seen is not None and (seen.format, seen.virtual_size) == ("luks", 8 * MIB)
    for given in (None, key):
        with nullcontext() if given else pytest.raises(HypervisorError):
            hypervisor.copy_disk(path, "luks", copy, "luks", lambda done, total: None, key=given)
    assert hypervisor.disk(copy, "luks").virtual_size == 8 * MIB
    copy.unlink()
    disk = Disk(path, "vdb", "raw", key=DiskKey(key.id))
    hypervisor.permit([path])
    hypervisor.define(replace(spec, disks=(*spec.disks, disk)))
    assert hypervisor.domain(spec.uuid).disks[1] == disk
    with pytest.raises(HypervisorError):
        hypervisor.start(spec.uuid)
    hypervisor.start(spec.uuid, keys=[key])
    assert place.state(spec.uuid) == RUNNING and hypervisor.running(spec.uuid).disks[1].key == disk.key
    hypervisor.begin_copy(spec.uuid, "vdb", copy, "luks", key)
    hypervisor.finish_copy(spec.uuid, copy, lambda done, total: None)
    assert hypervisor.disk(copy, "luks").virtual_size == 8 * MIB
    hypervisor.destroy(spec.uuid)
    with pytest.raises(HypervisorError):
        hypervisor.start(spec.uuid)


def test_an_encrypted_qcow2(place: Place) -> None:
    """The same of overlays, and of disks that hold something from the beginning."""
    hypervisor, spec, key = place.hypervisor, place.spec(), DiskKey(str(uuid4()), "0123456789abcdef" * 4)
    folder = spec.disks[0].path.parent
    hypervisor.make_disk(folder / "base", "raw", 4 * MIB)
    hypervisor.make_disk(folder / "hidden", "qcow2", 8 * MIB, Backing(folder / "base", "raw"), key=key)
    hypervisor.make_disk(folder / "swap", "qcow2", 8 * MIB, label="swap", key=key)
    with pytest.raises(HypervisorError):
        hypervisor.grow_disk(folder / "hidden", "qcow2", 16 * MIB)
    hypervisor.grow_disk(folder / "hidden", "qcow2", 16 * MIB, key=key)
    assert hypervisor.disk(folder / "hidden", "qcow2") == DiskSeen("qcow2", 16 * MIB, folder / "base", True)
    assert hypervisor.disk(folder / "swap", "qcow2") == DiskSeen("qcow2", 8 * MIB, None, True)
    for given in (None, key):
        with nullcontext() if given else pytest.raises(HypervisorError):
            hypervisor.copy_disk(folder / "hidden", "qcow2", folder / "whole", "qcow2", lambda done, total: None, given)
    assert hypervisor.disk(folder / "whole", "qcow2") == DiskSeen("qcow2", 16 * MIB, None, True)
    hidden = DiskKey(key.id)
    disks = (Disk(folder / "hidden", "vdb", backing=Backing(folder / "base", "raw"), key=hidden),
             Disk(folder / "swap", "vdc", key=hidden))
    hypervisor.permit([folder])
    hypervisor.define(replace(spec, disks=(*spec.disks, *disks)))
    assert hypervisor.domain(spec.uuid).disks[1:] == disks
    with pytest.raises(HypervisorError):
        hypervisor.start(spec.uuid)
    hypervisor.start(spec.uuid, keys=[key])
    assert place.state(spec.uuid) == RUNNING and hypervisor.running(spec.uuid).disks[1].key == hidden


def test_keys_of_a_domain_that_comes(place: Place) -> None:
    """libvirt has them until they are taken back, and nobody else's goes with them."""
    hypervisor, uuid, other = place.hypervisor, str(uuid4()), str(uuid4())
    key, foreign = DiskKey(str(uuid4()), "0123456789abcdef" * 4), DiskKey(str(uuid4()), "f" * 64)

    def there() -> set[str]:
        held = getattr(hypervisor, "lent", None)
        found = held if held is not None else hypervisor.connection.call("list secrets", lambda c: c.listSecrets())
        return set(found) & {uuid, other, key.id, foreign.id}

    hypervisor.lend_keys(other, [foreign], None)
    for secret, has in (("a" * 64, {uuid, key.id}), (None, {key.id})):
        for _again in range(2):
            hypervisor.lend_keys(uuid, [key], secret)
            assert there() == {*has, foreign.id}
        for _again in range(2):
            hypervisor.take_back_keys(uuid, [key.id])
            assert there() == {foreign.id}
    hypervisor.take_back_keys(other, [foreign.id])
    assert not there()


def test_what_a_guest_writes_into_a_raw_disk_says_nothing(place: Place) -> None:
    hypervisor, path = place.hypervisor, place.folder / "disk"
    hypervisor.make_disk(place.folder / "base", "raw", MIB)
    hypervisor.make_disk(path, "qcow2", 30 * MIB, Backing(place.folder / "base", "raw"))
    with path.open("r+b") as file:
        file.truncate(4 * MIB)
    seen = hypervisor.disk(path, "raw")
    assert seen is not None and (seen.format, seen.virtual_size, seen.backing) == ("raw", 4 * MIB, None)


def test_an_overlay_needs_its_base(place: Place) -> None:
    with pytest.raises(HypervisorError, match="nothing-here"):
        place.hypervisor.make_disk(place.folder / "o", "qcow2", MIB, Backing(place.folder / "nothing-here", "raw"))
    assert not list(place.folder.glob("o*"))


def test_copies(place: Place) -> None:
    hypervisor, source, copy = place.hypervisor, place.folder / "source", place.folder / "copy"
    source.write_bytes(b"magnetar" * 131072)
    told: list[tuple[int, int]] = []
    hypervisor.copy_disk(source, "raw", copy, "raw", lambda done, total: told.append((done, total)))
    assert copy.read_bytes() == source.read_bytes()
    assert told[-1] == (MIB, MIB) and told == sorted(told)
    hypervisor.copy_disk(source, "raw", place.folder / "other", "qcow2", lambda done, total: None)
    assert hypervisor.disk(place.folder / "other", "qcow2").format == "qcow2"


@pytest.mark.parametrize("kind", ["monolithicSparse", "streamOptimized"])
def test_a_vmdk_is_converted(place: Place, kind: str) -> None:
    source, copy, back = (place.folder / name for name in ("source", "copy", "back"))
    content = b"magnetar" * 131072
    if isinstance(place.outside, LibvirtOutside):
        back.write_bytes(content)
        subprocess.run(["qemu-img", "convert", "-O", "vmdk", "-o", f"subformat={kind}", back, source], check=True)
        back.unlink()
    else:
        source.write_bytes(sparse_vmdk(2048, kind))
    assert place.hypervisor.disk(source, "vmdk") == DiskSeen("vmdk", MIB)
    place.hypervisor.copy_disk(source, "vmdk", copy, "qcow2", lambda done, total: None)
    assert place.hypervisor.disk(copy, "qcow2") == DiskSeen("qcow2", MIB)
    if isinstance(place.outside, LibvirtOutside):
        subprocess.run(["qemu-img", "convert", "-f", "qcow2", "-O", "raw", copy, back], check=True)
        assert back.read_bytes() == content


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
    backing = Backing(base, "qcow2")
    hypervisor.make_disk(path, "qcow2", 16 * MIB, backing)
    other = Disk(path.with_name("other"), "vdb", "raw")
    hypervisor.make_disk(other.path, "raw", MIB)
    hypervisor.define(replace(spec, disks=(replace(spec.disks[0], backing=backing), other)))
    copy = path.with_name("copy")
    with pytest.raises(HypervisorError):
        hypervisor.begin_copy(spec.uuid, "vda", copy)
    for act in (hypervisor.start, hypervisor.pause):
        act(spec.uuid)
        told: list[tuple[int, int]] = []
        hypervisor.begin_copy(spec.uuid, "vda", copy)
        hypervisor.finish_copy(spec.uuid, copy, lambda done, total, told=told: told.append((done, total)))
        seen = hypervisor.disk(copy, "qcow2")
        assert seen is not None and (seen.format, seen.virtual_size, seen.backing) == ("qcow2", 16 * MIB, None)
        assert told == sorted(told)
        copy.unlink()
    assert {p.name for p in path.parent.iterdir()} <= {"disk", "base", "other", "console.log"}


@pytest.mark.parametrize("format", ["raw", "qcow2"])
def test_nothing_is_taken_from_a_header(place: Place, format: str) -> None:
    """A guest that has broken out of QEMU writes the headers of its disks, and may do so after the agent has looked.
    libvirt, which is root, gives nothing that they name to QEMU's user, and QEMU opens none of it."""
    hypervisor, spec, size = place.hypervisor, place.spec(), 16 * MIB
    disk = replace(spec.disks[0], backing=Backing(spec.disks[0].path.with_name("base"), format))
    alone, plugged = (Disk(disk.path.with_name(name), target) for name, target in (("b", "vdb"), ("c", "vdc")))
    hypervisor.make_disk(disk.backing.path, format, size)
    hypervisor.define(replace(spec, disks=(disk, alone)))
    secret, hostile = place.folder / "secret", place.folder / "hostile"
    secret.write_bytes(bytes(size))
    secret.chmod(0o600)
    was = secret.stat()
    hypervisor.make_disk(hostile, "qcow2", size, Backing(secret, "raw"))
    for path in (disk.path, alone.path, plugged.path):
        path.write_bytes(hostile.read_bytes())
    hypervisor.permit([disk.path.parent])
    place.outside.start(spec.uuid)
    place.outside.plug(spec.uuid, plugged)
    seen = {one.target: one.backing for one in hypervisor.running(spec.uuid).disks}
    assert seen == {"vda": disk.backing, "vdb": None, "vdc": None}
    assert place.outside.opened(spec.uuid) == {disk.path, disk.backing.path, alone.path, plugged.path}
    assert (secret.stat().st_uid, secret.stat().st_gid, secret.stat().st_mode) == (was.st_uid, was.st_gid, was.st_mode)


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
    place.hypervisor.abort_stale_job(uuid)
    place.hypervisor.start(uuid)
    place.hypervisor.abort_stale_job(uuid)
    assert place.state(uuid) == "running"


def test_a_backup_by_other_tools_goes_on(place: Place) -> None:
    hypervisor, uuid = place.hypervisor, place.defined()
    hypervisor.start(uuid)
    place.outside.backup(uuid, place.folder / "backup")
    hypervisor.abort_copy(uuid, place.folder / uuid / "copy")  # begin_copy is refused, for which libvirt takes 30 s
    assert place.outside.backing_up(uuid)


def test_a_guest_without_an_agent(place: Place) -> None:
    hypervisor, uuid = place.hypervisor, place.defined()
    assert not hypervisor.agent_connected(uuid)
    hypervisor.start(uuid)
    assert not hypervisor.agent_connected(uuid) and not hypervisor.agent_connected(str(uuids.uuid4()))
    assert not hypervisor.freeze(uuid)
    hypervisor.thaw(uuid)
    with pytest.raises(Conflict, match="qemu-guest-agent") as refused:
        hypervisor.set_password(uuid, "root", "unspeakable")
    assert "unspeakable" not in str(refused.value)
    with pytest.raises(NoGuestAgent):
        hypervisor.ask_guest_agent(uuid, '{"execute": "guest-ping"}', 5)
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


@pytest.mark.parametrize("label", ["swap", "ephemeral0"])
def test_a_signature_in_a_disk_that_is_there(place: Place, label: str) -> None:
    path = place.folder / "there"
    path.write_bytes(b"\xa5" * 8 * MIB)
    place.hypervisor.label_disk(path, label)
    assert place.hypervisor.disk(path, "raw").virtual_size == 8 * MIB
    with path.open("rb") as disk:
        assert label.encode() in disk.read(8192)


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
    folder.mkdir(mode=0o750)
    hypervisor.permit([folder])
    disk = Disk(folder / "disk", "", "qcow2")
    export = Export("e1", "volume", disk, folder / "nbd")
    with pytest.raises(HypervisorError, match="qemu-nbd does not serve"):
        hypervisor.serve(replace(export, id="e0"))
    hypervisor.unserve("e0")
    hypervisor.make_disk(disk.path, "qcow2", MIB)
    for _time in range(2):
        hypervisor.serve(export)
        assert hypervisor.serving("e1") == export and _connects(export.socket)
    with pytest.raises(HypervisorError):
        hypervisor.grow_disk(disk.path, "qcow2", 2 * MIB)
    with pytest.raises(HypervisorError):
        hypervisor.copy_disk(disk.path, "qcow2", folder / "copy", "qcow2", lambda done, total: None)
    way = NetworkSource("nbd", export.name, export.socket)
    hypervisor.copy_disk(way, "raw", folder / "copy", "qcow2", lambda done, total: None)
    assert hypervisor.disk(folder / "copy", "qcow2").virtual_size == MIB
    other = replace(export, disk=replace(disk, readonly=True))
    hypervisor.serve(other)
    assert hypervisor.serving("e1") == other and _connects(export.socket)
    for _time in range(2):
        hypervisor.unserve("e1")
        assert hypervisor.serving("e1") is None and not _connects(export.socket)


def test_a_stand_in_while_a_domain_has_the_disk(place: Place) -> None:
    """It is served as it is, and what clients write is lost; then the disk itself."""
    hypervisor, folder = place.hypervisor, place.folder / "export"
    folder.mkdir(mode=0o750)
    hypervisor.permit([folder])
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
