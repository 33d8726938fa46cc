# SPDX-License-Identifier: GPL-3.0-or-later
"""qemu-img on disks that a guest may have written, and their headers.

A guest that has broken out of QEMU writes what it wants into the header of its disk, such as the name of a file that
root could read and QEMU's user could not. So root reads nothing but the header, by ``image_format``; qemu-img runs as
QEMU's user without any capability. It gets open descriptors, and is told formats and backing files, so that nothing in
the disk leads it anywhere. What the agent itself makes, in folders of root's, needs none of it.
"""

from __future__ import annotations

import json
import os
import stat
import struct
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from magnetar_agent.host.storage import DiskSeen, NetworkSource
from magnetar_agent.virt.tools.process import run
from magnetar_core.errors import HypervisorError, ImageRefused
from magnetar_core.image_format import disk_formats, qcow2_header, vmdk_size

from . import disk_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from magnetar_agent.host.storage import Disk, DiskKey
    from magnetar_agent.virt.tools.process import User

#: How much of a disk is looked at: the headers that ``qcow2`` writes, and signatures.
FIRST = 64 * 1024
#: Of a header of LUKS 1: magic, version, and the sector in which the content begins.
_LUKS = struct.Struct(">6sH96xI")
#: What an overlay may stand on, beside it: the links that ``servers.disks.image_links`` makes to the content of images.
BENEATH = ("base", "rescue.base")


def seen(path: Path, format: str) -> DiskSeen:
    """What the disk says of itself; the file that it names is not looked at. A guest can write any header into its raw
    disk: so the format is always said, never guessed."""
    with _held(path, os.O_RDONLY) as held:
        return _seen(held, path, format)


def size_of(source: Path | NetworkSource, format: str, user: tuple[int, int]) -> int:
    """Bytes that a guest sees of a disk, wherever it is."""
    if isinstance(source, Path):
        return seen(source, format).virtual_size
    said = run(["qemu-img", "info", "--output=json", "--", "json:" + json.dumps(_remote(source))],
               f"read the disk {source}", user=who(user, source))
    return int(json.loads(said)["virtual-size"])


def who(user: tuple[int, int], *places: Path | NetworkSource) -> User:
    """As whom qemu-img runs: QEMU's *user*, but where it needs the key of a Ceph cluster, which is root's."""
    ceph = any(isinstance(place, NetworkSource) and place.protocol == "rbd" for place in places)
    return None if ceph else user


class Nodes:
    """Descriptors for one run of qemu-img, its *user*'s while this is entered; owners are as before afterwards."""

    def __init__(self, user: tuple[int, int], key: DiskKey | None = None) -> None:
        self.user = user
        self._undo = ExitStack()
        #: Words for the program before those of its disks, and the descriptors that it needs. *key*: of one of them.
        self.options, files = self._undo.enter_context(disk_keys.handed([key] if key else []))
        self.files = [*files]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._undo.close()

    def source(self, source: Path | NetworkSource, format: str, write: bool = False) -> str:
        """A disk as qemu-img takes it, with what it stands on. Raises ``HypervisorError`` for one whose header names
        what it was not made on."""
        if isinstance(source, NetworkSource):
            return "json:" + json.dumps(_remote(source))
        held = self._open(source, write)
        node: dict[str, Any] = {"driver": format, "file": self._file(held)}
        if format == "luks":
            node["key-secret"] = disk_keys.name_of(0)
        if format == "vmdk":
            node["backing"] = None
        if format == "qcow2":
            found = _seen(held, source, format)
            node["backing"] = self._beneath(found, source)
            if found.encrypted and self.options:
                node["encrypt"] = {"format": "luks", "key-secret": disk_keys.name_of(0)}
        return "json:" + json.dumps(node)

    def target(self, target: Path | NetworkSource, format: str) -> tuple[list[str], str]:
        """What is there to be written, as ``convert -n`` takes it: options, and its name."""
        if isinstance(target, NetworkSource):
            return ["-O", "raw"], "json:" + json.dumps(_remote(target))
        file = self._file(self._open(target, write=True))
        if format == "luks":
            format = f"luks,key-secret={disk_keys.name_of(0)}"
        elif self.options:
            format = f"{format},encrypt.format=luks,encrypt.key-secret={disk_keys.name_of(0)}"
        return ["--target-image-opts"], f"driver={format},file.driver={file['driver']},file.filename={file['filename']}"

    def _beneath(self, disk: DiskSeen, path: Path) -> dict[str, Any] | None:
        if disk.backing is None:
            return None
        base = disk.backing
        if base not in [path.with_name(name) for name in BENEATH]:
            raise _foreign(path, f"its header names the file {base}, on which it was not made")
        held = self._open(base, write=False)
        format = "qcow2" if "qcow2" in disk_formats(os.pread(held, FIRST, 0)) else "raw"
        below = _seen(held, base, format).backing
        if below is not None:
            raise _foreign(base, f"its header names the file {below}, and images stand alone")
        return {"driver": format, "file": self._file(held), "read-only": True,
                **({"backing": None} if format == "qcow2" else {})}

    def _open(self, path: Path, write: bool) -> int:
        held = self._undo.enter_context(_held(path, os.O_RDWR if write else os.O_RDONLY))
        self.files.append(held)
        was = os.fstat(held)
        try:
            if write or stat.S_ISBLK(was.st_mode):
                os.fchown(held, *self.user)
                self._undo.callback(os.fchown, held, was.st_uid, was.st_gid)
            else:
                _readable(held, was, self.user[1])
        except OSError as error:
            raise HypervisorError(f"The disk {path} cannot be given to QEMU's user: {error.strerror}.") from error
        return held

    @staticmethod
    def _file(held: int) -> dict[str, str]:
        driver = "host_device" if stat.S_ISBLK(os.fstat(held).st_mode) else "file"
        return {"driver": driver, "filename": f"/proc/self/fd/{held}"}


