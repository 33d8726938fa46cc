# SPDX-License-Identifier: GPL-3.0-or-later
"""A server's own disks as logical volumes (``root_format`` lvm, Nova's ``images_type``): root, ephemeral, swap disks.

A disk is the content UUID_FILE of a pool of type lvm, and the server's folder has a link FILE that leads there. The
link is made when the disk is complete: what has none is made anew, under the same name. ``document.state["pool"]`` says
where a server's disks lie, whatever the settings say by now: {name, block}; *block*: as libvirt has to be told.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from magnetar_agent.servers import folder
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


def are_wanted(want: Mapping[str, Any]) -> bool:
    """Whether the server's own disks are logical volumes."""
    return want.get("root_format") == LVM


def of_settings(host: LocalHost) -> StoragePool:
    """The pool in which new disks lie."""
    return root_pool.of_settings(host, LVM)


def room(host: LocalHost) -> tuple[int, int]:
    """Bytes of that pool, and those that are free."""
    return host.hypervisor.pool_room(of_settings(host).pool)


def of(host: LocalHost, document: Document) -> StoragePool:
    """See ``root_pool.of``."""
    return root_pool.of(host, document, LVM)


def begin(host: LocalHost, document: Document, keep: Callable[[], None]) -> None:
    """Note where the disks will lie, before the first is made."""
    if NOTE not in document.state:
        document.state[NOTE] = {"name": of_settings(host).name, "block": True}
        keep()


def is_block(document: Document) -> bool:
    """Whether the disks are block devices, and no files that stand for them."""
    return bool(document.state.get(NOTE, {}).get("block", True))


def make(task: Task, file: str, size: int, label: str | None = None) -> None:
    """An empty disk, or one that holds nothing but what *label* asks for (``HypervisorDisks.make_disk``)."""
    begin(task.host, task.document, task.keep)
    disk = allot(task.host, task.document, file, size)
    if label is not None:
        task.host.hypervisor.label_disk(disk.path, label)
    _link(task.host, task.document, file, disk, file)


def fill(task: Task, file: str, size: int, source: Disk, progress: Progress) -> None:
    """A copy of *source*, grown to *size*."""
    begin(task.host, task.document, task.keep)
    of(task.host, task.document).fill(_content(task.document, file), "raw", size, source, progress)
    _link(task.host, task.document, file, _seen(task.host, task.document, file), file)


def allot(host: LocalHost, document: Document, file: str, size: int) -> Disk:
    """Have a logical volume of this *size*, which holds anything; what an attempt left is taken up."""
    of(host, document).make(_content(document, file), "raw", size)
    return _seen(host, document, file)


def _seen(host: LocalHost, document: Document, file: str) -> Disk:
    """The disk, of which the document says from now on whether it is a block device."""
    disk = _disk(host, document, file)
    document.state[NOTE]["block"] = disk.block
    return disk


def link(host: LocalHost, document: Document, file: str, name: str | None = None) -> None:
    """Have the link *name* (*file* itself where left out) lead to the disk, at once."""
    _link(host, document, file, _disk(host, document, file), name or file)


def _link(host: LocalHost, document: Document, file: str, disk: Disk, name: str) -> None:
    place = folder(host, document.id)
    new = place / f"{file}.link"
    new.unlink(missing_ok=True)
    new.symlink_to(disk.path)
    new.rename(place / name)


def grow(host: LocalHost, document: Document, file: str, size: int) -> None:
    """Grow the disk of a server that is off."""
    of(host, document).grow(_content(document, file), "raw", size)


def remove(host: LocalHost, document: Document, files: Iterable[str]) -> None:
    """Remove disks, cleared as the settings say, and then their links; gone is fine."""
    if NOTE not in document.state:  # none was made
        return
    pool, place = of(host, document), folder(host, document.id)
    for file in files:
        pool.remove(_content(document, file))
        (place / file).unlink(missing_ok=True)


def tidy(host: LocalHost, document: Document, wanted: Iterable[str]) -> None:
    """Remove disks that are not *wanted* any more, and of which an agent that was killed has left the links."""
    place = folder(host, document.id)
    if left := {one.name for one in os.scandir(place) if one.is_symlink()}.difference(wanted):
        remove(host, document, sorted(left))


def remove_all(host: LocalHost, document: Document) -> None:
    """Remove all disks that have the server's name, those without a link too; the links stay."""
    if NOTE in document.state:
        pool, begins = of(host, document), _content(document, "")
        for name in sorted(host.hypervisor.contents(pool.pool)):
            if name.startswith(begins):
                pool.remove(name)


def left(host: LocalHost, known: Callable[[str], bool]) -> list[str]:
    """Paths of disks in the pool of servers that are not *known* by their uuids."""
    if root_pool.type_of(host, host.settings.root_pool) != LVM:
        return []
    with suppress(Conflict):  # a pool that does not run has nothing to tell
        found = host.hypervisor.contents(of_settings(host).pool)
        return sorted(str(one.disk.path) for name, one in found.items() if _is_ours(name) and not known(name[:_UUID]))
    return []


def _is_ours(name: str) -> bool:
    return name[:_UUID].count("-") == 4 and name[_UUID:].startswith("_disk")


def _content(document: Document, file: str) -> str:
    return f"{document.id}_{file}"


def _disk(host: LocalHost, document: Document, file: str) -> Disk:
    return of(host, document).disk(_content(document, file), "raw")
