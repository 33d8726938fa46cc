# SPDX-License-Identifier: GPL-3.0-or-later
"""qemu-img for disks that a guest may have written, and the headers of these disks.

A guest that has broken out of QEMU may write anything into the header of its disk, such as the name of a file that root
can read and QEMU's user cannot. So root reads only the header, with ``image_format``; qemu-img runs as QEMU's user
without any capability. It gets open descriptors, formats and backing files as arguments, so that nothing in the disk
leads it to other files. Files that the agent itself makes, in folders of root, need none of this.
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
from magnetar_agent.virt.tools.process import run_program
from magnetar_core.errors import HypervisorError, ImageRefused
from magnetar_core.image_format import CONVERTED, converted_disk_size, disk_formats, qcow2_header

from . import disk_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from magnetar_agent.host.storage import Disk, DiskKey
    from magnetar_agent.virt.tools.process import User

#: How many bytes of a disk are read: enough for the headers that ``qcow2`` writes, and for signatures.
FIRST = 64 * 1024
#: Fields of a LUKS 1 header: magic, version, and the first sector of the content.
_LUKS = struct.Struct(">6sH96xI")
#: QEMU's driver and options for each format that the agent converts. For a VHD, QEMU otherwise takes the size from its
#: geometry if its creator is one of some programs, and cuts the end of the disk off.
DRIVERS: dict[str, dict[str, Any]] = {"vmdk": {"backing": None}, "vhdx": {},
                                      "vhd": {"driver": "vpc", "force_size_calc": "current_size"}}
#: Possible backing files of an overlay, next to it: the links that ``servers.disks.image_links`` makes to images.
BENEATH = ("base", "rescue.base")


def inspect_disk(path: Path, format: str) -> DiskSeen:
    """Return size, backing file and encryption from the header of the disk *path*. *format*: its format, which is not
    detected, because a guest can write any header to a raw disk. The backing file is not opened."""
    with _open_disk(path, os.O_RDONLY) as descriptor:
        return _seen(descriptor, path, format)


def virtual_disk_size(source: Path | NetworkSource, format: str, user: tuple[int, int]) -> int:
    """Return the virtual size in bytes of the disk *source*, a local file or a network disk. *user*: QEMU's uid and
    gid."""
    if isinstance(source, Path):
        return inspect_disk(source, format).virtual_size
    output = run_program(["qemu-img", "info", "--output=json", "--", "json:" + json.dumps(_remote(source))],
                         f"read the disk {source}", user=tool_user(user, source))
    return int(json.loads(output)["virtual-size"])


def tool_user(user: tuple[int, int], *places: Path | NetworkSource) -> User:
    """Return the uid and gid that qemu-img has to run with: *user* (QEMU's), or ``None`` for root if a disk in *places*
    is in Ceph, because only root can read the Ceph key."""
    ceph = any(isinstance(place, NetworkSource) and place.protocol == "rbd" for place in places)
    return None if ceph else user


class Nodes:
    """The disks that one run of qemu-img uses, opened as file descriptors. Inside the ``with`` block, *user* (QEMU's
    uid and gid) owns writable files and block devices; afterwards their owners are restored. QEMU's group gets lasting
    read access to the other files. *key*: the key of an encrypted disk among them."""

    def __init__(self, user: tuple[int, int], key: DiskKey | None = None) -> None:
        self.user = user
        self._undo = ExitStack()
        #: Arguments of the program before those of its disks, and the descriptors that it needs. *key*: of one of the
        #: disks.
        self.options, files = self._undo.enter_context(disk_keys.qemu_key_options([key] if key else []))
        self.files = [*files]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._undo.close()

    def source(self, source: Path | NetworkSource, format: str, write: bool = False) -> str:
        """Return the qemu-img argument for the disk *source* and its backing file. *write*: whether to open the disk
        for writing. Raises ``HypervisorError`` if a qcow2 header names a backing file that the agent did not set,
        because a guest may have written it."""
        if isinstance(source, NetworkSource):
            return "json:" + json.dumps(_remote(source))
        descriptor = self._open(source, write)
        node: dict[str, Any] = {"driver": format, "file": self._file(descriptor)}
        if format == "luks":
            node["key-secret"] = disk_keys.key_object_name(0)
        if format in CONVERTED:
            node.update(DRIVERS[format])
        if format == "qcow2":
            header = _seen(descriptor, source, format)
            node["backing"] = self._beneath(header, source)
            if header.encrypted and self.options:
                node["encrypt"] = {"format": "luks", "key-secret": disk_keys.key_object_name(0)}
        return "json:" + json.dumps(node)

    def target(self, target: Path | NetworkSource, format: str) -> tuple[list[str], str]:
        """Return the arguments of ``qemu-img convert -n`` for the existing disk *target*: a list of options, and the
        file name."""
        if isinstance(target, NetworkSource):
            return ["-O", "raw"], "json:" + json.dumps(_remote(target))
        file = self._file(self._open(target, write=True))
        if format == "luks":
            format = f"luks,key-secret={disk_keys.key_object_name(0)}"
        elif self.options:
            format = f"{format},encrypt.format=luks,encrypt.key-secret={disk_keys.key_object_name(0)}"
        return ["--target-image-opts"], f"driver={format},file.driver={file['driver']},file.filename={file['filename']}"

    def _beneath(self, disk: DiskSeen, path: Path) -> dict[str, Any] | None:
        if disk.backing is None:
            return None
        base = disk.backing
        if base not in [path.with_name(name) for name in BENEATH]:
            raise _foreign(path, f"its header names the file {base}, on which it was not made")
        descriptor = self._open(base, write=False)
        format = "qcow2" if "qcow2" in disk_formats(os.pread(descriptor, FIRST, 0)) else "raw"
        below = _seen(descriptor, base, format).backing
        if below is not None:
            raise _foreign(base, f"its header names the file {below}, and images stand alone")
        return {"driver": format, "file": self._file(descriptor), "read-only": True,
                **({"backing": None} if format == "qcow2" else {})}

    def _open(self, path: Path, write: bool) -> int:
        descriptor = self._undo.enter_context(_open_disk(path, os.O_RDWR if write else os.O_RDONLY))
        self.files.append(descriptor)
        status = os.fstat(descriptor)
        try:
            if write or stat.S_ISBLK(status.st_mode):
                os.fchown(descriptor, *self.user)
                self._undo.callback(os.fchown, descriptor, status.st_uid, status.st_gid)
            else:
                _readable(descriptor, status, self.user[1])
        except OSError as error:
            raise HypervisorError(f"The disk {path} cannot be given to QEMU's user: {error.strerror}.") from error
        return descriptor

    @staticmethod
    def _file(descriptor: int) -> dict[str, str]:
        driver = "host_device" if stat.S_ISBLK(os.fstat(descriptor).st_mode) else "file"
        return {"driver": driver, "filename": f"/proc/self/fd/{descriptor}"}


def check_backing_files(disks: Iterable[Disk], user: tuple[int, int]) -> None:
    """Raise ``HypervisorError`` if the header of a qcow2 in *disks* names a backing file that the agent did not set:
    qemu-nbd or qemu-img would open it, and a guest may have written the header. *user*: QEMU's uid and gid."""
    with Nodes(user) as nodes:
        for disk in disks:
            if disk.format == "qcow2" and disk.remote is None:
                nodes.source(disk.path, disk.format)


@contextmanager
def _open_disk(path: Path, how: int) -> Iterator[int]:
    """Open the file or block device *path*, and yield its descriptor. *how*: flags of open(2). Raises
    ``HypervisorError`` if *path* is relative, cannot be opened, or is neither a file nor a block device."""
    if not path.is_absolute():
        raise HypervisorError(f"The path {path} of a disk is not absolute.")
    try:
        descriptor = os.open(path, how | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise HypervisorError(f"The disk {path} cannot be opened: {error.strerror}.") from error
    try:
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
            raise HypervisorError(f"The disk {path} is neither a file nor a block device.")
        yield descriptor
    finally:
        os.close(descriptor)


def _seen(descriptor: int, path: Path, format: str) -> DiskSeen:
    size = -(-os.lseek(descriptor, 0, os.SEEK_END) // 512) * 512
    if format == "raw":
        return DiskSeen("raw", size)
    if format == "luks":
        return DiskSeen("luks", max(0, size - _luks_begin(descriptor, path)))
    try:
        if format in CONVERTED:
            return DiskSeen(format, converted_disk_size(
                format, size, lambda at, length: os.pread(descriptor, length, at)))
        header = qcow2_header(os.pread(descriptor, FIRST, 0))
    except ImageRefused as error:
        raise _foreign(path, error.message.rstrip(".")) from None
    return DiskSeen(format, header.virtual_size, Path(os.fsdecode(header.backing)) if header.backing else None,
                    header.encrypted)


def _luks_begin(descriptor: int, path: Path) -> int:
    """Return the offset in bytes at which the content of a LUKS disk begins. *descriptor*: the file descriptor of the
    open disk. Raises ``HypervisorError`` naming *path* if the disk is not LUKS 1."""
    head = os.pread(descriptor, _LUKS.size, 0).ljust(_LUKS.size, b"\0")
    magic, version, sectors = _LUKS.unpack(head)
    if magic != b"LUKS\xba\xbe" or version != 1:
        raise _foreign(path, "it has no header of LUKS")
    return int(sectors) * 512


def _readable(descriptor: int, status: os.stat_result, group: int) -> None:
    """Give the group *group* (a gid) read access to the open file *descriptor*. *status*: result of fstat(2) for it."""
    if status.st_gid != group:
        os.fchown(descriptor, -1, group)
    if not status.st_mode & 0o040:
        os.fchmod(descriptor, status.st_mode & 0o7777 | 0o040)


def _remote(remote: NetworkSource) -> dict[str, Any]:
    """Return the QEMU block node (JSON) for the raw network disk *remote*: a Ceph RBD image or an NBD export."""
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