def check(disks: Iterable[Disk], user: tuple[int, int]) -> None:
    """Raise ``HypervisorError`` for a qcow2 whose header leads to what it was not made on. QEMU and libvirt do not
    follow it, as a definition says what disks stand on; but who reads the disk with other tools may."""
    with Nodes(user) as nodes:
        for disk in disks:
            if disk.format == "qcow2" and disk.remote is None:
                nodes.source(disk.path, disk.format)


@contextmanager
def _held(path: Path, how: int) -> Iterator[int]:
    """The open file or block device."""
    if not path.is_absolute():
        raise HypervisorError(f"The path {path} of a disk is not absolute.")
    try:
        held = os.open(path, how | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise HypervisorError(f"The disk {path} cannot be opened: {error.strerror}.") from error
    try:
        mode = os.fstat(held).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
            raise HypervisorError(f"The disk {path} is neither a file nor a block device.")
        yield held
    finally:
        os.close(held)


def _seen(held: int, path: Path, format: str) -> DiskSeen:
    size = -(-os.lseek(held, 0, os.SEEK_END) // 512) * 512
    if format == "raw":
        return DiskSeen("raw", size)
    if format == "luks":
        return DiskSeen("luks", max(0, size - _luks_begin(held, path)))
    try:
        if format == "vmdk":
            return DiskSeen("vmdk", vmdk_size(os.pread(held, FIRST, 0)))
        header = qcow2_header(os.pread(held, FIRST, 0))
    except ImageRefused as error:
        raise _foreign(path, error.message.rstrip(".")) from None
    return DiskSeen(format, header.virtual_size, Path(os.fsdecode(header.backing)) if header.backing else None,
                    header.encrypted)


def _luks_begin(held: int, path: Path) -> int:
    """Where in a disk of the format LUKS 1 the content begins, in bytes."""
    head = os.pread(held, _LUKS.size, 0).ljust(_LUKS.size, b"\0")
    magic, version, sectors = _LUKS.unpack(head)
    if magic != b"LUKS\xba\xbe" or version != 1:
        raise _foreign(path, "it has no header of LUKS")
    return int(sectors) * 512


def _readable(held: int, was: os.stat_result, group: int) -> None:
    """As ``Disks.permit`` does it by name."""
    if was.st_gid != group:
        os.fchown(held, -1, group)
    if not was.st_mode & 0o040:
        os.fchmod(held, was.st_mode & 0o7777 | 0o040)


def _remote(remote: NetworkSource) -> dict[str, Any]:
    """What is reached by a protocol, as a node: what it holds is raw."""
    words: dict[str, object] = {"driver": remote.protocol}
    if remote.protocol == "rbd":
        pool, _slash, image = remote.name.partition("/")
        words.update(pool=pool, image=image, **({"user": remote.user} if remote.user else {}))
        if remote.hosts:
            words["server"] = [{"host": name, "port": port or "6789"} for name, port in remote.hosts]
    else:
        words.update(export=remote.name, server={"type": "unix", "path": str(remote.socket)})
    return {"driver": "raw", "file": words}


def _foreign(path: Path, why: str) -> HypervisorError:
    return HypervisorError(f"The disk {path} is not used: {why}. The agent has not written that: a guest that has "
                           "broken out of QEMU may have. Restore the disk from a backup, or remove it.")
