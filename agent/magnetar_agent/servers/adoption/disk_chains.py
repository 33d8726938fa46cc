# SPDX-License-Identifier: GPL-3.0-or-later
"""Disks of domains of other programs, with their backing files, as their headers name them.

Nothing is written, and no tool is run: a header of qcow2 is enough. The formats come from the domain and from the
headers, never from a guess. A file system that does not answer blocks a thread of its own only.
"""

from __future__ import annotations

import os
import stat
import struct
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar_agent.host.background_reads import BackgroundReads

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Seconds that a file system may take to answer.
PATIENCE = 5.0
#: Bytes of a header that are read, and the most backing files of a disk.
HEADER, MOST = 65536, 200
MAGIC, ENCRYPTED_LUKS = b"QFI\xfb", 2
#: Bit of the incompatible features, and header extensions (docs/interop/qcow2.txt of QEMU).
DATA_FILE_BIT, BACKING_FORMAT, DATA_FILE = 2, 0xE2792ACA, 0x44415441


@dataclass(frozen=True)
class Layer:
    """One file of a disk: the disk file itself, or one of its backing files. *size*: bytes. *snapshots*: the number of
    internal snapshots."""

    path: str
    format: str
    size: int = 0
    snapshots: int = 0


@dataclass
class Chain:
    """A disk file followed by its backing files (*layers*). *problem*: why the chain is incomplete, as a text;
    *reason*: the cause as a code: missing-disk, unreadable-disk, silent-storage. *problem* and *reason* are empty if
    the chain is complete."""

    layers: list[Layer] = field(default_factory=list)
    reason: str = ""
    problem: str = ""


class ChainReader:
    """A reader of disk files and their backing files, in background threads. It waits at most ``PATIENCE`` seconds for
    file systems that do not answer."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._reads: BackgroundReads[Chain] = BackgroundReads(0.0, patience)

    def read(self, disks: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Chain]:
        """Return the chain of each of *disks*, pairs (absolute path, format), by that pair. A file system that does not
        answer in time gives a chain with the reason ``silent-storage``."""
        wanted = {f"{format}:{path}": (path, format) for path, format in disks}
        latest = self._reads.latest({name: partial(read_disk_chain, *disk) for name, disk in wanted.items()})
        return {wanted[name]: _silent(wanted[name]) if chain is None or seconds else chain
                for name, (chain, seconds) in latest.items()}


def _silent(disk: tuple[str, str]) -> Chain:
    path, format = disk
    return Chain([Layer(path, format)], "silent-storage", f"{path} did not answer within {PATIENCE:g} s. Look at its "
                 "file system (is the server of an NFS mount down?), then repeat the call.")


def read_disk_chain(path: str, format: str) -> Chain:
    """Return the chain of the disk file at *path*, which has the *format*: the file and its backing files. Never
    raises; see ``Chain.problem``."""
    chain, seen = Chain(), set[str]()
    following: tuple[str, str] | None = (path, format)
    while following is not None:
        path, format = following
        if path in seen or len(seen) == MOST:
            chain.reason = "unreadable-disk"
            chain.problem = f"The backing files of {path} form a circle, or are too many."
            break
        seen.add(path)
        following = _read_layer(chain, path, format)
    return chain


def _read_layer(chain: Chain, path: str, format: str) -> tuple[str, str] | None:
    """Add the file at *path* to *chain*. Return path and format of its backing file, or ``None`` if the file has no
    backing file or cannot be read."""
    if not path.startswith("/"):  # a network disk, or a description in JSON
        chain.layers.append(Layer(path, format))
        return None
    try:
        head, size = _head(path)
    except FileNotFoundError:
        chain.reason = "missing-disk"
        chain.problem = f"There is no file {path}. Restore it, or remove the disk from the domain (virsh detach-disk)."
        head, size = b"", 0
    except OSError as error:
        chain.reason = "unreadable-disk"
        chain.problem = f"{path} cannot be read: {error.strerror}. Look at its file system and permissions."
        head, size = b"", 0
    if chain.problem or format != "qcow2":
        chain.layers.append(Layer(path, format, size))
        return None
    if len(head) < 104 or not head.startswith(MAGIC):
        chain.layers.append(Layer(path, format, size))
        chain.reason = "unreadable-disk"
        chain.problem = f"{path} is no qcow2, as its domain says. Correct the format in the domain with virsh edit."
        return None
    return _read_qcow2(chain, path, head)


def _head(path: str) -> tuple[bytes, int]:
    """Return the first bytes (the header) of a file or block device, and its size in bytes. Raises ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
            raise OSError(0, "it is neither a file nor a block device")
        return os.pread(descriptor, HEADER, 0), os.lseek(descriptor, 0, os.SEEK_END)
    finally:
        os.close(descriptor)


def _read_qcow2(chain: Chain, path: str, head: bytes) -> tuple[str, str] | None:
    version, backing_at, backing_length, _bits, size = struct.unpack(">4xIQIIQ", head[:32])
    chain.layers.append(Layer(path, "qcow2", size, struct.unpack(">I", head[60:64])[0]))
    features, length = struct.unpack(">Q20xI", head[72:104]) if version >= 3 else (0, 72)
    extensions = _extensions(head, length)
    if features >> DATA_FILE_BIT & 1:
        data = os.fsdecode(extensions.get(DATA_FILE, b""))
        chain.layers.append(Layer(_beside(path, data), "raw"))
    if not backing_at:
        return None
    name = os.fsdecode(head[backing_at:backing_at + backing_length])
    return _beside(path, name), extensions.get(BACKING_FORMAT, b"").decode("ascii", "replace") or "unknown"


def _extensions(head: bytes, at: int) -> dict[int, bytes]:
    """Return the extensions in the qcow2 header *head*, by type. *at*: the offset of the first one."""
    extensions: dict[int, bytes] = {}
    while at + 8 <= len(head):
        kind, length = struct.unpack_from(">II", head, at)
        if kind == 0 or at + 8 + length > len(head):
            break
        extensions[kind] = head[at + 8:at + 8 + length]
        at += 8 + -(-length // 8) * 8
    return extensions


def _beside(path: str, name: str) -> str:
    """Return the path of the file that the header of the disk *path* refers to as *name*. A relative *name* is relative
    to the disk's folder; a *name* with a protocol is returned unchanged."""
    name = name.removeprefix("file:")
    if name.startswith(("/", "json:")) or name.split("/")[0].endswith(":"):
        return name
    return str(Path(path).parent / name)
