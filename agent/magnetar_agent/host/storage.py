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
    """The location of a disk that QEMU accesses over the network. *protocol*: nbd or rbd. *name*: the NBD export, or
    ``POOL/IMAGE``. *socket*: the server's unix socket, or *hosts*: pairs (host name, port). For cephx: *user*, and
    *secret*, the uuid of the secret in libvirt."""

    protocol: str
    name: str
    socket: Path | None = None
    hosts: tuple[tuple[str, str | None], ...] = ()
    user: str | None = None
    secret: str | None = None


@dataclass(frozen=True)
class CephImage:
    """A snapshot of an RBD image in the Ceph cluster *fsid*, and how to access it. *user*: the Ceph user. The user's
    keyring is in the same folder as the file *conf*. *timeout*: seconds to connect to the cluster."""

    conf: Path
    user: str
    timeout: float
    fsid: str
    pool: str
    name: str
    snapshot: str


@dataclass(frozen=True)
class DiskKey:
    """The encryption key of a disk (LUKS). *id*: the uuid of its secret in libvirt. *secret*: the passphrase, which
    never appears in a domain definition or a log."""

    id: str
    secret: str = field(default="", repr=False, compare=False)


@dataclass(frozen=True)
class Backing:
    """The backing file *path* of a qcow2 disk. The backing file must not have another backing file. *format*: raw or
    qcow2."""

    path: Path
    format: str


@dataclass(frozen=True)
class Disk:
    """A disk of a domain. *device*: disk or cdrom. *format*: raw or qcow2. *target*: the device name, such as vda.

    *path*: a file, or with *block_device* a block device; with *remote* only a name for the disk. *boot*: the position
    in the boot order, counted from 1; if no device has one, the domain boots from its first disk. *backing*: the
    backing file; without it QEMU uses none, even if the disk's header specifies one. *place*: bus and address, once
    libvirt has assigned them.

    *packed* (ring layout), *iommu* and *limits* (see ``hardware.limits``) are computed from the server's hardware
    fields. They are not read back from the domain. With *key* the disk is encrypted: raw means LUKS with a raw disk
    inside, and a qcow2 has its content encrypted with LUKS.
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
    block_device: bool = False
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
    """The properties of a disk file, read from its header. *virtual_size*: bytes. *backing*: the name of the backing
    file; a guest may have written this name. *encrypted*: whether the content of a qcow2 is encrypted."""

    format: str
    virtual_size: int
    backing: Path | None = None
    encrypted: bool = False


@dataclass(frozen=True)
class PoolContent:
    """A volume in a storage pool. *size*: bytes. *disk*: the disk for QEMU, with an empty device name."""

    size: int
    disk: Disk


class Mirror(NamedTuple):
    """The progress of copying a disk of a running domain to the disk *path* (as ``Disk.path``). *done* of *total* is
    copied, in units of the hypervisor. *ready*: both disks are equal, and the guest's writes go to both."""

    path: Path
    done: int
    total: int
    ready: bool


class SharedFolder(NamedTuple):
    """A folder of the host that the guest mounts over virtiofs, with the mount tag *tag*."""

    path: Path
    tag: str


@dataclass(frozen=True)
class Export:
    """A disk that is served over NBD at the unix *socket* with the export name *name*.

    *stand_in*: serve a temporary overlay instead of the disk itself, while a domain of this host still writes to the
    disk. Clients' writes to the overlay are lost; for a QEMU that only waits for an incoming migration, this is enough.
    """

    id: str
    name: str
    disk: Disk
    socket: Path
    stand_in: bool = False


@dataclass(frozen=True)
class Injection:
    """Data to write into a guest's file system before it starts. *partition*: the partition of its disk, counted from
    1; 0: the disk has none; -1: the one with an operating system. *password*: the crypt(5) hash for root. *key*: a line
    for root's authorized_keys. *metadata*: for /meta.js. *files*: pairs of path and base64 content."""

    partition: int
    password: str | None = field(default=None, repr=False)
    key: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    files: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def parts(self) -> dict[str, Any]:
        """Return the data that are set, by name: password, key, metadata, files."""
        parts = {"password": self.password, "key": self.key, "metadata": dict(self.metadata), "files": self.files}
        return {name: value for name, value in parts.items() if value}


