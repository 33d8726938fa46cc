# SPDX-License-Identifier: GPL-3.0-or-later
"""The owner of a server's disks in a folder that several hosts share (``host.disk_folder``).

The file ``owner.json`` in the server's folder names the host that may use the disks. A host writes the file before it
makes the first disk, and reads it before each start, change and removal of the disks. The file also has the notes of
the server's document that describe the disks, so that another host can take over the disks of a host that is off:

* ``adopt_disks``: an evacuation names the former owner in the field of that name. The new host becomes the owner, and
  makes no disk.
* ``keep_disks``: the cloud confirms the evacuation with this event. Until then a removal of the server gives the disks
  back to the former owner (``leave_disks``).
* ``take_over_disks``: the server has migrated. On the source, ``hand_over_disks`` prevents that its removal removes
  the disks.

The owner alone writes the file, except at an evacuation, whose caller knows that the former owner is off.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent.host.disk_folder import find_disk_folder, is_disk_folder_shared
from magnetar_agent.host.file_modes import make_state_folder
from magnetar_agent.reconcile.documents import write_atomically, write_once
from magnetar_agent.servers import server_folder
from magnetar_core.errors import Conflict

from . import rbd_owner
from .disk_record import ADOPTED, GIVEN, HANDED, check_disk_record, disk_facts, take_disk_facts

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task

FILE = "owner.json"


def claim_disks(task: Task) -> None:
    """Make this host the owner of the server's disks in the shared folder, before they are created. If the server has
    the field ``adopt_disks`` (an evacuation), take over existing disks, there or in Ceph. Do nothing without shared
    storage. Raises ``Conflict`` if another host is the owner."""
    host, document = task.host, task.document
    folder = find_disk_folder(host)
    adopts = bool(document.want.get(GIVEN) and document.state.get("making"))
    if folder is None:
        if adopts:
            rbd_owner.adopt_rbd_disks(task)
        return
    place = server_folder(host, document.id)
    if adopts:
        record = _read(place)
        if record is None or record["owner"] != folder.owner:
            _adopt(task, folder.owner, record)
        return
    make_state_folder(place)
    check_disk_owner(host, document)


def check_disk_owner(host: LocalHost, document: Document) -> None:
    """Raise ``Conflict`` if another host is the owner of the server's disks in the shared folder. If no owner is
    recorded, this host becomes the owner."""
    if document.state.get(HANDED):
        raise Conflict(f"The disks of server {document.name!r} may be another host's: its migration from here was "
                       "ended with the event discard. Look for the server there, and delete it here; its disks stay.")
    folder = find_disk_folder(host)
    place = server_folder(host, document.id)
    if folder is None or not place.is_dir():
        return
    record = _read(place)
    if record is None:
        record = _create(place, _record(host, document, folder.owner))
    if record["owner"] != folder.owner:
        raise Conflict(f"The disks of server {document.name!r} belong to host {record['host']}, which has taken them "
                       "over. Look for the server there, and delete it here; its disks stay.")


def record_disks(host: LocalHost, document: Document) -> None:
    """If this host owns the server's disks on shared storage, write the current facts about them from the document
    beside the disks: into the file ``owner.json``, or into Ceph. After an evacuation, another host reads them."""
    rbd_owner.record_rbd_disks(host, document)
    folder = find_disk_folder(host)
    if folder is None:
        return
    place = server_folder(host, document.id)
    known, record = _read(place), _record(host, document, folder.owner)
    if known is not None and known["owner"] == folder.owner and known != record:
        _write(place, record)


def take_over_disks(host: LocalHost, server: Document) -> None:
    """Make this host the owner of the disks in the shared folder of a *server* that has migrated to this host. May be
    repeated."""
    folder = find_disk_folder(host)
    if folder is not None:
        _write(server_folder(host, server.id), _record(host, server, folder.owner))


def must_leave_disks(host: LocalHost, document: Document) -> bool:
    """Return whether the disks of a server that is being removed from this host must not be deleted: another host is
    their owner, or this host got them in an evacuation that is not confirmed. Raises ``Conflict`` if the shared folder
    cannot be used now."""
    if document.state.get(HANDED):
        return True
    folder = find_disk_folder(host)
    if folder is None:
        return False
    record = _read(server_folder(host, document.id))
    if record is None:
        return document.want.get(GIVEN) is not None and bool(document.state.get("making"))
    return record["owner"] != folder.owner or ADOPTED in document.state


def leave_disks(host: LocalHost, document: Document) -> bool:
    """Return whether the server's disks must not be deleted, as ``must_leave_disks`` does. If the reason is an
    unconfirmed evacuation, make the server's former host the owner of the disks again."""
    if not must_leave_disks(host, document):
        return False
    folder, former, place = find_disk_folder(host), document.state.get(ADOPTED), server_folder(host, document.id)
    record = _read(place)
    if folder and former and record is not None and record["owner"] == folder.owner:
        _write(place, {**record, **former})
    return True


