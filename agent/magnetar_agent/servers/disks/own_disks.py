# SPDX-License-Identifier: GPL-3.0-or-later
"""The disks that are created and deleted with a server: root, ephemeral and swap disks. They are files in the server's
folder, logical volumes with links there (``logical_volumes``), or RBD images of Ceph (``rbd_images``)."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from magnetar_agent.host.disk_folder import is_disk_folder_shared, report_disk_folder
from magnetar_agent.host.storage import Backing, Disk, DiskKey, DiskSeen
from magnetar_agent.reconcile.documents import flush_file, sync_folder
from magnetar_agent.servers import server_folder
from magnetar_core.errors import HypervisorDown, InvalidSettings, MagnetarError
from magnetar_core.server_plan import ROOT

from . import disk_owner, encryption, logical_volumes, rbd_images, rbd_owner
from .root_pool import LVM, RBD

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.storage import Progress
    from magnetar_agent.reconcile.documents import Document
    from magnetar_agent.reconcile.task import Task


class _InPool(Protocol):
    """The interface of the modules ``logical_volumes`` and ``rbd_images``, which store servers' disks in the storage
    pool that the setting ``root_pool`` names."""

    def make(self, task: Task, file: str, size: int, label: str | None, /) -> None: ...
    def fill(self, task: Task, file: str, size: int, source: Disk, progress: Progress, /) -> None: ...
    def grow(self, host: LocalHost, document: Document, file: str, size: int, /) -> None: ...
    def remove(self, host: LocalHost, document: Document, files: Iterable[str], /) -> None: ...
    def tidy(self, host: LocalHost, document: Document, needed_files: Iterable[str], /) -> None: ...
    def remove_all(self, host: LocalHost, document: Document, /) -> None: ...
    def room(self, host: LocalHost, /) -> tuple[int, int]: ...


log = logging.getLogger(__name__)
#: The module for disks of each root format.
_IN_POOL: Mapping[str, _InPool] = {LVM: logical_volumes, RBD: rbd_images}


def _in_pool(want: Mapping[str, Any]) -> _InPool | None:
    """Return the module that handles the local disks of a server with the desired fields *want*: ``logical_volumes`` or
    ``rbd_images``; ``None`` if the disks are files."""
    return _IN_POOL.get(want.get("root_format", ""))


def own_disk_format(want: Mapping[str, Any], file: str) -> str:
    """Return the QEMU image format (raw or qcow2) of the server's disk *file*. *want*: the server's desired fields."""
    if _in_pool(want):
        return "raw"
    return "raw" if file == ROOT and want["root_format"] == "raw" else "qcow2"


def are_shared(want: Mapping[str, Any]) -> bool:
    """Return whether the disks of a server with the desired fields *want* are in Ceph RBD, where other hosts can reach
    them. A migration does not copy such disks."""
    return rbd_images.uses_rbd_images(want)


def check_disk_ownership(host: LocalHost, document: Document) -> None:
    """Raise ``Conflict`` if the server's disks are on shared storage and another host may be using them."""
    rbd_images.check_rbd_ownership(host, document)
    rbd_owner.check_rbd_owner(host, document)
    disk_owner.check_disk_owner(host, document)


def describe_shared_disks(host: LocalHost, document: Document, files: Iterable[str]) -> dict[str, Any] | None:
    """Return where the target host of a migration finds the server's disks *files*: ``{"pool": name, "images": [RBD
    image name, …]}``; ``None`` if the disks are not on shared storage."""
    return rbd_images.describe_rbd_images(host, document, files) if are_shared(document.want) else None


