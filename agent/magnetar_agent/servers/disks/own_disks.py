# SPDX-License-Identifier: GPL-3.0-or-later
"""The disks that live and die with a server: root, ephemeral and swap disks. They are files in the server's folder, or
logical volumes that have links there (``logical_volumes``), or RBD images of Ceph (``rbd_images``)."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from magnetar_agent.host.storage import Backing, Disk, DiskKey, DiskSeen
from magnetar_agent.reconcile.documents import flush, sync_folder
from magnetar_agent.servers import folder
from magnetar_core.errors import HypervisorDown, MagnetarError
from magnetar_core.server_plan import ROOT

from . import encryption, logical_volumes, rbd_images
from .root_pool import LVM, RBD

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.storage import Progress
    from magnetar_agent.reconcile.documents import Document
    from magnetar_agent.reconcile.task import Task


class _InPool(Protocol):
    """What a module does with disks that are no files, but lie in the ``root_pool``."""

    def make(self, task: Task, file: str, size: int, label: str | None, /) -> None: ...
    def fill(self, task: Task, file: str, size: int, source: Disk, progress: Progress, /) -> None: ...
    def grow(self, host: LocalHost, document: Document, file: str, size: int, /) -> None: ...
    def remove(self, host: LocalHost, document: Document, files: Iterable[str], /) -> None: ...
    def tidy(self, host: LocalHost, document: Document, wanted: Iterable[str], /) -> None: ...
    def remove_all(self, host: LocalHost, document: Document, /) -> None: ...
    def room(self, host: LocalHost, /) -> tuple[int, int]: ...


#: By root format.
_IN_POOL: Mapping[str, _InPool] = {LVM: logical_volumes, RBD: rbd_images}


def _in_pool(want: Mapping[str, Any]) -> _InPool | None:
    """What looks after a server's own disks; ``None`` where they are files."""
    return _IN_POOL.get(want.get("root_format", ""))


def format_of(want: Mapping[str, Any], file: str) -> str:
    """The format in which QEMU has the disk."""
    if _in_pool(want):
        return "raw"
    return "raw" if file == ROOT and want["root_format"] == "raw" else "qcow2"


def are_shared(want: Mapping[str, Any]) -> bool:
    """Whether other hosts reach the server's own disks, so that they are not copied when it moves."""
    return rbd_images.are_wanted(want)


def check_here(host: LocalHost, document: Document) -> None:
    """See ``rbd_images.check_here``; disks of other kinds are this host's alone."""
    rbd_images.check_here(host, document)


def told(host: LocalHost, document: Document, files: Iterable[str]) -> dict[str, Any] | None:
    """See ``rbd_images.told``; ``None`` for disks that are not shared."""
    return rbd_images.told(host, document, files) if are_shared(document.want) else None


def make(task: Task, file: str, size: int, label: str | None = None, backing: Backing | None = None,
         key: DiskKey | None = None) -> None:
    """An empty disk; see ``HypervisorDisks.make_disk``. Of a server that is made it is flushed with all the rest."""
    want = task.document.want
    if pooled := _in_pool(want):
        pooled.make(task, file, size, label)
        return
    path, late = folder(task.host, task.document.id) / file, is_made_anew(task.document)
    task.host.hypervisor.make_disk(path, format_of(want, file), size, backing, label=label, key=key, flushed=not late)
    task.note(path.parent, *([path] if late else ()))


def is_made_anew(document: Document) -> bool:
    """Whether the server is being made, so that what is not noted as made is made again, whatever there is of it."""
    return bool(document.state.get("making")) and _in_pool(document.want) is None


def flush_noted(host: LocalHost) -> None:
    """Flush what an agent that was killed has made, and noted only (``Task.note``): from here on documents are written
    that say for good that it is there."""
    for document in host.documents.noted:
        place = folder(host, document.id)
        if document.kind == "server" and place.is_dir():
            for path in place.iterdir():
                if path.is_file() and not path.is_symlink():
                    flush(path)
            sync_folder(place)
    host.documents.noted.clear()


