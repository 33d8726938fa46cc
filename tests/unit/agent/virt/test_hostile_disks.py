# SPDX-License-Identifier: GPL-3.0-or-later
"""What the host does with a disk whose header a guest has written, out of a broken QEMU: it follows nothing in it, and
gives nothing of root's away."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from magnetar_agent.host.hypervisor import DomainSpec, Export
from magnetar_agent.host.storage import Backing, Disk
from magnetar_agent.virt.disks import nbd, qcow2, qemu_img
from magnetar_agent.virt.domain.domain import render_domain
from magnetar_core.errors import HypervisorError
from tests.support.agent.hostile import beside
from tests.support.agent.hostile_qemu import NOBODY, Hypervisor

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="needs root, and another user"),
              pytest.mark.skipif(not shutil.which("qemu-img"), reason="needs qemu-img")]
MIB = 2**20
AA_HELPER = Path("/usr/lib/libvirt/virt-aa-helper")
SECRET = b"only root may read this" * 3000
DATA_FILE, BACKING_FORMAT = 0x44415441, 0xE2792ACA


def silent(_done: int, _total: int) -> None:
    """Progress that nobody follows."""


class Room:
    """A server's folder, which is root's, with a disk, which is QEMU's; and a secret."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.base, self.disk = folder / "server", folder / "server/base", folder / "server/disk"
        self.secret = folder / "root/key"
        self.folder.mkdir(mode=0o711)
        self.secret.parent.mkdir(mode=0o755)
        self.secret.write_bytes(SECRET)
        self.secret.chmod(0o600)
        self.base.write_bytes(b"base" * (MIB // 4))
        self.base.chmod(0o440)
        self.make()

    def make(self, format: str = "raw") -> None:
        """The disk as the agent makes it, on a base of this format."""
        self.disk.unlink(missing_ok=True)
        qcow2.create_qcow2(self.disk, 2 * MIB, Backing(self.base, format))
        os.chown(self.disk, NOBODY, NOBODY)

    def check(self) -> None:
        """Nothing of the secret is anywhere, and it is as it was."""
        assert self.secret.read_bytes() == SECRET and self.secret.stat().st_mode & 0o777 == 0o600
        assert (self.secret.stat().st_uid, self.secret.stat().st_gid) == (0, 0)
        for path in self.folder.rglob("*"):
            if path.is_file() and path != self.disk:
                assert SECRET[:20] not in path.read_bytes(), path


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    place = Path(f"/run/magnetar-hostile-disk-{os.getpid()}")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(mode=0o755)
    monkeypatch.setattr(nbd, "AGAIN", 0.01)
    yield Room(place)
    shutil.rmtree(place)


def header(size: int = 2 * MIB, backing: bytes = b"", data: bytes | None = None) -> bytes:
    """A header that says what it likes."""
    extensions = b""
    for number, word in ((BACKING_FORMAT, b"raw" if backing else None), (DATA_FILE, data)):
        if word is not None:
            extensions += struct.pack(">II", number, len(word)) + word.ljust(-(-len(word) // 8) * 8, b"\0")
    extensions += struct.pack(">II", 0, 0)
    features = 4 if data is not None else 0
    return struct.pack(
        ">4sIQIIQIIQQIIQQQQII", b"QFI\xfb", 3, 104 + len(extensions) if backing else 0, len(backing), 16, size, 0, 1,
        3 * 65536, 65536, 1, 0, 0, features, 0, 0, 4, 104) + extensions + backing


def file(path: Path) -> bytes:
    return str(path).encode()


def words(path: Path) -> bytes:
    return b'json:{"driver": "raw", "file": {"driver": "file", "filename": "%s"}}' % file(path)


#: What the header says of the secret.
HEADERS: dict[str, Callable[[Path], bytes]] = {
    "backing": lambda path: header(backing=file(path)),
    "backing in JSON": lambda path: header(backing=words(path)),
    "backing by descriptor": lambda _path: header(backing=b"/proc/self/fd/0"),
    "data file": lambda path: header(data=file(path)),
    "data file in JSON": lambda path: header(data=words(path)),
    "data file and base": lambda path: header(backing=file(path.parents[1] / "server/base"), data=file(path)),
}


def _export(room: Room, hypervisor: Hypervisor, *, stand_in: bool) -> None:
    with _exported(room, hypervisor, stand_in=stand_in):
        pass


@contextmanager
def _exported(room: Room, hypervisor: Hypervisor, *, stand_in: bool) -> Iterator[Path]:
    """The socket of an export of the disk."""
    place = room.folder / "links"
    place.mkdir(mode=0o755)
    export = Export("e1", "volume", Disk(room.disk, "", "qcow2"), place / "nbd", stand_in=stand_in)
    try:
        hypervisor.serve(export)
        yield export.socket
    finally:
        hypervisor.unserve("e1")


#: What the agent does with disks that a guest had.
USES: dict[str, Callable[[Room, Hypervisor], object]] = {
    "image of it": lambda room, hypervisor: hypervisor.copy_disk(
        room.disk, "qcow2", room.folder / "copy", "qcow2", silent),
    "raw copy": lambda room, hypervisor: hypervisor.copy_disk(room.disk, "qcow2", room.folder / "copy", "raw", silent),
    "into a pool": lambda room, hypervisor: hypervisor.copy_into(
        room.disk, "qcow2", Disk(room.folder / "volume", "", "raw"), silent),
    "resize": lambda room, hypervisor: hypervisor.grow_disk(room.disk, "qcow2", 8 * MIB),
    "export": lambda room, hypervisor: _export(room, hypervisor, stand_in=False),
    "stand-in": lambda room, hypervisor: _export(room, hypervisor, stand_in=True),
    "start": lambda room, _hypervisor: qemu_img.check_backing_files([Disk(room.disk, "vda")], (NOBODY, NOBODY)),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", HEADERS)
def test_nothing_that_a_header_names_is_used(room: Room, name: str, use: str) -> None:
    with room.disk.open("r+b") as disk:
        disk.write(HEADERS[name](room.secret))
    (room.folder / "volume").write_bytes(bytes(2 * MIB))
    with pytest.raises(HypervisorError, match="its header names the file|its data in an external file"):
        USES[use](room, Hypervisor())
    room.check()


@pytest.mark.parametrize("name", HEADERS)
def test_a_look_opens_nothing(room: Room, name: str) -> None:
    """A migration looks at the disks; what it hears has no content."""
    with room.disk.open("r+b") as disk:
        disk.write(HEADERS[name](room.secret))
    with suppress(HypervisorError):
        seen = Hypervisor().disk(room.disk, "qcow2")
        assert seen is not None and seen.virtual_size == 2 * MIB
    room.check()


def test_a_base_that_names_a_file(room: Room) -> None:
    """libvirt gives images to QEMU's user as well."""
    room.base.chmod(0o640)
    room.base.write_bytes(header(backing=file(room.secret)).ljust(MIB, b"\0"))
    with pytest.raises(HypervisorError, match="images stand alone"):
        USES["image of it"](room, Hypervisor())
    room.check()


SWAPPER = """
import os, sys
path, *headers = sys.argv[1:]
os.setgroups([]); os.setgid(65534); os.setuid(65534)
held = os.open(path, os.O_RDWR)
headers = [open(os.open(name, os.O_RDONLY), "rb").read() for name in headers]
print("up", flush=True)
while True:
    for header in headers:
        os.pwrite(held, header, 0)
"""


@contextmanager
def swapped(room: Room, *headers: bytes) -> Iterator[None]:
    """One header after the other, all the time."""
    names = []
    for number, text in enumerate(headers):
        names.append(room.secret.parent / str(number))
        names[-1].write_bytes(text.ljust(4096, b"\0"))
    with beside(SWAPPER, room.disk, *names):
        yield


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("use", ["raw copy", "resize"])
def test_a_header_that_changes_meanwhile(room: Room, name: str, use: str) -> None:
    """What was looked at is something else when qemu-img reads it: that has no name to follow, and no right to."""
    good = room.disk.read_bytes()[:4096]
    with swapped(room, good, HEADERS[name](room.secret)):
        for _time in range(10):
            with suppress(HypervisorError):
                USES[use](room, Hypervisor())
            room.check()


@pytest.mark.parametrize("stand_in", [False, True])
def test_an_export_takes_nothing_from_a_header(room: Room, stand_in: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The header names what QEMU's user may read, such as another server's disk, and was written after the look."""
    other = room.secret.with_name("other")
    other.write_bytes(SECRET.ljust(2 * MIB, b"\0"))
    other.chmod(0o644)
    with room.disk.open("r+b") as disk:
        disk.write(header(backing=file(other)))
    monkeypatch.setattr(nbd, "check_backing_files", lambda _disks, _user: None)
    hypervisor, copy = Hypervisor(), room.secret.with_name("copy")
    with _exported(room, hypervisor, stand_in=stand_in) as socket:
        subprocess.run(["qemu-img", "convert", "-n", "-O", "raw", f"nbd+unix:///volume?socket={socket}",
                        _empty(copy)], check=True)
    assert copy.read_bytes() == bytes(2 * MIB)


def _empty(path: Path) -> Path:
    path.write_bytes(bytes(2 * MIB))
    return path


@pytest.mark.skipif(not AA_HELPER.exists(), reason="needs what writes libvirt's AppArmor profiles")
@pytest.mark.parametrize("standing", [False, True])
def test_an_apparmor_profile_has_nothing_from_a_header(room: Room, standing: bool) -> None:
    """libvirt's helper reads disks as root, and lets the guest's QEMU open what they stand on."""
    with room.disk.open("r+b") as disk:
        disk.write(header(backing=file(room.secret)))
    spec = DomainSpec(
        uuid="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d", name="web1", title="web1", vcpus=1, ram_mib=64, virt_type="qemu",
        machine="q35", nics=(), console_log=room.folder / "console.log",
        disks=(Disk(room.disk, "vda", backing=Backing(room.base, "raw") if standing else None),))
    said = subprocess.run([AA_HELPER, "--create", "--dryrun", "--uuid", f"libvirt-{spec.uuid}"],
                          input=render_domain(spec), capture_output=True, text=True, check=True).stderr
    assert f'"{room.disk}" rwk' in said and str(room.secret) not in said
    assert (str(room.base) in said) is standing


# What is right goes on ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("format", ["raw", "qcow2"])
@pytest.mark.parametrize("use", ["image of it", "raw copy", "into a pool"])
def test_a_copy_of_an_overlay(room: Room, format: str, use: str) -> None:
    """In a folder that QEMU's user may not enter; all owners are as before, but that QEMU's group may read."""
    if format == "qcow2":
        raw = room.base.rename(room.folder / "raw")
        subprocess.run(["qemu-img", "convert", "-O", "qcow2", raw, room.base], check=True)
        raw.unlink()
        room.make("qcow2")
    subprocess.run(["qemu-io", "-f", "qcow2", "-c", "write -P 7 1M 64k", room.disk], check=True, capture_output=True)
    room.folder.chmod(0o700)
    (room.folder / "volume").write_bytes(b"\xff" * 2 * MIB)
    USES[use](room, Hypervisor())
    made = room.folder / ("volume" if use == "into a pool" else "copy")
    seen = made.lstat()
    assert (seen.st_uid, seen.st_gid) == (0, 0) and room.disk.stat().st_uid == NOBODY
    assert room.base.stat().st_uid == 0
    if use == "image of it":
        assert seen.st_blocks * 512 < 2 * MIB and made.read_bytes()[:4] == b"QFI\xfb"
        subprocess.run(["qemu-img", "check", "-q", made], check=True)
        subprocess.run(["qemu-img", "convert", "-O", "raw", made, room.folder / "all"], check=True)
        made = room.folder / "all"
    assert made.read_bytes() == b"base" * (MIB // 4) + b"\x07" * 65536 + bytes(MIB - 65536)


@pytest.mark.parametrize("format", ["raw", "qcow2"])
def test_a_disk_grows(room: Room, format: str) -> None:
    if format == "raw":
        room.disk.write_bytes(b"raw" * 1024)
    hypervisor = Hypervisor()
    hypervisor.grow_disk(room.disk, format, 600 * MIB)
    seen = hypervisor.disk(room.disk, format)
    assert seen is not None and seen.virtual_size == 600 * MIB
    assert seen.backing == (room.base if format == "qcow2" else None)
    assert room.disk.stat().st_uid == NOBODY


@pytest.mark.parametrize("use", ["image of it", "into a pool", "resize"])
def test_as_whom_qemu_img_runs(room: Room, use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = room.secret.parent / "tools"
    tools.mkdir()
    (tools / "qemu-img").write_text(
        "#!/bin/sh\ngrep -E '^(Uid|Gid|Groups|CapPrm|CapEff|CapBnd|NoNewPrivs)' /proc/self/status >&2\nexit 1\n")
    (tools / "qemu-img").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    (room.folder / "volume").write_bytes(bytes(2 * MIB))
    with pytest.raises(HypervisorError) as raised:
        USES[use](room, Hypervisor())
    said = " ".join(str(raised.value).split())
    none = "0" * 16
    for line in (f"Uid: {NOBODY} {NOBODY} {NOBODY} {NOBODY}", f"Gid: {NOBODY} {NOBODY} {NOBODY} {NOBODY} Groups:",
                 f"CapPrm: {none} CapEff: {none} CapBnd: {none}", "NoNewPrivs: 1"):
        assert line in said, said


def test_a_size_that_no_disk_has(room: Room) -> None:
    with room.disk.open("r+b") as disk:
        disk.write(header(size=2**63))
    with pytest.raises(HypervisorError, match="more than a qcow2 can hold"):
        USES["image of it"](room, Hypervisor())
    assert not list(room.folder.glob("copy*"))
