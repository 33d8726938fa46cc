# SPDX-License-Identifier: GPL-3.0-or-later
"""Pools: folders, and storage pools of libvirt (``storage``), that hold the content of volumes and snapshots.

The pool ``default`` is the folder ``<state_dir>/volumes``. The setting ``pools`` defines others.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from magnetar_agent.host import mounts
from magnetar_agent.host.file_modes import make_state_folder
from magnetar_agent.host.storage import Disk, DiskKey, Progress
from magnetar_agent.reconcile.documents import sync_folder
from magnetar_core.errors import Conflict, HypervisorError, InvalidField

from . import is_volume_name
from .keys import LUKS
from .storage import StoragePool, content_taken_error, copy_used_disk

if TYPE_CHECKING:
    from collections.abc import Mapping

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.hypervisor import LocalHypervisor

DEFAULT = "default"
MIB = 2**20
#: Called when QEMU has begun to copy a disk; raises an error if the disk is not the intended one.
Begun = Callable[[], None]
#: Suffixes of files: of the reservation of a name in a shared pool (``claim``); of incomplete content.
BEGUN = ".begun"
UNFINISHED = (".part", ".new", ".new.part", BEGUN)


class Pool(Protocol):
    """The interface of pools, which store the content of volumes and snapshots. In all methods *id* is the uuid of a
    volume or snapshot, and *size* is in bytes. Every method may raise ``Conflict`` if the pool cannot be used now, and
    ``NoSpace``."""

    name: str
    #: Its type in the agent's setting ``pools``.
    kind: str
    #: Whether other hosts reach the same content.
    shared: bool
    #: Formats of the pool's content, the default first.
    formats: tuple[str, ...]
    #: Whether content with the name of a volume is always complete.
    atomic: bool
    #: Whether the pool must grow content in use before QEMU gets the new size; otherwise QEMU grows it.
    beneath: bool

    def capacity(self) -> int | None:
        """Return the total bytes of the pool. Return ``None`` if the pool cannot tell them: then only a failed write
        shows that the pool is full."""

    def room(self) -> tuple[int, int]:
        """Return the total and free bytes of the pool. Raises ``OSError`` or ``MagnetarError`` if the numbers cannot be
        read."""

    def identity(self, host_name: str) -> str:
        """Return a string that identifies the storage behind the pool: equal on all hosts that reach this storage, and
        different for any other storage. *host_name*: the name of this host."""

    def check_usable(self) -> None:
        """Raise ``Conflict`` if the pool cannot be used now."""

    def has(self, id: str) -> bool:
        """Return whether the pool has content with this *id*. The call is cheap."""

    def taken(self, id: str) -> Conflict:
        """Return the error for content *id* that exists in the pool already and belongs to another owner. The caller
        raises the error."""

    def claim(self, id: str, size: int) -> None:
        """Reserve the name *id* for new content, so that no other host uses it. Raises ``Conflict`` if the name is
        taken already."""

    def remove_reservation(self, id: str) -> None:
        """Remove the reservation that ``claim`` made. The caller has already recorded in the volume's document that the
        content is complete."""

    def make(self, id: str, format: str, size: int, key: DiskKey | None = None) -> None:
        """Create empty content. If an error occurs, no content is left. *key*: the encryption key of content in the
        format luks, here and in the other methods."""

    def fill(self, id: str, format: str, size: int, source: Disk, progress: Progress,
             key: DiskKey | None = None) -> None:
        """Create content as a copy of the disk *source*, grown to *size*. If an error occurs, no content is left.
        *source* must not change meanwhile. *key*: the key of encrypted content; an encrypted *source* has the same key.
        """

    def capture(self, id: str, format: str, size: int, uuid: str, target: str, begun: Begun, progress: Progress,
                key: DiskKey | None = None) -> None:
        """Copy a disk that a running domain uses into new content of the pool, and grow the copy to *size* bytes. *id*,
        *format*: of the new content. *uuid*, *target*: the domain, and the device name of its disk (such as vda).
        *begun*: called once the copy has begun. *key*: as in ``make``."""

    def grow(self, id: str, format: str, size: int, key: DiskKey | None = None) -> None:
        """Grow the content *id* to *size* bytes. The caller ensures that no running domain uses it."""

    def remove(self, id: str) -> None:
        """Remove the content *id*, including incomplete content of an interrupted creation. Do nothing if the pool has
        no such content."""

    def disk(self, id: str, format: str) -> Disk:
        """Return the content *id* as a disk for the definition of a libvirt domain. The caller sets the disk's device
        name (``target``)."""

    def names(self) -> list[str]:
        """Return the names of all content that Magnetar has created in the pool. A name is the uuid of a volume or
        snapshot, with a suffix if the content is incomplete."""


class FolderPool:
    """A pool that is a directory with one file for each volume or snapshot, named by its uuid. *mounted*: the directory
    must be a mount point (NFS)."""

    formats: tuple[str, ...] = ("qcow2", "raw", "luks")
    atomic = True
    beneath = False

    def __init__(self, name: str, folder: Path, hypervisor: LocalHypervisor, mounted: bool) -> None:
        self.name, self.folder, self.hypervisor, self.shared = name, folder, hypervisor, mounted
        self.kind = "nfs" if mounted else "dir"

    def capacity(self) -> int | None:
        """Return the total bytes of the directory's file system. The directory need not exist yet."""
        return self.room()[0]

    def room(self) -> tuple[int, int]:
        """Return the total and free bytes of the directory's file system. The directory need not exist yet."""
        existing = next(path for path in (self.folder, *self.folder.parents) if path.exists())
        usage = shutil.disk_usage(existing)
        return usage.total, usage.free

    def identity(self, host_name: str) -> str:
        """Return SERVER:EXPORT for a directory on a network file system; otherwise HOST:PATH, because other hosts
        cannot reach this file system."""
        source = mounts.mount_source(self.folder) if self.shared else ""
        return source if ":" in source else f"{host_name}:{self.folder}"

    def check_usable(self) -> None:
        """Raise ``Conflict`` if the directory must be a mount point and is not one: files that are written to it now
        would be hidden by a later mount."""
        if self.shared and not self._usable():
            raise Conflict(f"The pool {self.name!r} cannot be used: nothing is mounted at {self.folder}. Mount it on "
                           "the host, then repeat the call.")

    def has(self, id: str) -> bool:
        return self._usable() and (self.folder / id).exists()

    def taken(self, id: str) -> Conflict:
        path = self.folder / id
        return content_taken_error(self.name, id, f"rm -f {path} {path}{BEGUN}" if self.shared else f"rm {path}")

    def claim(self, id: str, size: int) -> None:
        if not self.shared:
            return
        self._prepare()
        mark = self.folder / f"{id}{BEGUN}"
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            raise self.taken(id) from None
        except OSError as error:
            raise HypervisorError(f"{mark} cannot be made: {error.strerror}. Look at the pool {self.name!r}, then "
                                  "repeat the call.") from error
        if self.has(id):  # it was completed just before
            mark.unlink(missing_ok=True)
            raise self.taken(id)

    def remove_reservation(self, id: str) -> None:
        if self.shared:
            (self.folder / f"{id}{BEGUN}").unlink(missing_ok=True)

    def make(self, id: str, format: str, size: int, key: DiskKey | None = None) -> None:
        self._prepare()
        self.hypervisor.make_disk(self.folder / id, format, size, key=key)
        sync_folder(self.folder)
        self.hypervisor.permit([self.folder / id])

    def fill(self, id: str, format: str, size: int, source: Disk, progress: Progress,
             key: DiskKey | None = None) -> None:
        self._prepare()
        new = self.folder / f"{id}.new"
        if source.key:  # with the same key: it is copied as it lies there
            self.hypervisor.copy_disk(source.path, "raw", new, "raw", progress)
        else:
            self.hypervisor.copy_disk(source.remote or source.path, source.format, new, format, progress, key=key)
        self._settle(new, id, format, size, key)

    def capture(self, id: str, format: str, size: int, uuid: str, target: str, begun: Begun, progress: Progress,
                key: DiskKey | None = None) -> None:
        self._prepare()
        new = self.folder / f"{id}.new"
        copy_used_disk(self.hypervisor, uuid, target, new, format, begun, progress, key)
        self._settle(new, id, format, size, key)

    def grow(self, id: str, format: str, size: int, key: DiskKey | None = None) -> None:
        self._prepare()
        self.hypervisor.grow_disk(self.folder / id, format, size, key=key)

    def remove(self, id: str) -> None:
        if not self.folder.exists() and not self.shared:
            return
        self._prepare()
        for end in ("", *UNFINISHED):
            try:
                (self.folder / f"{id}{end}").unlink(missing_ok=True)
            except OSError as error:
                raise HypervisorError(f"{self.folder / id} cannot be removed: {error.strerror}. Look at the pool "
                                      f"{self.name!r}, then delete the volume again.") from error

    def disk(self, id: str, format: str) -> Disk:
        return Disk(self.folder / id, "", "raw" if format == LUKS else format)

    def names(self) -> list[str]:
        if not self._usable():
            return []
        return [path.name for path in self.folder.iterdir() if is_volume_name(path.name)]

    def _settle(self, new: Path, id: str, format: str, size: int, key: DiskKey | None) -> None:
        self.hypervisor.grow_disk(new, format, size, key=key)
        new.chmod(0o640)
        self.hypervisor.permit([new])
        new.rename(self.folder / id)
        sync_folder(self.folder)

    def _usable(self) -> bool:
        return self.folder.is_dir() and (not self.shared or self.folder.is_mount())

    def _prepare(self) -> None:
        self.check_usable()
        try:
            make_state_folder(self.folder)
        except OSError as error:
            raise HypervisorError(f"The folder {self.folder} of the pool {self.name!r} cannot be made: "
                                  f"{error.strerror}.") from error


