# SPDX-License-Identifier: GPL-3.0-or-later
"""A server's own disks as logical volumes (``root_format`` lvm, Nova's ``images_type``): root, ephemeral, swap disks.

A disk is the content UUID_FILE of a pool of type lvm, and the server's folder has a link FILE to it. The link is made
when the disk is complete: a disk without a link is made again under the same name. ``document.state["pool"]`` records
where a server's disks are, independent of later settings: {name, block}; *block*: whether they are block devices.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from magnetar_agent.servers import server_folder
from magnetar_core.errors import Conflict

from . import root_pool
from .root_pool import LVM, NOTE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.storage import Disk, Progress
    from magnetar_agent.reconcile.documents import Document
    from magnetar_agent.reconcile.task import Task
    from magnetar_agent.volumes.storage import StoragePool

_UUID = 36


def uses_logical_volumes(want: Mapping[str, Any]) -> bool:
    """Return whether the root, ephemeral and swap disks of a server with the desired fields *want* are LVM logical
    volumes."""
    return want.get("root_format") == LVM


def configured_lvm_pool(host: LocalHost) -> StoragePool:
    """Return the LVM storage pool for new disks, which the setting ``root_pool`` names."""
    return root_pool.configured_root_pool(host, LVM)


def room(host: LocalHost) -> tuple[int, int]:
    """Return the total and the free bytes of the LVM storage pool for new disks."""
    return host.hypervisor.pool_room(configured_lvm_pool(host).pool)


def lvm_pool_of_server(host: LocalHost, document: Document) -> StoragePool:
    """Return the LVM storage pool that contains the server's disks. Raises ``Conflict`` if the settings do not have the
    pool any more."""
    return root_pool.root_pool_of_server(host, document, LVM)


def note_lvm_pool(host: LocalHost, document: Document, keep: Callable[[], None]) -> None:
    """Store in the server's document the LVM pool that its disks will use, unless a pool is already stored. Call this
    before the first disk is created. *keep*: writes the document to disk."""
    if NOTE not in document.state:
        document.state[NOTE] = {"name": configured_lvm_pool(host).name, "block": True}
        keep()


def is_block(document: Document) -> bool:
    """Return whether the server's disks in the storage pool are block devices, as opposed to files."""
    return bool(document.state.get(NOTE, {}).get("block", True))


def make(task: Task, file: str, size: int, label: str | None = None) -> None:
    """Create the logical volume for the disk *file* of *size* bytes. *label*: ``swap`` to create a swap area on it,
    otherwise the label of an ext4 file system to create; ``None`` to leave it empty."""
    note_lvm_pool(task.host, task.document, task.keep)
    disk = allot_logical_volume(task.host, task.document, file, size)
    if label is not None:
        task.host.hypervisor.label_disk(disk.path, label)
    _link(task.host, task.document, file, disk, file)


def fill(task: Task, file: str, size: int, source: Disk, progress: Progress) -> None:
    """Create the logical volume for the disk *file*, copy the content of *source* into it, and grow it to *size* bytes.
    *progress*: called with the copied and the total bytes."""
    note_lvm_pool(task.host, task.document, task.keep)
    lvm_pool_of_server(task.host, task.document).fill(_content(task.document, file), "raw", size, source, progress)
    _link(task.host, task.document, file, _noted_disk(task.host, task.document, file), file)


def allot_logical_volume(host: LocalHost, document: Document, file: str, size: int) -> Disk:
    """Create a logical volume of *size* bytes for the disk *file* and return it. Its content is undefined. A volume
    left by an earlier failed attempt is used again."""
    lvm_pool_of_server(host, document).make(_content(document, file), "raw", size)
    return _noted_disk(host, document, file)


def _noted_disk(host: LocalHost, document: Document, file: str) -> Disk:
    """Return the logical volume of the disk *file*. Also set in the server's document whether the volume is a block
    device; the caller writes the document to disk."""
    disk = _disk(host, document, file)
    document.state[NOTE]["block"] = disk.block_device
    return disk


def link_logical_volume(host: LocalHost, document: Document, file: str, name: str | None = None) -> None:
    """Create or atomically replace a symlink in the server's folder that points to the logical volume of the disk
    *file*. *name*: name of the symlink; by default *file*."""
    _link(host, document, file, _disk(host, document, file), name or file)


def _link(host: LocalHost, document: Document, file: str, disk: Disk, name: str) -> None:
    place = server_folder(host, document.id)
    new = place / f"{file}.link"
    new.unlink(missing_ok=True)
    new.symlink_to(disk.path)
    new.rename(place / name)


def grow(host: LocalHost, document: Document, file: str, size: int) -> None:
    """Grow the logical volume of the disk *file* to *size* bytes. The server must be off."""
    lvm_pool_of_server(host, document).grow(_content(document, file), "raw", size)


def remove(host: LocalHost, document: Document, files: Iterable[str]) -> None:
    """Remove the logical volumes of the disks *files*, then their symlinks in the server's folder. The pool's settings
    decide whether the content is erased first. Missing disks are ignored."""
    if NOTE not in document.state:  # none was made
        return
    pool, place = lvm_pool_of_server(host, document), server_folder(host, document.id)
    for file in files:
        pool.remove(_content(document, file))
        (place / file).unlink(missing_ok=True)


def tidy(host: LocalHost, document: Document, needed_files: Iterable[str]) -> None:
    """Remove disks of the server that are not in *needed_files*, together with their symlinks: leftovers of an agent
    that was killed.
    """
    place = server_folder(host, document.id)
    if stale_files := {symlink.name for symlink in os.scandir(place) if symlink.is_symlink()}.difference(needed_files):
        remove(host, document, sorted(stale_files))


def remove_all(host: LocalHost, document: Document) -> None:
    """Remove all logical volumes whose names begin with the server's uuid, including volumes without a symlink.
    Symlinks in the server's folder are not removed."""
    if NOTE in document.state:
        pool, begins = lvm_pool_of_server(host, document), _content(document, "")
        for name in sorted(host.hypervisor.contents(pool.pool)):
            if name.startswith(begins):
                pool.remove(name)


def orphan_logical_volumes(host: LocalHost, is_known: Callable[[str], bool]) -> list[str]:
    """Return the paths of server disks in the LVM pool that belong to no known server. *is_known*: called with the uuid
    of a disk's server; returns whether this host knows the server."""
    if root_pool.type_of(host, host.settings.root_pool) != LVM:
        return []
    with suppress(Conflict):  # a stopped pool lists nothing
        contents = host.hypervisor.contents(configured_lvm_pool(host).pool)
        return sorted(str(content.disk.path) for name, content in contents.items() if _is_ours(name)
                      and not is_known(name[:_UUID]))
    return []


def _is_ours(name: str) -> bool:
    return name[:_UUID].count("-") == 4 and name[_UUID:].startswith("_disk")


def _content(document: Document, file: str) -> str:
    return f"{document.id}_{file}"


def _disk(host: LocalHost, document: Document, file: str) -> Disk:
    return lvm_pool_of_server(host, document).disk(_content(document, file), "raw")
