# SPDX-License-Identifier: GPL-3.0-or-later
"""The folder of servers' disks on shared storage (setting ``instances_path``), and its identity.

The first agent that uses the folder writes a random uuid into it. Hosts whose agents read the same uuid reach the same
disks, whatever the paths. Each agent remembers the uuid in its state folder: so it notices when nothing is mounted at
the path, or another file system than before. Also in the state folder is the uuid that names the host in the folder.
"""

from __future__ import annotations

import os
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from magnetar_agent.reconcile.documents import write_atomically, write_once
from magnetar_core.errors import Conflict

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Fields

#: The file with the identity of the folder. No server's folder has such a name.
IDENTITY = ".magnetar-disks"
#: Files in the state folder: the identity of the folder that this host uses, and the name of this host in it.
KNOWN, OWNER = "disk_folder", "disk_owner"
#: Seconds that the folder may take to answer before it counts as unusable.
SLOW = 30.0
_MAKING = threading.Lock()


class DiskFolder(NamedTuple):
    """The shared folder at *path* for the disks of several hosts' servers. *id*: the uuid of the folder, stored in it.
    *owner*: the uuid of this host, recorded in the folder as the owner of the disks of this host's servers."""

    path: Path
    id: str
    owner: str


def is_disk_folder_shared(host: LocalHost) -> bool:
    """Return whether the setting ``instances_path`` puts the disks of servers into a shared folder."""
    return host.settings.instances_path is not None


def read_host_owner(host: LocalHost) -> str:
    """Return the uuid that names this host as an owner of servers' disks on shared storage. The first call stores a
    random uuid in the state folder. If the state folder is lost, the host gets a new uuid. The documents of its servers
    are then lost too."""
    path = Path(host.settings.state_dir) / OWNER
    with _MAKING:
        return _read(path) or _draw(path)


def find_disk_folder(host: LocalHost) -> DiskFolder | None:
    """Return the shared folder of the setting ``instances_path``; ``None`` without that setting. The first call stores
    a uuid in the folder. Raises ``Conflict`` if the folder is not mounted, or has another uuid than before."""
    path = host.settings.instances_path
    if path is None:
        return None
    state = Path(host.settings.state_dir)
    with _MAKING:
        try:
            owner = _read(state / OWNER) or _draw(state / OWNER)
            folder_id, id = _read(state / KNOWN), _read(path / IDENTITY)
            if id is None and folder_id is None:
                id = _draw(path / IDENTITY)
            if folder_id is None and id is not None:
                write_atomically(state / KNOWN, f"{id}\n".encode())
                folder_id = id
        except OSError as error:
            raise Conflict(f"The folder of servers' disks {path} (instances_path) cannot be used: {error.strerror}. "
                           "Mount it on the host, then repeat the call.") from error
    if id is None:
        raise Conflict(f"The folder of servers' disks {path} (instances_path) has lost its file {IDENTITY}: its file "
                       "system is not mounted. Mount it on the host, then repeat the call.")
    if id != folder_id:
        raise Conflict(f"The folder of servers' disks {path} (instances_path) is another one than before: {id} instead "
                       f"of {folder_id}. Mount the former one; or, if no server of this host has disks there, remove "
                       f"{state / KNOWN}.")
    return DiskFolder(path, id, owner)


def report_disk_folder(host: LocalHost) -> Fields | None:
    """Return the host's field ``disk_folder``, with the total and free bytes; ``None`` if the settings have no shared
    folder. The folder is read in the background, so a hanging file server does not delay the caller."""
    path = host.settings.instances_path
    if path is None:
        return None
    # No pool has a name that begins with a slash.
    values, seconds = host.pool_reads.latest({str(path): lambda: _read_disk_folder(host)})[str(path)]
    state = Path(host.settings.state_dir)
    reason = "" if values else "It was not read yet."
    if seconds > SLOW:
        values, reason = None, f"{path} has not answered for {seconds:.0f} s."
    return {"path": str(path), "total": None, "free": None, "reason": reason, **(values or {}),
            "id": _read(state / KNOWN), "owner": _read(state / OWNER)}


def _read_disk_folder(host: LocalHost) -> Fields:
    """Return total and free bytes of the shared folder (``total``, ``free``), or ``reason``: why it cannot be used."""
    try:
        folder = find_disk_folder(host)
        assert folder is not None
        room = os.statvfs(folder.path)
    except Conflict as error:
        return {"reason": error.message}
    except OSError as error:
        return {"reason": f"It cannot be read: {error.strerror}."}
    return {"total": room.f_blocks * room.f_frsize, "free": room.f_bavail * room.f_frsize}


def _read(path: Path) -> str | None:
    """Return the uuid in the file *path*; ``None`` if the file is missing or empty. Raises ``OSError`` if the file
    cannot be read."""
    with suppress(FileNotFoundError):
        return path.read_text().strip() or None
    return None


def _draw(path: Path) -> str:
    """Write a new uuid into the file *path*, unless another process has created the file first. Return the uuid in the
    file."""
    write_once(path, f"{uuid.uuid4()}\n".encode())
    return _read(path) or ""
