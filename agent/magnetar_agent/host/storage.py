# SPDX-License-Identifier: GPL-3.0-or-later
"""Disks, and the parts of ``LocalHypervisor`` for disks and for storage pools of libvirt (LVM, RBD)."""

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
    """The location of a disk that QEMU reaches over a *protocol* (nbd, rbd): its *name* on the server (an export,
    POOL/IMAGE), and the unix *socket* or *hosts* ``(name, port)`` of the server. For cephx: *user*, and *secret*, the
    uuid of libvirt's secret.
    """

    protocol: str
    name: str
    socket: Path | None = None
    hosts: tuple[tuple[str, str | None], ...] = ()
    user: str | None = None
    secret: str | None = None


@dataclass(frozen=True)
class CephImage:
    """A snapshot of an RBD image in the cluster *fsid*, and access to it: the *user* of Ceph, whose keyring is in the
    folder of the file *conf*, and the *timeout* in seconds to reach the cluster."""

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
    """The backing file *path* of a qcow2 disk. It has no backing file of its own. *format* is raw or qcow2."""

    path: Path
    format: str


@dataclass(frozen=True)
class Disk:
    """A disk of a domain: *device* is disk or cdrom, *format* raw or qcow2, *target* vda, vdb, sda, …

    *path* is a file; with *block* a block device; with *remote* it only names the disk. *boot* is the disk's position
    among the devices to boot from, counted from 1; if no device has one, the domain boots from its first disk. Without
    *backing* the disk has no backing file, regardless of its header. *place*: bus and address, once libvirt has
    assigned them.

    *packed* (ring), *iommu* (whether the guest maps the memory that the disk may reach) and *limits* (see
    ``hardware.limits``) follow from the server's hardware; they are not read back from the domain. With *key* the disk
    is encrypted: with the *format* raw it is LUKS with a raw disk inside, and the content of a qcow2 is encrypted by
    LUKS.
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
    """The facts in the header of a disk file of Magnetar. *backing* is only a name, which a guest may have written.
    *encrypted*: whether the content of a qcow2 is encrypted."""

    format: str
    virtual_size: int
    backing: Path | None = None
    encrypted: bool = False


@dataclass(frozen=True)
class PoolContent:
    """A volume in a storage pool: its *size*, and its *disk* for QEMU."""

    size: int
    disk: Disk


class Mirror(NamedTuple):
    """A copy of a disk of a running domain to the disk *path* (as ``Disk.path``). *done* of *total* is copied, in units
    of the hypervisor. *ready*: both disks have the same content, and the guest's writes go to both."""

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

    With *stand_in*, clients get a temporary overlay of the disk, while a domain of this host still writes to the disk.
    Their writes are lost: enough for a QEMU that waits for an incoming guest."""

    id: str
    name: str
    disk: Disk
    socket: Path
    stand_in: bool = False


@dataclass(frozen=True)
class Injection:
    """Data to write into a guest's file system, in the *partition* of its disk (from 1; 0: the disk has none; -1: where
    an operating system is found): *password*, a hash of crypt(5) for root; *key*, a line of root's authorized_keys;
    *metadata*, for /meta.js; *files*, pairs of path and content in base64."""

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
    """A pool of Ceph, whose RBD images other hosts reach too. A *base* is an image that can be cloned: it is complete,
    and immutable from ``protect`` on. Every call raises ``HypervisorError`` when the cluster refuses or does not
    answer."""

    def source(self, name: str) -> NetworkSource:
        """Return the location of the image *name* for QEMU, also if the image does not exist."""

    def identity(self) -> str:
        """Return the uuid of the cluster and the name of the pool."""

    def names(self) -> list[str]:
        """Return the names of all images."""

    def size(self, name: str) -> int | None:
        """Return the size of an image in bytes; ``None`` when there is no such image."""

    def make(self, name: str, size: int) -> None:
        """Create an empty image of *size* bytes. Raises ``Conflict`` when it exists."""

    def clone(self, base: str, name: str) -> None:
        """Create the image *name* as a copy-on-write clone of *base*. Raises ``Conflict`` when it exists."""

    def grow(self, name: str, size: int) -> None:
        """Grow an image to *size* bytes; never shrink it."""

    def remove(self, name: str) -> None:
        """Remove an image; a missing one is no error. While a QEMU has the image open, wait: Ceph takes half a minute
        to notice that a QEMU has died."""

    def is_base(self, name: str) -> bool:
        """Return whether the image *name* is a base: complete, immutable, and ready to be cloned."""

    def protect(self, name: str) -> None:
        """Make the image *name* a base: immutable from now on, so that it can be cloned. Does nothing if it is a base
        already."""

    def remove_base(self, name: str) -> None:
        """Remove the base *name*, finished or not, unless it has clones. A missing image is no error."""


class HypervisorStorage(Protocol):
    """The methods of ``LocalHypervisor`` for storage pools. Every call raises ``Conflict`` when there is no pool of
    that name, or it does not run."""

    def check_pool(self, pool: str) -> None:
        """Raise ``Conflict`` when there is no pool of that name, or it does not run."""

    def contents(self, pool: str) -> dict[str, PoolContent]:
        """Return all volumes of the pool, by name."""

    def content(self, pool: str, name: str) -> PoolContent | None:
        """Return one volume; ``None`` if there is none. Refresh the pool if libvirt does not know the volume: another
        host may have created it."""

    def make_content(self, pool: str, name: str, size: int) -> None:
        """Create a raw volume of *size* bytes. Raises ``Conflict`` when it exists, and ``NoSpace``."""

    def grow_content(self, pool: str, name: str, size: int) -> None:
        """Grow a volume to *size* bytes, also while a domain uses it; then ``resize`` tells the domain the new size.
        Never shrinks. Raises ``NoSpace``."""

    def remove_content(self, pool: str, name: str, wipe: int | None) -> None:
        """Remove a volume; a missing one is no error. *wipe*: how many bytes at its beginning to overwrite with zeros
        first; 0 for all, ``None`` for none."""

    def pool_room(self, pool: str) -> tuple[int, int]:
        """Return the pool's total and free bytes."""

    def pool_identity(self, pool: str) -> str:
        """Return FSID/POOL of a pool of Ceph, and the uuid of the volume group of any other pool. Raises
        ``HypervisorError`` if it cannot be read."""

    def rbd_pool(self, pool: str) -> RbdPool:
        """Return the pool of Ceph that is behind a libvirt pool of type rbd."""

    def export_image(self, image: CephImage) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """Yield size and content of an RBD image, also of one in no pool of libvirt. Raises ``HypervisorError`` when it
        does not exist, cannot be read, or the cluster is another one."""

    def rbd_room(self, pool: str) -> tuple[int, int]:
        """Return the total and free bytes of the Ceph pool. The values are at most a minute old."""