def make_own_disk(task: Task, file: str, size: int, label: str | None = None, backing: Backing | None = None,
                  key: DiskKey | None = None) -> None:
    """Create the server's disk *file* of *size* bytes. While the server is being created, the file is not flushed here:
    all files of the server are flushed together later.

    - *label*: ``swap`` for a swap area, otherwise the label of an ext4 file system; ``None`` for an empty disk.
    - *backing*: the backing file of a qcow2 disk; ``None`` for none.
    - *key*: the key to encrypt the disk with; ``None`` for no encryption."""
    want = task.document.want
    if pooled := _in_pool(want):
        pooled.make(task, file, size, label)
        return
    path, late = server_folder(task.host, task.document.id) / file, is_made_anew(task.document)
    task.host.hypervisor.make_disk(path, own_disk_format(want, file), size, backing, label=label, key=key,
                                   flushed=not late)
    task.note(path.parent, *([path] if late else ()))


def is_made_anew(document: Document) -> bool:
    """Return whether the server is being created and its disks are files. In this case, every disk that the server's
    document does not list as complete is created again, even if its file exists."""
    return bool(document.state.get("making")) and _in_pool(document.want) is None


def flush_noted(host: LocalHost) -> None:
    """Flush to storage all files of the servers that a killed agent was changing, because the killed agent may not have
    flushed them. Called when the agent starts, before documents are written that rely on these files."""
    for document in host.documents.noted:
        place = server_folder(host, document.id)
        if document.kind == "server" and place.is_dir():
            for path in place.iterdir():
                if path.is_file() and not path.is_symlink():
                    flush_file(path)
            sync_folder(place)
    host.documents.noted.clear()


def copy_image(task: Task, base: Path, format: str, size: int, key: DiskKey | None = None) -> None:
    """Create the root disk as a copy of the image file *base*, grown to *size* bytes. *format*: the QEMU format of
    *base*. *key*: the key to encrypt the new disk with; ``None`` for no encryption."""
    if pooled := _in_pool(task.document.want):
        pooled.fill(task, ROOT, size, Disk(base, "", format), task.operation.advance)
        return
    place, hypervisor = server_folder(task.host, task.document.id), task.host.hypervisor
    new, made = place / f"{ROOT}.new", own_disk_format(task.document.want, ROOT)
    hypervisor.copy_disk(base, format, new, made, task.operation.advance, key)
    hypervisor.grow_disk(new, made, size, key)
    new.rename(place / ROOT)


def grow_own_disk(task: Task, file: str, size: int) -> None:
    """Grow the server's disk *file* to *size* bytes. The server must be off."""
    host, document = task.host, task.document
    disk_owner.check_disk_owner(host, document)
    rbd_owner.check_rbd_owner(host, document)
    if pooled := _in_pool(document.want):
        pooled.grow(host, document, file, size)
        return
    host.hypervisor.grow_disk(server_folder(host, document.id) / file, own_disk_format(document.want, file), size,
                              encryption.open_disk_key(host, document))


def remove_server_files(host: LocalHost, document: Document, names: Iterable[str]) -> None:
    """Remove the disks and other files in *names* from the server's folder, and the disks also from their storage pool.
    Missing files are ignored."""
    names = list(names)
    disk_owner.check_disk_owner(host, document)
    rbd_owner.check_rbd_owner(host, document)
    if pooled := _in_pool(document.want):
        pooled.remove(host, document, [name for name in names
                                       if name.partition(".")[0] == ROOT and not name.endswith(".new")])
    place = server_folder(host, document.id)
    for name in names:
        (place / name).unlink(missing_ok=True)


def remove_stale_disks(host: LocalHost, document: Document, needed_files: Iterable[str]) -> None:
    """Remove the disks that the server has in a storage pool and that are not in *needed_files*: leftovers of an agent
    that was killed. Disks that are files are not removed."""
    if pooled := _in_pool(document.want):
        pooled.tidy(host, document, needed_files)


def inspect_own_disk(host: LocalHost, document: Document, file: str) -> DiskSeen | None:
    """Return the format and size of the server's disk *file*; ``None`` if it is missing."""
    if rbd_images.uses_rbd_images(document.want):
        size = rbd_images.rbd_disk_size(host, document, file)
        return None if size is None else DiskSeen("raw", size)
    return host.hypervisor.disk(server_folder(host, document.id) / file, own_disk_format(document.want, file))