def hand_over_disks(server: Document) -> None:
    """Record in the document of *server* that its disks in the shared folder belong to the target of a migration.
    Called when the server has moved to the target, or may have."""
    server.state[HANDED] = True


def keep_disks(host: LocalHost, document: Document) -> None:
    """Record that the evacuation of the server to this host is confirmed: its disks belong to this host from now on."""
    if document.state.pop(ADOPTED, None):
        host.documents.write(document)
    record_disks(host, document)


def is_folder_of_another_host(host: LocalHost, id: str) -> bool:
    """Return whether the shared folder contains a folder for the server *id*, and another or an unknown host owns that
    folder."""
    folder, place = find_disk_folder(host), server_folder(host, id)
    if folder is None or not place.is_dir():
        return False
    record = _read(place)
    return record is None or record["owner"] != folder.owner


def own_folders(host: LocalHost, folders: list[Path]) -> list[Path]:
    """Return those of the servers' *folders* whose recorded owner is this host; all of them if there is no shared
    folder."""
    if not is_disk_folder_shared(host):
        return folders
    with suppress(Conflict):
        folder = find_disk_folder(host)
        return [path for path in folders if folder and (record := _read(path)) and record["owner"] == folder.owner]
    return []


def _adopt(task: Task, owner: str, record: Any) -> None:
    """Make this host the owner (its uuid is *owner*) of existing disks in the shared folder, and copy the facts about
    them in *record*, the content of ``owner.json``, into the server's document. Raises ``Conflict`` if files are
    missing, or if the present owner is not the one in the field ``adopt_disks``."""
    host, document = task.host, task.document
    place, name = server_folder(host, document.id), document.name
    if record is None:
        raise Conflict(f"The folder {place} has no disks of server {name!r} that host {host.name} could take over. "
                       "Look whether this host mounts the same storage as the host that had the server.")
    if record["owner"] != document.want[GIVEN]:
        raise Conflict(f"The disks of server {name!r} belong to host {record['host']}, which has taken them over "
                       "meanwhile. Look for the server there.")
    check_disk_record(document, record)
    if lost := [file for file in record["state"].get("made", []) if file != "config.iso" and not (
            place / file).exists()]:
        raise Conflict(f"{', '.join(lost)} of server {name!r} is gone from {place}. Restore the file, or rebuild the "
                       "server.", files=lost)
    document.state.setdefault(ADOPTED, {"owner": record["owner"], "host": record["host"]})
    take_disk_facts(document, record)
    task.keep()
    _write(place, _record(host, document, owner))


def _record(host: LocalHost, document: Document, owner: str) -> Fields:
    return {"owner": owner, "host": host.name, "server": document.id, **disk_facts(document)}


def _read(folder: Path) -> Any:
    """Return the content of ``owner.json`` (owner and facts of the disks) in the server's *folder*; ``None`` if
    there is none. Raises ``Conflict`` if it cannot be read."""
    path = folder / FILE
    try:
        record = json.loads(path.read_bytes())
        return record if record["owner"] and record["state"] is not None else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Conflict(f"{path}, which says which host may use the disks, cannot be read: {error}. Repair the file, or "
                       "remove it if the server runs nowhere.") from error


def _create(folder: Path, record: Fields) -> Any:
    """Write *record* (owner and facts of the server's disks) into a new file ``owner.json`` in the server's folder
    *folder*, unless another host has written that file before. Return the file's content afterwards."""
    write_once(folder / FILE, json.dumps(record).encode())
    return _read(folder)


def _write(folder: Path, record: Fields) -> None:
    try:
        write_atomically(folder / FILE, json.dumps(record).encode())
    except OSError as error:
        raise Conflict(f"{folder / FILE}, which says which host may use the disks, cannot be written: "
                       f"{error.strerror}. Look at the shared storage, then repeat the call.") from error