class HypervisorDisks(Protocol):
    """The methods of ``LocalHypervisor`` for disks that are files, and for copies of disks in use."""

    def disk(self, path: Path, format: str) -> DiskSeen | None:
        """Return the facts of a disk file of this *format*; ``None`` when the file is missing. The format is never
        detected from the content, because a guest can write any header into a raw disk."""

    def make_disk(self, path: Path, format: str, size: int, backing: Backing | None = None,
                  label: str | None = None, key: DiskKey | None = None, flushed: bool = True) -> None:
        """Create an empty disk or an overlay on *backing* atomically. *label*: ``swap`` for a swap area, otherwise the
        label of an ext4 file system, to create on the disk. *key* encrypts the disk: required for the format luks (also
        in other methods); in a qcow2 it encrypts the content, except the data of *backing*. *flushed*: flush the file;
        without it the caller must (``Task.note``). The caller always flushes the folder."""

    def copy_disk(self, source: Path | NetworkSource, source_format: str, path: Path, format: str,
                  progress: Progress, key: DiskKey | None = None) -> None:
        """Copy the disk *source*, which has the *source_format*, to *path*, converted to *format*, atomically. The copy
        is sparse, and flushed to disk. *key*: opens the source, if that is encrypted, and encrypts the copy, which is a
        qcow2 or of the format luks."""

    def lend_keys(self, uuid: str, keys: Sequence[DiskKey], secret: str | None) -> None:
        """Define the keys of encrypted disks and the *secret* of the TPM of an incoming running domain in libvirt,
        until ``take_back_keys``."""

    def take_back_keys(self, uuid: str, ids: Sequence[str]) -> None:
        """Remove the secret of the domain's TPM and the keys with these *ids* from libvirt; missing ones are no
        error."""

    def copy_into(self, source: Path | NetworkSource, source_format: str, target: Disk, progress: Progress,
                  blank: bool = False) -> None:
        """Copy the disk *source*, which has the *source_format*, into the existing raw disk *target* in a storage pool,
        and flush it. After an exception the copy is incomplete. *blank*: the target reads as zeros where the source has
        zeros, so zeros are not written."""

    def label_disk(self, path: Path, label: str) -> None:
        """Create a swap area or ext4 file system (*label* as in ``make_disk``) on an existing raw disk; flushed."""

    def grow_disk(self, path: Path, format: str, size: int, key: DiskKey | None = None) -> None:
        """Grow the disk *path* of a stopped domain to *size* bytes. *key*: opens an encrypted disk."""

    def inject(self, disk: Disk, injection: Injection, kvm: bool) -> Mapping[str, str]:
        """Write *injection* into the file system of a disk that is not in use. The call may be repeated. Return the
        parts (names of ``Injection.named``) that could not be written, each with the reason, for the server's user; all
        parts when no Linux is found. *kvm*: whether guests run under KVM. Raises ``HypervisorError`` when the host
        cannot inject, or the time limit is exceeded."""

    def lacks_injection(self) -> str:
        """Return what the host lacks for ``inject``; "" if nothing."""

    def begin_copy(self, uuid: str, target: str, path: Path, format: str = "qcow2", key: DiskKey | None = None) -> None:
        """Begin to copy the disk *target* of an active domain, with its backing files, as it is at this instant. The
        copy has the *format*, no backing file, and is encrypted with the *key*. ``finish_copy`` gives it the name
        *path*."""

    def finish_copy(self, uuid: str, path: Path, progress: Progress) -> None:
        """Wait for the end of the copy that ``begin_copy`` began. Then the complete copy is at *path*, flushed to disk;
        after an exception nothing of it is left."""

    def abort_copy(self, uuid: str, path: Path) -> None:
        """Abort the copy to *path* that no caller waits for, and remove its file; no error when there is none."""