def find_pool(host: LocalHost, name: str, field: str = "pool") -> Pool:
    """Return the pool *name* of this host. Raises ``InvalidField`` for *field* if there is no such pool."""
    pool_settings: Mapping[str, str] | None = host.settings.pools.get(name)
    if pool_settings is None and name == DEFAULT:
        pool_settings = {"type": "dir", "path": str(Path(host.settings.state_dir) / "volumes")}
    if pool_settings is None:
        pool_names = ", ".join(sorted({DEFAULT, *host.settings.pools}))
        raise InvalidField(field, f"must be a pool of this host, which has {pool_names}", name)
    if "path" in pool_settings:
        return FolderPool(name, Path(pool_settings["path"]), host.hypervisor, pool_settings["type"] == "nfs")
    settings = host.settings
    wipe = settings.volume_clear_size * MIB if settings.volume_clear == "zero" else None
    return StoragePool(name, pool_settings["libvirt_pool"], host.hypervisor, pool_settings["type"] == "rbd",
                       Path(settings.state_dir) / "volumes", wipe)


def all_pools(host: LocalHost) -> list[Pool]:
    """Return all pools, including the default one."""
    return [find_pool(host, name) for name in sorted({DEFAULT, *host.settings.pools})]


def orphan_volume_files(host: LocalHost) -> list[str]:
    """Return the paths of files in this host's pools that belong to no volume or snapshot of this host. Shared pools
    are skipped: their files may belong to another host."""
    known_ids = {d.id for noun in ("volume", "volume_snapshot") for d in host.documents.list(noun)}
    paths: list[str] = []
    for pool in all_pools(host):
        with suppress(Conflict):  # a stopped pool lists nothing
            paths += [f"{pool.disk(name, '').path}" for name in ([] if pool.shared else pool.names())
                      if name.partition(".")[0] not in known_ids]
    return sorted(paths)
