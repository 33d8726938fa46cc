# SPDX-License-Identifier: GPL-3.0-or-later
"""Content that lies in a pool and belongs to no document: a volume takes it over (``existing``), and leaves it there
(``keep_content``); Cinder's manage and unmanage.

In pools that are folders the content is a file, which gets the volume's uuid as its name, and in the end the name
``volume-UUID.FORMAT``. Other pools rename nothing, so their content must have the uuid of its volume as its name.

The agent never guesses a format from the content, because a guest may have written any header: the end of a file's name
tells it. A qcow2 must not name a backing file.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar_agent.reconcile.documents import sync_folder
from magnetar_core.errors import Conflict, HypervisorError, InvalidField, MagnetarError

from . import is_volume_name, pools, round_up_gib
from .pools import UNFINISHED, FolderPool
from .storage import StoragePool

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task

    from .pools import Pool

#: Names of files that can be taken over. Others may mean something to other programs.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,254}")


def list_content(host: LocalHost, pool_name: str) -> list[Fields]:
    """Return the contents of the storage pool *pool_name*, sorted by name, as ``{name, size, format, volume, reason}``.
    *size*: GiB, rounded up. *volume*: uuid of the volume that owns the content, or ``None``. *reason*: why no volume
    can take over the content, or ``None``. Contents of snapshots and incomplete contents are left out. Raises
    ``InvalidField`` or ``Conflict``."""
    pool = pools.find_pool(host, pool_name)
    pool.check_usable()
    used = {disk.path: name for name, domain in host.hypervisor.domains().items() for disk in domain.disks}
    snapshots = {document.id for document in host.documents.list("volume_snapshot")}
    return [_describe(host, pool, name, used) for name in _names(pool)
            if name.partition(".")[0] not in snapshots and not name.endswith(UNFINISHED)]


def _names(pool: Pool) -> list[str]:
    if not isinstance(pool, FolderPool):
        return pool.names()
    if not pool.folder.is_dir():
        return []
    return sorted(path.name for path in pool.folder.iterdir() if NAME.fullmatch(path.name) and not path.is_dir())


def _describe(host: LocalHost, pool: Pool, name: str, used: dict[Path, str]) -> Fields:
    volume, format = host.documents.get("volume", name), name_format(pool, name)
    found: Fields = {"name": name, "size": None, "format": format, "volume": volume.id if volume else None,
                     "reason": None}
    if volume:
        size = int(volume.state.get("bytes", 0))
        return {**found, "format": volume.want["format"], "size": round_up_gib(size), "reason": "already managed"}
    try:
        found["size"] = round_up_gib(content_size(host, pool, name))
    except MagnetarError as error:
        return {**found, "reason": error.message}
    domain = used.get(pool.disk(name, format).path)
    return {**found, "reason": f"the domain {domain} uses it" if domain else None}


def name_format(pool: Pool, name: str) -> str:
    """Return the format of the content *name* in *pool*, which depends only on its name: ``qcow2`` for a file with the
    suffix .qcow2, otherwise ``raw``."""
    return "qcow2" if isinstance(pool, FolderPool) and name.endswith(".qcow2") else "raw"


def content_size(host: LocalHost, pool: Pool, name: str) -> int:
    """Return the size in bytes of the content *name* in *pool*. Raises ``InvalidField`` if a volume cannot take over
    this content, such as a qcow2 with a backing file."""
    if not isinstance(pool, FolderPool):
        assert isinstance(pool, StoragePool)
        content = host.hypervisor.content(pool.pool, name) if is_volume_name(name) else None
        if content is None:
            raise InvalidField("existing", f"must be content of pool {pool.name!r} whose name is a uuid, which the "
                                           "volume gets: such a pool renames nothing", name)
        return int(content.size)
    path = pool.folder / name
    if not NAME.fullmatch(name) or name.endswith((*UNFINISHED, ".luks")):
        raise InvalidField("existing", "must be the name of a file, of letters, digits and ._-, without encryption",
                           name)
    try:
        found = path.lstat()
    except OSError:
        raise InvalidField("existing", f"must be a file in the pool {pool.name!r}", name) from None
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        raise InvalidField("existing", "must be a file, and no symbolic link or one of several hard links", name)
    try:
        disk = host.hypervisor.disk(path, name_format(pool, name))
    except HypervisorError as error:
        raise InvalidField("existing", f"cannot be read: {error.message}", name) from error
    if disk is None or disk.backing is not None or disk.encrypted:
        raise InvalidField("existing", "must stand alone: a qcow2 without a backing file and without encryption", name)
    return disk.virtual_size


def existing_bytes(host: LocalHost, completed: Fields, document: Document | None) -> int:
    """Return the size in bytes of the existing content that the volume with the fields *completed* takes over.
    *document*: ``None`` for a new volume. For an existing volume, the size that *document* records is returned, and
    ``existing`` in *completed* is set to its recorded value. Raises ``InvalidField`` or ``Conflict`` if the content
    cannot be taken over."""
    if document is not None:
        completed["existing"] = document.want.get("existing")
        return int(document.state.get("bytes", document.state.get("taken", 0)))
    pool, name = pools.find_pool(host, completed["pool"]), completed["existing"]
    pool.check_usable()
    if host.documents.get("volume", name) or host.documents.get("volume_snapshot", name.partition(".")[0]):
        raise Conflict(f"The content {name} belongs to a volume or snapshot of this host already.", field="existing")
    size, format = content_size(host, pool, name), name_format(pool, name)
    if completed["format"] != format:
        raise InvalidField("format", f"must be {format}, which the name of the content tells", completed["format"])
    return size


def take_content(task: Task, pool: Pool, size: int) -> None:
    """Take over existing content in *pool* as the content of the *task*'s volume (Cinder's manage): rename it to the
    volume's uuid and grow it to *size* bytes. Raises ``Conflict`` if a domain uses the content or the new name is
    taken."""
    host, document = task.host, task.document
    name, id, format = document.want["existing"], document.id, document.want["format"]
    if not isinstance(pool, FolderPool) and name != id:
        raise InvalidField("existing", f"must be the volume's uuid {id}: pool {pool.name!r} renames nothing", name)
    if "taken" not in document.state:
        used = [domain.name for domain in host.hypervisor.domains().values() for disk in domain.disks
                if disk.path == pool.disk(name, format).path]
        if used:
            raise Conflict(f"The domain {used[0]} uses the content {name}. Detach it there, then repeat the call.")
        if isinstance(pool, FolderPool) and name != id and pool.has(id):
            raise pool.taken(id)
        document.state["taken"] = content_size(host, pool, name)
        task.keep()
    if isinstance(pool, FolderPool):
        _rename(pool, name, id)
        path = pool.folder / id
        os.chown(path, os.geteuid(), -1)
        path.chmod(0o640)
        host.hypervisor.permit([path])
    if document.state["taken"] < size:
        pool.grow(id, format, size)
    document.state.update(made=True, bytes=size)
    document.state.pop("taken")
    task.keep()


def return_content(task: Task) -> bool:
    """When the *task*'s volume is deleted, leave its content in the storage pool if the volume has ``keep_content``
    (Cinder's unmanage) or the content was not completely taken over. A file gets a new name: ``volume-UUID.FORMAT``, or
    its original name if the takeover was incomplete. Return ``False`` if the caller must remove the content instead."""
    document, want = task.document, task.document.want
    taking = bool(want.get("existing")) and not document.state.get("made")
    if not taking and not want.get("keep_content"):
        return False
    pool = pools.find_pool(task.host, want["pool"])
    if isinstance(pool, FolderPool) and (not taking or "taken" in document.state):
        pool.check_usable()
        _rename(pool, document.id, want["existing"] if taking else f"volume-{document.id}.{want['format']}")
    return True


def _rename(pool: FolderPool, name: str, new: str) -> None:
    """Rename the file *name* in the folder of *pool* to *new*. If *name* does not exist, do nothing, because the file
    is already renamed. Raises ``Conflict`` if both files exist."""
    old_path, new_path = pool.folder / name, pool.folder / new
    if name == new or not old_path.exists():
        return
    if new_path.exists():
        raise Conflict(f"The pool {pool.name!r} has a file {new} already. Rename it, then repeat the call.")
    old_path.rename(new_path)
    with suppress(OSError):
        sync_folder(pool.folder)