def copy_image(task: Task, base: Path, format: str, size: int, key: DiskKey | None = None) -> None:
    """The root disk as a copy of an image's content, grown to *size*."""
    if pooled := _in_pool(task.document.want):
        pooled.fill(task, ROOT, size, Disk(base, "", format), task.operation.advance)
        return
    place, hypervisor = folder(task.host, task.document.id), task.host.hypervisor
    new, made = place / f"{ROOT}.new", format_of(task.document.want, ROOT)
    hypervisor.copy_disk(base, format, new, made, task.operation.advance, key)
    hypervisor.grow_disk(new, made, size, key)
    new.rename(place / ROOT)


def grow(task: Task, file: str, size: int) -> None:
    """Grow the disk of a server that is off."""
    host, document = task.host, task.document
    if pooled := _in_pool(document.want):
        pooled.grow(host, document, file, size)
        return
    host.hypervisor.grow_disk(folder(host, document.id) / file, format_of(document.want, file), size,
                              encryption.of(host, document))


def remove(host: LocalHost, document: Document, names: Iterable[str]) -> None:
    """Remove disks, and other files of the server; gone is fine."""
    names = list(names)
    if pooled := _in_pool(document.want):
        pooled.remove(host, document, [name for name in names
                                       if name.partition(".")[0] == ROOT and not name.endswith(".new")])
    place = folder(host, document.id)
    for name in names:
        (place / name).unlink(missing_ok=True)


def tidy(host: LocalHost, document: Document, wanted: Iterable[str]) -> None:
    """Remove disks that are not *wanted* any more, and that an agent which was killed has left in a pool."""
    if pooled := _in_pool(document.want):
        pooled.tidy(host, document, wanted)


def seen(host: LocalHost, document: Document, file: str) -> DiskSeen | None:
    """What a disk says of itself; ``None`` where it is missing."""
    if rbd_images.are_wanted(document.want):
        size = rbd_images.size(host, document, file)
        return None if size is None else DiskSeen("raw", size)
    return host.hypervisor.disk(folder(host, document.id) / file, format_of(document.want, file))


def remove_all(host: LocalHost, document: Document) -> None:
    """Remove the server's folder, with all that is in it. Raises ``OSError``."""
    place = folder(host, document.id)
    if pooled := _in_pool(document.want):
        pooled.remove_all(host, document)
    if place.exists():
        shutil.rmtree(place)


class Room(NamedTuple):
    """Bytes of what the disks of new servers lie in, and those that are free; ``None`` where nobody knows. *reason*:
    why there are none."""

    total: int | None
    free: int | None
    reason: str = ""


def room(host: LocalHost) -> Room:
    """What there is on this host. A pool that cannot be used now has no room."""
    pooled = _IN_POOL.get(host.settings.root_format)
    if pooled is None:
        disk = shutil.disk_usage(host.settings.state_dir)
        return Room(disk.total, disk.free)
    try:
        return Room(*pooled.room(host))
    except HypervisorDown as error:
        return Room(None, None, error.message)
    except MagnetarError as error:
        return Room(0, 0, error.message)


def total(host: LocalHost, root_format: str) -> int:
    """Bytes of what disks of this format lie in."""
    if pooled := _IN_POOL.get(root_format):
        return pooled.room(host)[0]
    return shutil.disk_usage(host.settings.state_dir).total


def unknown(host: LocalHost) -> list[str]:
    """RBD images of servers in the ``root_pool`` that this host does not know. They are of other hosts, unless none of
    those that have the pool knows them."""
    coming = [one.state["server"] for one in host.documents.peek("migration")
              if one.want["side"] == "target" and "server" in one.state]
    return rbd_images.unknown(host, [(one.id, one.want, one.state) for one in host.documents.peek("server")] + [
        (one["id"], one["want"], one["state"]) for one in coming])


def left(host: LocalHost) -> list[str]:
    """Folders, and logical volumes, of servers that have no document and are not on their way here. They are reported,
    not removed: somebody may need them."""
    coming = {d.want["server"] for d in host.documents.list("migration") if d.want["side"] == "target"}

    def known(id: str) -> bool:
        return id in coming or host.documents.get("server", id) is not None

    root = Path(host.settings.state_dir) / "servers"
    folders = [str(path) for path in root.iterdir() if not known(path.name)] if root.is_dir() else []
    return sorted(folders) + logical_volumes.left(host, known)
