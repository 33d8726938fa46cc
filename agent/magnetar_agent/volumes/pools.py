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
    """A pool that holds the content of volumes and snapshots. *id* is the uuid of a volume or snapshot, *size* is in
    bytes. Every call may raise ``Conflict`` if the pool cannot be used now, and ``NoSpace``."""

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
        """Return the total bytes of the pool; ``None`` if only a failed write shows that the pool is full."""

    def room(self) -> tuple[int, int]:
        """Return the total and free bytes. Raises ``OSError`` or ``MagnetarError`` if they cannot be read."""

    def identity(self, host_name: str) -> str:
        """Return a text that identifies the storage of the pool: equal on all hosts that reach this storage, and
        different for any other storage. *host_name*: the name of this host."""

    def check_usable(self) -> None:
        """Raise ``Conflict`` if the pool cannot be used now."""

    def has(self, id: str) -> bool:
        """Return whether the pool has content with this *id*. The call is cheap."""

    def taken(self, id: str) -> Conflict:
        """Return the error to raise when content with the name *id* exists already and belongs to another owner."""

    def claim(self, id: str, size: int) -> None:
        """Reserve the name *id* for new content, so that no other host uses it. Raises ``Conflict`` if another host has
        it."""

    def remove_reservation(self, id: str) -> None:
        """Remove the reservation that ``claim`` made. Called when the document already says that the content is
        complete."""

    def make(self, id: str, format: str, size: int, key: DiskKey | None = None) -> None:
        """Create empty content atomically. *key*: the key of content of the format luks, in this method and in others.
        """

    def fill(self, id: str, format: str, size: int, source: Disk, progress: Progress,
             key: DiskKey | None = None) -> None:
        """Copy *source*, which must not change meanwhile, and grow the copy to *size*; atomically. If *source* is
        encrypted, *key* is the key of the source."""

    def capture(self, id: str, format: str, size: int, uuid: str, target: str, begun: Begun, progress: Progress,
                key: DiskKey | None = None) -> None:
        """Copy the disk *target* of the running domain *uuid*, and grow the copy to *size*. *begun* is called once the
        copy has begun."""

    def grow(self, id: str, format: str, size: int, key: DiskKey | None = None) -> None:
        """Grow the content *id* to *size*. No running domain may use it."""

    def remove(self, id: str) -> None:
        """Remove the content *id*, also incomplete content of an interrupted attempt. Missing content is ignored."""

    def disk(self, id: str, format: str) -> Disk:
        """Return the content *id* as a disk for QEMU; the caller sets its target."""

    def names(self) -> list[str]:
        """Return the names of all content of Magnetar in the pool."""


class FolderPool:
    """A pool of files in a folder, each named by the uuid of its volume or snapshot. With *mounted* the folder must be
    a mount point (NFS)."""

    formats: tuple[str, ...] = ("qcow2", "raw", "luks")
    atomic = True
    beneath = False

    def __init__(self, name: str, folder: Path, hypervisor: LocalHypervisor, mounted: bool) -> None:
        self.name, self.folder, self.hypervisor, self.shared = name, folder, hypervisor, mounted
        self.kind = "nfs" if mounted else "dir"

    def capacity(self) -> int | None:
        """Return the total bytes of the file system of the folder, which need not exist yet."""
        return self.room()[0]

    def room(self) -> tuple[int, int]:
        """Return total and free bytes of the file system of the folder, which need not exist yet."""
        existing = next(path for path in (self.folder, *self.folder.parents) if path.exists())
        usage = shutil.disk_usage(existing)
        return usage.total, usage.free

    def identity(self, host_name: str) -> str:
        """Return the source of the mount if a server is part of it (SERVER:EXPORT); otherwise host and path, since
        another host cannot reach this file system."""
        source = mounts.mount_source(self.folder) if self.shared else ""
        return source if ":" in source else f"{host_name}:{self.folder}"

    def check_usable(self) -> None:
        """Raise ``Conflict`` if the folder must be a mount point and is not: a later mount would hide files that are
        written now."""
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
    """Return the pool *name*. Raises ``InvalidField`` for *field* if there is none."""
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
    """Return the files in this host's pools that belong to no document. Shared pools are skipped: the files may be
    another host's."""
    known_ids = {d.id for noun in ("volume", "volume_snapshot") for d in host.documents.list(noun)}
    paths: list[str] = []
    for pool in all_pools(host):
        with suppress(Conflict):  # a stopped pool lists nothing
            paths += [f"{pool.disk(name, '').path}" for name in ([] if pool.shared else pool.names())
                      if name.partition(".")[0] not in known_ids]
    return sorted(paths)
