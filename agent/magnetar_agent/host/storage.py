# SPDX-License-Identifier: GPL-3.0-or-later
"""Disks, and the parts of ``LocalHypervisor`` about them and about storage pools of libvirt (LVM, RBD)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

#: ``progress(done_bytes, total_bytes)``; it raises ``Cancelled`` when the operation was cancelled.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class NetworkSource:
    """Where a disk lies that QEMU reaches by a *protocol* (nbd, rbd): its *name* there (an export, POOL/IMAGE), and the
    unix *socket* or *hosts* ``(name, port)`` that serve it; for cephx *user* and *secret* (uuid of libvirt's)."""

    protocol: str
    name: str
    socket: Path | None = None
    hosts: tuple[tuple[str, str | None], ...] = ()
    user: str | None = None
    secret: str | None = None


@dataclass(frozen=True)
class CephImage:
    """A snapshot of an RBD image in the cluster *fsid*, and who reads it: the *user* of Ceph, whose keyring lies beside
    the file *conf*, with *timeout* seconds to reach the cluster."""

    conf: Path
    user: str
    timeout: float
    fsid: str
    pool: str
    name: str
    snapshot: str


@dataclass(frozen=True)
class DiskKey:
    """What a disk is encrypted with (LUKS): the uuid *id* by which libvirt knows it, and the passphrase *secret*, which
    is never seen in a definition, nor in a log."""

    id: str
    secret: str = field(default="", repr=False, compare=False)


@dataclass(frozen=True)
class Backing:
    """The file *path* that a qcow2 disk stands on; it stands alone itself. *format* is raw or qcow2."""

    path: Path
    format: str


@dataclass(frozen=True)
class Disk:
    """A disk of a domain: *device* is disk or cdrom, *format* raw or qcow2, *target* vda, vdb, sda, …

    It is the file *path*; with *block* a block device; with *remote* neither, and *path* is only its name. *boot* is
    its turn among the devices to boot from, counted from 1; domains without any boot from their first disk. Without
    *backing* it stands alone, whatever its header says. *place*: bus and address, where libvirt has said them. *packed*
    (ring), *iommu* (whether the guest maps for it what it may reach) and *limits* (see ``hardware.limits``) follow from
    the server's hardware; they are not seen. With *key* it is encrypted: with the *format* raw it is LUKS with that
    inside, and what a qcow2 holds is encrypted by LUKS."""

    path: Path
    target: str
    format: str = "qcow2"
    device: str = "disk"
    bus: str = "virtio"
    readonly: bool = False
    tag: str | None = None
    serial: str | None = None
    shareable: bool = False
    block: bool = False
    remote: NetworkSource | None = None
    boot: int | None = None
    backing: Backing | None = None
    key: DiskKey | None = None
    place: tuple[str, str] | None = field(default=None, compare=False)
    packed: bool = field(default=False, compare=False)
    iommu: bool = field(default=False, compare=False)
    limits: tuple[tuple[str, int], ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class DiskSeen:
    """What a disk file of ours says of itself; *backing* is only a name, and a guest may have written it. *encrypted*:
    of a qcow2, whether what it holds is."""

    format: str
    virtual_size: int
    backing: Path | None = None
    encrypted: bool = False


@dataclass(frozen=True)
class PoolContent:
    """What lies in a storage pool: its *size*, and how QEMU reaches it."""

    size: int
    disk: Disk


class Mirror(NamedTuple):
    """A disk of a running domain that is being copied to the disk *path* (as ``Disk.path``): *done* of *total*, in
    units of the hypervisor's own. *ready*: both hold the same, and what the guest writes goes to both."""

    path: Path
    done: int
    total: int
    ready: bool


class SharedFolder(NamedTuple):
    """A folder of the host that the guest mounts by its *tag* (virtiofs)."""

    path: Path
    tag: str


@dataclass(frozen=True)
class Export:
    """A disk that is served at the unix *socket* under *name*. With *stand_in* it is served as it is while a domain of
    this host still writes to it, and what clients write is lost: good enough for a QEMU that waits for a guest."""

    id: str
    name: str
    disk: Disk
    socket: Path
    stand_in: bool = False


@dataclass(frozen=True)
class Injection:
    """What is written into the file system of a guest, which lies in the *partition* of its disk (from 1; 0: the disk
    has none; -1: where an operating system is found): root's *password*, as a hash of crypt(5), a *key*, a line of
    root's authorized_keys, *metadata*, for /meta.js, and *files* (path, content in base64)."""

    partition: int
    password: str | None = field(default=None, repr=False)
    key: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    files: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def named(self) -> dict[str, Any]:
        """What there is to write, by name."""
        given = {"password": self.password, "key": self.key, "metadata": dict(self.metadata), "files": self.files}
        return {name: value for name, value in given.items() if value}


class RbdPool(Protocol):
    """A pool of Ceph, whose RBD images other hosts reach as well. A *base* is an image that others are clones of: it is
    complete, and stays as it is, from ``protect`` on. Every call raises ``HypervisorError`` where the cluster does not
    do it, or does not answer."""

    def source(self, name: str) -> NetworkSource:
        """How QEMU reaches the image *name*, whether it is there or not."""

    def names(self) -> list[str]:
        """Of all images."""

    def size(self, name: str) -> int | None:
        """Bytes of an image; ``None`` when there is none."""

    def make(self, name: str, size: int) -> None:
        """Make an empty one. Raises ``Conflict`` when one is there."""

    def clone(self, base: str, name: str) -> None:
        """Make one that holds what *base* holds, copied when it is written to. Raises ``Conflict`` when one is there.
        """

    def grow(self, name: str, size: int) -> None:
        """Grow it; never shrinks."""

    def remove(self, name: str) -> None:
        """Remove it; gone is fine. An image that a QEMU has open is waited for, as Ceph takes half a minute to notice
        that one has died."""

    def is_base(self, name: str) -> bool:
        """Whether it is a base."""

    def protect(self, name: str) -> None:
        """Make it a base; it may be one."""

    def remove_base(self, name: str) -> None:
        """Remove what is a base, or was to become one, unless it has clones; gone is fine."""


class HypervisorStorage(Protocol):
    """See the head of this file. Every call raises ``Conflict`` when there is no pool of that name, or it does not run.
    """

    def check_pool(self, pool: str) -> None:
        """Nothing but that."""

    def contents(self, pool: str) -> dict[str, PoolContent]:
        """All that lies there, by name."""

    def content(self, pool: str, name: str) -> PoolContent | None:
        """One of them, looked for again when libvirt does not know it: another host may have made it."""

    def make_content(self, pool: str, name: str, size: int) -> None:
        """Make one that is raw. Raises ``Conflict`` when one is there, and ``NoSpace``."""

    def grow_content(self, pool: str, name: str, size: int) -> None:
        """Grow it, also while a domain has it, which is told by ``resize``. Raises ``NoSpace``; never shrinks."""

    def remove_content(self, pool: str, name: str, wipe: int | None) -> None:
        """Remove it; gone is fine. *wipe*: how many bytes at its beginning are overwritten by zeros before, 0 for all
        of them, ``None`` for none."""

    def pool_room(self, pool: str) -> tuple[int, int]:
        """Bytes that it has as a whole, and those that are free."""

    def rbd_pool(self, pool: str) -> RbdPool:
        """The pool of Ceph behind a pool of type rbd."""

    def export_image(self, image: CephImage) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """Size and content of an RBD image, which libvirt need not know. Raises ``HypervisorError`` where it is not
        there, cannot be read, or the cluster is another one."""

    def rbd_room(self, pool: str) -> tuple[int, int]:
        """As ``pool_room``, of what can be stored in the pool of Ceph, as it was within the last minute."""


class HypervisorDisks(Protocol):
    """The part of ``LocalHypervisor`` about disks that are files, and copies of disks in use."""

    def disk(self, path: Path, format: str) -> DiskSeen | None:
        """What a disk file of this *format* is; ``None`` when it is missing. The format is not found from the content,
        which is the guest's: its raw disk may hold any header."""

    def make_disk(self, path: Path, format: str, size: int, backing: Backing | None = None,
                  label: str | None = None, key: DiskKey | None = None, flushed: bool = True) -> None:
        """Make an empty disk or an overlay on *backing*, complete or not at all. *label* asks for a swap or ext4
        (``swap`` or a file system label) signature. *key*: of one of the format luks, here and below; a qcow2 with one
        has its content encrypted, but for what it has from *backing*. The file is *flushed*, or the caller does it with
        all that it makes (``Task.note``); its name is when the caller flushes the folder."""

    def copy_disk(self, source: Path | NetworkSource, source_format: str, path: Path, format: str,
                  progress: Progress, key: DiskKey | None = None) -> None:
        """Copy and convert, complete or not at all; sparse; flushed to disk. The *key* opens the source, where that is
        encrypted, and the copy, which is a qcow2 or of the format luks, is encrypted with it."""

    def lend_keys(self, uuid: str, keys: Sequence[DiskKey], secret: str | None) -> None:
        """Have the keys of encrypted disks, and the *secret* of its TPM, ready for a domain that comes running, until
        ``take_back_keys``."""

    def take_back_keys(self, uuid: str, ids: Sequence[str]) -> None:
        """Have the secret of the domain's TPM, and the keys with these *ids*, no more; fine where there are none."""

    def copy_into(self, source: Path | NetworkSource, source_format: str, target: Disk, progress: Progress,
                  blank: bool = False) -> None:
        """Copy into what is there already, a raw disk in a storage pool; flushed, but not complete when it raises.
        *blank*: where the source has zeros it reads as zeros, so they are not written."""

    def label_disk(self, path: Path, label: str) -> None:
        """Write a swap or ext4 signature (as of ``make_disk``) into a raw disk that is there; flushed."""

    def grow_disk(self, path: Path, format: str, size: int, key: DiskKey | None = None) -> None:
        """Grow a disk of a stopped domain."""

    def inject(self, disk: Disk, given: Injection, kvm: bool) -> Mapping[str, str]:
        """Write into the file system on a disk that nobody uses, as often as one likes. The names (``Injection.named``)
        of what could not be written, to why, all of them where no Linux is found: words for its user. *kvm*: whether
        guests run under it. Raises ``HypervisorError`` where the host cannot do it, or it took too long."""

    def lacks_injection(self) -> str:
        """What the host lacks for ``inject``; "" where it lacks nothing."""

    def begin_copy(self, uuid: str, target: str, path: Path, format: str = "qcow2", key: DiskKey | None = None) -> None:
        """Begin to copy the disk *target* of an active domain, as it is at this instant, with all that it stands on,
        into a disk of *format* that stands alone, encrypted with the *key*. ``finish_copy`` makes it *path*."""

    def finish_copy(self, uuid: str, path: Path, progress: Progress) -> None:
        """Wait for the end of the copy: complete and flushed at *path*, or an error and nothing left."""

    def abort_copy(self, uuid: str, path: Path) -> None:
        """Abort a copy that nobody waits for, and remove its file; fine when there is none."""