class RbdPool(Protocol):
    """A Ceph pool whose RBD images several hosts can use. A *base* is a complete image that ``protect`` has made
    immutable, so that it can be cloned. Every method raises ``HypervisorError`` when the cluster refuses or does not
    answer."""

    def source(self, name: str) -> NetworkSource:
        """Return the network location of the image *name* for QEMU. The image need not exist."""

    def identity(self) -> str:
        """Return the uuid of the cluster and the name of the pool as one text."""

    def names(self) -> list[str]:
        """Return the names of all images in the pool."""

    def size(self, name: str) -> int | None:
        """Return the size of an image in bytes; ``None`` when there is no such image."""

    def make(self, name: str, size: int) -> None:
        """Create an empty image of *size* bytes. Raises ``Conflict`` when it exists."""

    def clone(self, base: str, name: str) -> None:
        """Create the image *name* as a copy-on-write clone of *base*. Raises ``Conflict`` when it exists."""

    def grow(self, name: str, size: int) -> None:
        """Grow an image to *size* bytes. A larger image is not changed."""

    def remove(self, name: str) -> None:
        """Remove an image. Does nothing if it is missing. While QEMU has it open, wait: Ceph needs half a minute to
        notice that a QEMU process has died."""

    def rename(self, name: str, new_name: str) -> None:
        """Rename the image *name* to *new_name*. Clients that have the image open keep it open. Raises ``Conflict``
        when the image *new_name* exists."""

    def annotate(self, name: str, note: str) -> None:
        """Store the text *note* with the image *name*, in place of an earlier text. A renamed image keeps the text; a
        clone of the image does not get it."""

    def annotation(self, name: str) -> str | None:
        """Return the text that ``annotate`` has stored with an image; ``None`` if there is no text or no image."""

    def block_clients(self, name: str) -> list[str]:
        """Have Ceph refuse all later requests of those who have an image open or locked, and return their addresses.
        Does nothing if the image is missing."""

    def is_base(self, name: str) -> bool:
        """Return whether the image *name* is a base: complete and immutable, so that it can be cloned."""

    def protect(self, name: str) -> None:
        """Make the image *name* a base: immutable, so that it can be cloned. Does nothing if it is a base already."""

    def remove_base(self, name: str) -> None:
        """Remove the image *name*, protected or not, unless it has clones. Does nothing if it is missing."""


class HypervisorStorage(Protocol):
    """The methods of ``LocalHypervisor`` for libvirt storage pools. Every method with the argument *pool* raises
    ``Conflict`` when no storage pool has this name, or when the pool is not running."""

    def check_pool(self, pool: str) -> None:
        """Raise ``Conflict`` when there is no pool named *pool*, or the pool is not running."""

    def contents(self, pool: str) -> dict[str, PoolContent]:
        """Return all volumes of the pool by name."""

    def content(self, pool: str, name: str) -> PoolContent | None:
        """Return the volume *name* of the pool; ``None`` if it does not exist. If libvirt does not know the volume,
        refresh the pool first: another host may have created the volume."""

    def make_content(self, pool: str, name: str, size: int) -> None:
        """Create a raw volume of *size* bytes. Raises ``Conflict`` when the volume exists, ``NoSpace`` when the pool is
        full."""

    def grow_content(self, pool: str, name: str, size: int) -> None:
        """Grow a volume to *size* bytes, even while a domain uses it (call ``resize`` afterwards, so that QEMU
        notices). A larger volume is not changed. Raises ``NoSpace`` when the pool is full."""

    def remove_content(self, pool: str, name: str, wipe: int | None) -> None:
        """Remove a volume. Does nothing if it is missing. *wipe*: how many bytes at the volume's start to overwrite
        with zeros before the removal; 0 for all bytes, ``None`` for none."""

    def pool_room(self, pool: str) -> tuple[int, int]:
        """Return the total and free bytes of the pool."""

    def pool_identity(self, pool: str) -> str:
        """Return a text that is the same on all hosts that share the pool: ``FSID/POOL`` for a Ceph pool, the uuid of
        the volume group otherwise. Raises ``HypervisorError`` if it cannot be read."""

    def rbd_pool(self, pool: str) -> RbdPool:
        """Return the Ceph pool of the libvirt pool *pool*, which has the type rbd."""

    def export_image(self, image: CephImage) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """Yield the size of an RBD image and an iterator over its content. The image need not be in a libvirt pool.
        Raises ``HypervisorError`` if it does not exist, cannot be read, or the cluster has another FSID."""

    def rbd_room(self, pool: str) -> tuple[int, int]:
        """Return the total and free bytes of the Ceph pool of the libvirt pool *pool*, from a cache that is at most a
        minute old."""


