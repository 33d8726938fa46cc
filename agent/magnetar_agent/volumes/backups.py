# SPDX-License-Identifier: GPL-3.0-or-later
"""Backups of volumes in the backup directory (setting ``backup_directory``), and restores of them.

The agent first copies the disk, as for a volume, to a temporary raw file below ``<state_dir>/backups``; from that it
writes the chunks (``backup_files``). A restore goes the other way, and fills the volume from the temporary file.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar_agent.host.file_modes import make_state_folder
from magnetar_agent.host.storage import Disk
from magnetar_core.errors import Conflict, InvalidField
from magnetar_core.operations import utc_timestamp

from . import backup_files, copying, keys, pool_reports
from .backup_target import BackupTarget, find_backup_target, target_identity
from .pools import FolderPool, Pool

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document
    from magnetar_agent.reconcile.task import Task

    from .backup_files import BackupCatalogue

#: Seconds without an answer after which the backup directory counts as hanging, so that no call waits for it.
HANGING = 5.0


def usable_target(host: LocalHost) -> BackupTarget:
    """Return the host's backup directory, ready for use. Raises ``Conflict`` if there is none now."""
    target = find_backup_target(host)
    if target is not None and (seconds := pool_reports.seconds_of_silence(host, target)) > HANGING:
        raise Conflict(f"The backup directory {target.folder} has not answered for {seconds:.0f} s. Look at its file "
                       "system, then repeat the call.")
    if target is None:
        raise Conflict(f"Host {host.name} has no backup directory. Set backup_directory in its agent's settings, then "
                       "repeat the call.")
    target.prepare()
    return target


def backup_catalogue(host: LocalHost, id: str) -> BackupCatalogue:
    """Return the catalogue of the backup *id*. Raises ``Conflict`` if one of the backups that it is based on is
    missing."""
    return backup_files.read_chain(usable_target(host).folder, id)[0]


def _scratch(host: LocalHost) -> FolderPool:
    """Return the folder of the temporary raw files, as a pool."""
    return FolderPool("temporary files of backups", host.settings.state_dir / "backups", host.hypervisor, False)


def make_backup(task: Task, source: Document) -> BackupCatalogue:
    """Write the backup of the task from *source*, a volume or snapshot, and return its catalogue. A backup that an
    interrupted attempt has completed is kept."""
    host, document = task.host, task.document
    target, scratch, want = usable_target(host), _scratch(host), document.want
    if backup_files.has_backup(target.folder, document.id):
        return backup_files.read_catalogue(target.folder, document.id)
    size = source.state["bytes"]
    copy = copying.from_snapshot if source.kind == "volume_snapshot" else copying.from_volume
    try:
        scratch.remove(document.id)  # of an interrupted attempt
        copy(task, scratch, size, "raw", source.id)
        volume = source.id if source.kind == "volume" else source.want["volume"]
        catalogue = backup_files.BackupCatalogue(
            document.id, want["parent"], volume, document.name, size, target_identity(host, target), utc_timestamp(),
            bool(source.state.get("bootable")), record=want["record"] or {})
        return backup_files.write_backup(target.folder, catalogue, scratch.folder / document.id,
                                         task.operation.advance)
    finally:
        scratch.remove(document.id)


def _temporary_disk(task: Task, backup: str) -> Path:
    """Return the path of the temporary raw file into which the *backup* (uuid) is assembled for the task's volume. If
    the file exists, it is complete."""
    return _scratch(task.host).folder / f"{task.document.id}.{backup}"


def prepare_restore(task: Task) -> None:
    """If the task's volume must be restored from a backup, assemble the backup as a temporary raw file. So an
    incomplete or damaged backup is refused before the volume's content is changed."""
    backup = (task.document.want.get("reimage") or {}).get("backup")
    if backup:
        _assemble(task, backup)


def _assemble(task: Task, backup: str) -> Path:
    path = _temporary_disk(task, backup)
    make_state_folder(path.parent)
    catalogue = backup_files.assemble_backup(usable_target(task.host).folder, backup, path, task.operation.advance)
    task.document.state["bootable"] = catalogue.bootable
    task.host.hypervisor.permit([path])
    return path


def from_backup(task: Task, pool: Pool, size: int, format: str, backup: str) -> None:
    """Create the content of the task's volume in *pool* from the backup with this uuid."""
    path = _temporary_disk(task, backup)
    try:
        if not path.exists():
            _assemble(task, backup)
        pool.fill(task.document.id, format, size, Disk(path, "", "raw"), task.operation.advance,
                  keys.document_key(task.host, task.document))
    finally:
        path.unlink(missing_ok=True)


def restored_bytes(host: LocalHost, backup: str) -> int:
    """Return the bytes that a volume needs to be restored from the backup. Raises ``InvalidField`` if the backup cannot
    be restored here."""
    try:
        return backup_catalogue(host, backup).size
    except Conflict as error:
        raise InvalidField("reimage.backup", f"cannot be restored. {error.message.rstrip('.')}", backup) from None


def remove_temporary_files(host: LocalHost) -> None:
    """Remove the temporary files that no unfinished backup or restore needs."""
    folder = _scratch(host).folder
    if not folder.is_dir():
        return
    unfinished = {document.id for document in host.documents.list("volume_backup") if not document.state.get("made")}
    unfinished |= {document.id for document in host.documents.list("volume")
                   if document.want.get("reimage") != document.state.get("reimaged")}
    for path in folder.iterdir():
        if path.name.partition(".")[0] not in unfinished:
            with suppress(OSError):
                path.unlink(missing_ok=True)
