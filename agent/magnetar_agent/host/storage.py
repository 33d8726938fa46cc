# SPDX-License-Identifier: GPL-3.0-or-later
"""Disks, and the parts of ``LocalHypervisor`` for them and for storage pools of libvirt (LVM, RBD)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

#: ``progress(done_bytes, total_bytes)``; raises ``Cancelled`` when the operation was cancelled.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class NetworkSource:
    """The location of a disk that QEMU reaches over a *protocol* (nbd, rbd): its *name* there (an export, POOL/IMAGE),
    and the unix *socket* or *hosts* ``(name, port)`` that serve it; for cephx *user* and *secret* (uuid of libvirt's).
    """

    protocol: str
    name: str
    socket: Path | None = None
    hosts: tuple[tuple[str, str | None], ...] = ()
    user: str | None = None
    secret: str | None = None


@dataclass(frozen=True)
class CephImage:
    """A snapshot of an RBD image in the cluster *fsid*, and its reader: the *user* of Ceph, whose keyring is next to
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
    """The encryption key of a disk (LUKS): the uuid *id* that libvirt knows it by, and the passphrase *secret*, which
    never appears in a definition or a log."""

    id: str
    secret: str = field(default="", repr=False, compare=False)


@dataclass(frozen=True)
class Backing:
    """The backing file *path* of a qcow2 disk; it has no backing file itself. *format* is raw or qcow2."""

    path: Path
    format: str


@dataclass(frozen=True)
class Disk:
    """A disk of a domain: *device* is disk or cdrom, *format* raw or qcow2, *target* vda, vdb, sda, …

    It is the file *path*; with *block* a block device; with *remote* neither, and *path* is only its name. *boot* is
    its position among the devices to boot from, counted from 1; domains without any boot from their first disk. Without
    *backing* it has no backing file, regardless of its header. *place*: bus and address, once libvirt has assigned
    them.

    *packed* (ring), *iommu* (whether the guest maps the memory that the disk may reach) and *limits* (see
    ``hardware.limits``) follow from the server's hardware; they are not read back from the domain. With *key* it is
    encrypted: with the *format* raw it is LUKS with a raw disk inside, and the content of a qcow2 is encrypted by LUKS.
    """

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
    """The facts that a disk file of ours states about itself. *backing* is only a name, and a guest may have written
    it. *encrypted*: of a qcow2, whether its content is encrypted."""

    format: str
    virtual_size: int
    backing: Path | None = None
    encrypted: bool = False


@dataclass(frozen=True)
class PoolContent:
    """A volume in a storage pool: its *size*, and how QEMU reaches it."""

    size: int
    disk: Disk


class Mirror(NamedTuple):
    """A copy of a disk of a running domain to the disk *path* (as ``Disk.path``): *done* of *total*, in units of the
    hypervisor. *ready*: both disks hold the same, and the guest's writes go to both."""

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
    """A disk that is served at the unix *socket* under *name*.

    With *stand_in* it is served as it is while a domain of this host still writes to it, and clients' writes are lost:
    enough for a QEMU that waits for an incoming guest."""

    id: str
    name: str
    disk: Disk
    socket: Path
    stand_in: bool = False


@dataclass(frozen=True)
class Injection:
    """Data to write into a guest's file system in the *partition* of its disk (from 1; 0: the disk has none; -1: where
    an operating system is found): root's *password*, as a hash of crypt(5), a *key*, a line of root's authorized_keys,
    *metadata*, for /meta.js, and *files* (path, content in base64)."""

    partition: int
    password: str | None = field(default=None, repr=False)
    key: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    files: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def named(self) -> dict[str, Any]:
        """Return the parts to write, by name."""
        parts = {"password": self.password, "key": self.key, "metadata": dict(self.metadata), "files": self.files}
        return {name: value for name, value in parts.items() if value}


class RbdPool(Protocol):
    """A pool of Ceph, whose RBD images other hosts reach as well. A *base* is an image with clones: it is complete, and
    immutable from ``protect`` on. Every call raises ``HypervisorError`` when the cluster refuses or does not answer."""

    def source(self, name: str) -> NetworkSource:
        """Return how QEMU reaches the image *name*, whether it exists or not."""

    def names(self) -> list[str]:
        """Return the names of all images."""

    def size(self, name: str) -> int | None:
        """Return the bytes of an image; ``None`` when there is none."""

    def make(self, name: str, size: int) -> None:
        """Make an empty image. Raises ``Conflict`` when it exists."""

    def clone(self, base: str, name: str) -> None:
        """Make a copy-on-write clone of *base*. Raises ``Conflict`` when it exists."""

    def grow(self, name: str, size: int) -> None:
        """Grow an image; never shrinks."""

    def remove(self, name: str) -> None:
        """Remove an image; a missing one is no error. Wait for an image that a QEMU has open, as Ceph takes half a
        minute to notice that the QEMU has died."""

    def is_base(self, name: str) -> bool:
        """Return whether the image is a base."""

    def protect(self, name: str) -> None:
        """Make the image a base; it may already be one."""

    def remove_base(self, name: str) -> None:
        """Remove a base, or an unfinished one, unless it has clones; a missing one is no error."""


class HypervisorStorage(Protocol):
    """The part of ``LocalHypervisor`` for storage pools. Every call raises ``Conflict`` when there is no pool of that
    name, or it does not run.
    """

    def check_pool(self, pool: str) -> None:
        """Raise ``Conflict`` when there is no pool of that name, or it does not run."""

    def contents(self, pool: str) -> dict[str, PoolContent]:
        """Return all volumes of the pool, by name."""

    def content(self, pool: str, name: str) -> PoolContent | None:
        """Return one volume. Refresh the pool when libvirt does not know it: another host may have made it."""

    def make_content(self, pool: str, name: str, size: int) -> None:
        """Make a raw volume. Raises ``Conflict`` when it exists, and ``NoSpace``."""

    def grow_content(self, pool: str, name: str, size: int) -> None:
        """Grow a volume, also while a domain uses it; ``resize`` tells the domain. Raises ``NoSpace``; never
        shrinks."""

    def remove_content(self, pool: str, name: str, wipe: int | None) -> None:
        """Remove a volume; a missing one is no error. *wipe*: the number of bytes at its beginning to overwrite with
        zeros first; 0 for all, ``None`` for none."""

    def pool_room(self, pool: str) -> tuple[int, int]:
        """Return the pool's total and free bytes."""

    def rbd_pool(self, pool: str) -> RbdPool:
        """Return the pool of Ceph behind a pool of type rbd."""

    def export_image(self, image: CephImage) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """Return size and content of an RBD image, which libvirt need not know. Raises ``HypervisorError`` when it does
        not exist, cannot be read, or the cluster is another one."""

    def rbd_room(self, pool: str) -> tuple[int, int]:
        """Return total and free bytes that the pool of Ceph can store, at most a minute old."""


class HypervisorDisks(Protocol):
    """The part of ``LocalHypervisor`` for disks that are files, and for copies of disks in use."""

    def disk(self, path: Path, format: str) -> DiskSeen | None:
        """Return the facts of a disk file of this *format*; ``None`` when it is missing. The format is never detected
        from the content, which is the guest's: its raw disk may hold any header."""

    def make_disk(self, path: Path, format: str, size: int, backing: Backing | None = None,
                  label: str | None = None, key: DiskKey | None = None, flushed: bool = True) -> None:
        """Make an empty disk or an overlay on *backing*, complete or not at all.

        *label* asks for a swap or ext4 (``swap`` or a file system label) signature. *key*: of a disk of the format
        luks, here and below; a qcow2 with one has its content encrypted, except the data of *backing*. The file is
        *flushed*, or the caller flushes it with all that it makes (``Task.note``); its name is on disk when the caller
        flushes the folder."""

    def copy_disk(self, source: Path | NetworkSource, source_format: str, path: Path, format: str,
                  progress: Progress, key: DiskKey | None = None) -> None:
        """Copy and convert, complete or not at all; sparse; flushed to disk. The *key* opens the source, if that is
        encrypted; the copy, a qcow2 or of the format luks, is encrypted with it."""

    def lend_keys(self, uuid: str, keys: Sequence[DiskKey], secret: str | None) -> None:
        """Give libvirt the keys of encrypted disks and the *secret* of the TPM for an incoming running domain, until
        ``take_back_keys``."""

    def take_back_keys(self, uuid: str, ids: Sequence[str]) -> None:
        """Remove the secret of the domain's TPM and the keys with these *ids*; missing ones are no error."""

    def copy_into(self, source: Path | NetworkSource, source_format: str, target: Disk, progress: Progress,
                  blank: bool = False) -> None:
        """Copy into an existing raw disk in a storage pool; flushed, but incomplete when it raises. *blank*: the disk
        reads as zeros where the source has zeros, so zeros are not written."""

    def label_disk(self, path: Path, label: str) -> None:
        """Write a swap or ext4 signature (as in ``make_disk``) into an existing raw disk; flushed."""

    def grow_disk(self, path: Path, format: str, size: int, key: DiskKey | None = None) -> None:
        """Grow a disk of a stopped domain."""

    def inject(self, disk: Disk, injection: Injection, kvm: bool) -> Mapping[str, str]:
        """Write into the file system of a disk that is not in use. It may be repeated.

        Return the names (``Injection.named``) of the parts that could not be written, each with the reason for its
        user; all of them when no Linux is found. *kvm*: whether guests run under KVM. Raises ``HypervisorError`` when
        the host cannot do it, or it took too long."""

    def lacks_injection(self) -> str:
        """Return what the host lacks for ``inject``; "" if nothing."""

    def begin_copy(self, uuid: str, target: str, path: Path, format: str = "qcow2", key: DiskKey | None = None) -> None:
        """Begin to copy the disk *target* of an active domain, as it is at this instant, with its backing files, into a
        disk of *format* without a backing file, encrypted with the *key*. ``finish_copy`` makes it *path*."""

    def finish_copy(self, uuid: str, path: Path, progress: Progress) -> None:
        """Wait for the end of the copy: complete and flushed at *path*, or an error and nothing left."""

    def abort_copy(self, uuid: str, path: Path) -> None:
        """Abort a copy that no caller waits for, and remove its file; no error when there is none."""