class HypervisorDisks(Protocol):
    """The methods of ``LocalHypervisor`` for disk files, and for copying disks that are in use."""

    def disk(self, path: Path, format: str) -> DiskSeen | None:
        """Return the properties of a disk file of the format *format*; ``None`` when it is missing. The format is never
        detected from the content, because a guest can write any header into a raw disk."""

    def make_disk(self, path: Path, format: str, size: int, backing: Backing | None = None,
                  label: str | None = None, key: DiskKey | None = None, flushed: bool = True) -> None:
        """Create an empty disk, or an overlay on *backing*, atomically.

        *label*: the label of an ext4 file system to create on the disk; ``swap`` creates a swap area instead, ``None``
        neither. *key*: encrypts the disk; required for the format luks. With qcow2, *key* encrypts the content of the
        new disk, but not the data of *backing*. *flushed*: flush the file to disk; if false, the caller must flush the
        file (see ``Task.note``). The caller must always flush the folder.
        """

    def copy_disk(self, source: Path | NetworkSource, source_format: str, path: Path, format: str,
                  progress: Progress, key: DiskKey | None = None) -> None:
        """Copy the disk *source* of the format *source_format* to the file *path*, converted to *format*, atomically.
        The copy is sparse and flushed to disk. *progress*: called with the copied and the total bytes. *key*: decrypts
        an encrypted source, and encrypts the copy, which must be qcow2 or luks."""

    def lend_keys(self, uuid: str, keys: Sequence[DiskKey], secret: str | None) -> None:
        """Store the disk *keys* of a domain that migrates live to this host, and the *secret* of its TPM, as secrets in
        libvirt, until ``take_back_keys``."""

    def take_back_keys(self, uuid: str, ids: Sequence[str]) -> None:
        """Remove the secrets that ``lend_keys`` stored in libvirt: the TPM's and the disk keys with these *ids*.
        Missing secrets are ignored."""

    def copy_into(self, source: Path | NetworkSource, source_format: str, target: Disk, progress: Progress,
                  blank: bool = False) -> None:
        """Copy the disk *source* of the format *source_format* into the existing raw disk *target* in a storage pool,
        and flush it to disk. After an exception the copy is incomplete. *progress*: called with the copied and the
        total bytes. *blank*: the target already has zeros wherever the source has zeros, so zeros are not written."""

    def label_disk(self, path: Path, label: str) -> None:
        """Create a swap area, if *label* is ``swap``, otherwise an ext4 file system with this *label*, on the existing
        raw disk *path*, and flush it to disk."""

    def grow_disk(self, path: Path, format: str, size: int, key: DiskKey | None = None) -> None:
        """Grow the disk *path* of a stopped domain to *size* bytes. *format*: of the disk. *key*: the key of an
        encrypted disk."""

    def inject(self, disk: Disk, injection: Injection, kvm: bool) -> Mapping[str, str]:
        """Write *injection* into the file system of a disk that is not in use. May be repeated.

        Return ``{name: reason}`` for the data that could not be written (names as in ``Injection.parts``); for all data
        when the disk has no Linux system. The reasons are texts for the server's user. *kvm*: whether guests run under
        KVM. Raises ``HypervisorError`` when the host cannot inject, or the time limit is exceeded.
        """

    def lacks_injection(self) -> str:
        """Return why the host cannot ``inject``; "" if it can."""

    def begin_copy(self, uuid: str, target: str, path: Path, format: str = "qcow2", key: DiskKey | None = None) -> None:
        """Start copying the current content of the disk with the device name *target* of an active domain, including
        its backing files. The copy has the *format*, no backing file, and is encrypted with *key* if given.
        ``finish_copy`` renames the copy to *path*."""

    def finish_copy(self, uuid: str, path: Path, progress: Progress) -> None:
        """Wait for the end of the copy that ``begin_copy`` started. Then the complete copy is at *path*, flushed to
        disk. After an exception the copy is removed. *progress*: called with the copied and the total bytes."""

    def abort_copy(self, uuid: str, path: Path) -> None:
        """Abort the copy to *path* that ``begin_copy`` started, and remove its file. Does nothing when there is no such
        copy."""
