# SPDX-License-Identifier: GPL-3.0-or-later
"""Pools that are storage pools of libvirt: LVM, with a logical volume for each volume, and RBD, with an image for each.

They hold raw content only. Content has the uuid as its name from the start, so incomplete content has the name too.
QEMU's backup job writes files, so a copy of a disk in use first goes to a temporary file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar_agent.host.file_modes import make_state_folder
from magnetar_agent.host.storage import Disk, DiskKey
from magnetar_core.errors import Conflict, HypervisorError, MagnetarError, NoSpace

from . import is_volume_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from magnetar_agent.host.hypervisor import LocalHypervisor
    from magnetar_agent.host.storage import Progress


def content_taken_error(pool: str, id: str, way: str) -> Conflict:
    """Return the error that *pool* already has content of another owner with the name *id*. *way*: a shell command that
    removes the content, for the message."""
    return Conflict(f"Pool {pool!r} has content called {id} already, or it is being made, and not for a document of "
                    "this host: it is another host's, or its document was lost. Choose another id, or leave it out. "
                    f"If nobody needs that content, remove it ({way}), then repeat the call.", uuids=[id])


def copy_used_disk(hypervisor: LocalHypervisor, uuid: str, target: str, new: Path, format: str,
                   begun: Callable[[], None], progress: Progress, key: DiskKey | None = None) -> None:
    """Let QEMU copy a disk in use to the file *new*. *target*: the device name of the disk in the running domain
    *uuid*. *format*, *key*: the format of the copy, and its key if it is encrypted. *begun*: called when the copy has
    begun; if it raises, the copy is aborted."""
    hypervisor.abort_copy(uuid, new)  # the copy of a killed agent
    hypervisor.begin_copy(uuid, target, new, format, key)
    try:
        begun()
    except BaseException:
        hypervisor.abort_copy(uuid, new)
        raise
    hypervisor.finish_copy(uuid, new, progress)


class StoragePool:
    """A pool that is a storage pool of libvirt, named *libvirt_pool*. *shared*: the pool is RBD, whose content other
    hosts reach too; otherwise LVM. *scratch*: a directory for temporary copies. *wipe*: how many bytes of removed LVM
    content are overwritten with zeros, since a new volume may get the same blocks; 0: all bytes, ``None``: none."""

    formats: tuple[str, ...] = ("raw",)
    atomic = False
    beneath = True

    def __init__(self, name: str, libvirt_pool: str, hypervisor: LocalHypervisor, shared: bool, scratch: Path,
                 wipe: int | None) -> None:
        self.name, self.pool, self.hypervisor, self.shared = name, libvirt_pool, hypervisor, shared
        self.scratch, self.wipe = scratch, None if shared else wipe
        self.kind = "rbd" if shared else "lvm"

    def capacity(self) -> int | None:
        """Return ``None``: the capacity is not checked in advance, and libvirt or the storage raises an error if the
        pool is full."""
        return None

    def room(self) -> tuple[int, int]:
        """Return the total and free bytes of the pool, as libvirt or Ceph reports them."""
        return self.hypervisor.rbd_room(self.pool) if self.shared else self.hypervisor.pool_room(self.pool)

    def identity(self, host_name: str) -> str:
        """Return a string that identifies the pool's storage: FSID/POOL for Ceph, or the uuid of the LVM volume group.
        """
        return self.hypervisor.pool_identity(self.pool)

    def check_usable(self) -> None:
        """Raise ``Conflict`` unless the pool is defined in libvirt and active."""
        self.hypervisor.check_pool(self.pool)

    def has(self, id: str) -> bool:
        return self.hypervisor.content(self.pool, id) is not None

    def taken(self, id: str) -> Conflict:
        return content_taken_error(self.name, id, f"virsh vol-delete --pool {self.pool} {id}")

    def claim(self, id: str, size: int) -> None:
        if not self.shared:
            return
        try:
            self.hypervisor.make_content(self.pool, id, size)
        except NoSpace:
            raise
        except MagnetarError as error:
            if self.has(id):
                raise self.taken(id) from error
            raise

    def remove_reservation(self, id: str) -> None:
        """Implement ``Pool.remove_reservation``: do nothing. ``claim`` creates the content itself under its final name,
        so there is no separate reservation to remove."""

    def make(self, id: str, format: str, size: int, key: DiskKey | None = None) -> None:
        self._whole(id, lambda: self._blank(id, size))

    def fill(self, id: str, format: str, size: int, source: Disk, progress: Progress,
             key: DiskKey | None = None) -> None:
        def fill() -> None:
            self._blank(id, size)
            self.hypervisor.copy_into(source.remote or source.path, source.format, self.disk(id, format), progress)
        self._whole(id, fill)

    def capture(self, id: str, format: str, size: int, uuid: str, target: str, begun: Callable[[], None],
                progress: Progress, key: DiskKey | None = None) -> None:
        new = self._scratch(id)
        make_state_folder(new.parent)
        try:
            copy_used_disk(self.hypervisor, uuid, target, new, "qcow2", begun, progress)
            self.fill(id, format, size, Disk(new, "", "qcow2"), progress)
        finally:
            new.unlink(missing_ok=True)

    def grow(self, id: str, format: str, size: int, key: DiskKey | None = None) -> None:
        self.hypervisor.grow_content(self.pool, id, size)

    def remove(self, id: str) -> None:
        self._scratch(id).unlink(missing_ok=True)
        self._scratch(id, ".part").unlink(missing_ok=True)
        self._clear(id)

    def disk(self, id: str, format: str) -> Disk:
        content = self.hypervisor.content(self.pool, id)
        if content is None:
            raise HypervisorError(f"The content {id} is gone from the storage pool {self.pool!r}. Restore it there.")
        return content.disk

    def names(self) -> list[str]:
        return sorted(name for name in self.hypervisor.contents(self.pool) if is_volume_name(name))

    def _scratch(self, id: str, end: str = "") -> Path:
        return self.scratch / f"{id}.new{end}"

    def _whole(self, id: str, work: Callable[[], None]) -> None:
        """Call *work*, a function that creates the content *id*. If *work* raises an error, remove the incomplete
        content."""
        try:
            work()
        except BaseException:
            self._clear(id)
            raise

    def _blank(self, id: str, size: int) -> None:
        """Create empty content *id* with *size* bytes. Reuse content of this size that ``claim`` or an earlier,
        interrupted call has created."""
        content = self.hypervisor.content(self.pool, id)
        if content is None or content.size != size:
            self._clear(id)
            self.hypervisor.make_content(self.pool, id, size)

    def _clear(self, id: str) -> None:
        self.hypervisor.remove_content(self.pool, id, self.wipe)