def remove_server_folder(host: LocalHost, document: Document) -> None:
    """Remove the server's disks and its folder. Do nothing, except log a warning, if another host may be using the
    disks. Raises ``OSError``."""
    place = server_folder(host, document.id)
    if disk_owner.leave_disks(host, document):
        log.warning("the disks of server %s stay: another host may use them", document.name,
                    extra={"server": document.id})
        return
    if (pooled := _in_pool(document.want)) and not rbd_owner.leave_rbd_disks(host, document):
        pooled.remove_all(host, document)
    if place.exists():
        shutil.rmtree(place)


class Room(NamedTuple):
    """Total and free bytes of the storage for new servers' disks; both ``None`` if unknown. *reason*: why the storage
    cannot be used; empty if it can."""

    total: int | None
    free: int | None
    reason: str = ""


def own_disk_room(host: LocalHost) -> Room:
    """Return the total and free bytes for new servers' disks on this host. Both are 0 if a storage pool cannot be used
    at present, and ``None`` if libvirt does not respond."""
    pooled = _IN_POOL.get(host.settings.root_format)
    if pooled is None:
        report = report_disk_folder(host)
        return Room(*host.disk_space()) if report is None else Room(report["total"] or 0, report["free"] or 0,
                                                                    report["reason"])
    try:
        return Room(*pooled.room(host))
    except HypervisorDown as error:
        return Room(None, None, error.message)
    except MagnetarError as error:
        return Room(0, 0, error.message)


def own_disk_capacity(host: LocalHost, root_format: str) -> int:
    """Return the total bytes of the storage for servers' disks with *root_format* (such as qcow2, lvm or rbd) on this
    host."""
    if pooled := _IN_POOL.get(root_format):
        return pooled.room(host)[0]
    return host.disk_space()[0]


def foreign_rbd_images(host: LocalHost) -> list[str]:
    """Return the names of those RBD images in the storage pool for new disks that belong neither to a server on this
    host nor to a server that is migrating to this host. Such images belong to servers on other hosts, or are leftovers.
    """
    coming = [migration.state["server"] for migration in host.documents.peek("migration")
              if migration.want["side"] == "target" and "server" in migration.state]
    return rbd_images.unclaimed_rbd_images(host, [(server.id, server.want, server.state)
                                                  for server in host.documents.peek("server")] + [
        (server["id"], server["want"], server["state"]) for server in coming])


def check_folders_moved(host: LocalHost) -> None:
    """Raise ``InvalidSettings`` if the setting ``instances_path`` names a new folder for servers' disks, and folders of
    this host's servers are still in the default folder."""
    former = Path(host.settings.state_dir) / "servers"
    if not is_disk_folder_shared(host) or str(former) == host.settings.servers_folder:
        return
    if left := [document.id for document in host.documents.peek("server") if (former / document.id).is_dir()]:
        raise InvalidSettings(f"instances_path: {len(left)} servers of this host have their disks in {former}, such as "
                              f"{left[0]}. Stop the servers, and move their folders to {host.settings.servers_folder}; "
                              "or remove the setting.")


def orphan_server_disks(host: LocalHost) -> list[str]:
    """Return the paths of server folders and logical volumes on this host whose server has no document here and is not
    migrating to this host. The agent only reports them; an operator decides whether to remove them."""
    coming = {d.want["server"] for d in host.documents.list("migration") if d.want["side"] == "target"}

    def known(id: str) -> bool:
        return id in coming or host.documents.get("server", id) is not None

    root = Path(host.settings.servers_folder)
    unknown = [path for path in root.iterdir() if path.is_dir() and not known(path.name)] if root.is_dir() else []
    return sorted(map(str, disk_owner.own_folders(host, unknown))) + logical_volumes.orphan_logical_volumes(host, known)
