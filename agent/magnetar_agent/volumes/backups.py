# SPDX-License-Identifier: GPL-3.0-or-later
"""Backups of volumes in the host's backup target (``backup_target``), and restores of them.

The agent first copies the disk, as for a volume, to a temporary raw file below ``<state_dir>/backups``; from that it
writes the chunks (``backup_files``). A restore goes the other way, and fills the volume from the temporary file. The
content of an encrypted volume stays encrypted in all of them, and is restored to a volume with the same key only.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

#: Seconds without an answer after which the target of backups counts as hanging, so that no call waits for it.
HANGING = 5.0


def usable_target(host: LocalHost) -> BackupTarget:
    """Return the target of the host's backups, creating its directory if it is missing. Raises ``Conflict`` if none is
    configured or it cannot be used."""
    target = find_backup_target(host)
    if target is not None and (seconds := pool_reports.seconds_of_silence(host, target)) > HANGING:
        raise Conflict(f"Host {host.name} cannot use its backups, because {target.storage} has not answered for "
                       f"{seconds:.0f} s. Look at its file system or its network, then repeat the call.")
    if target is None:
        raise Conflict(f"Host {host.name} has no backup target. Set backup_directory, backup_pool or "
                       "backup_s3_store_bucket in its agent's settings, then repeat the call.")
    target.prepare()
    return target


def backup_catalogue(host: LocalHost, id: str) -> BackupCatalogue:
    """Return the catalogue (content of ``backup.json``) of the volume backup *id*. Raises ``Conflict`` if it or one of
    its parents is missing."""
    return backup_files.read_chain(usable_target(host).storage, id)[0]


def _scratch(host: LocalHost) -> FolderPool:
    """Return the folder for temporary files of backups and restores, as a storage pool."""
    return FolderPool("temporary files of backups", host.settings.state_dir / "backups", host.hypervisor, False)


def make_backup(task: Task, source: Document) -> BackupCatalogue:
    """Create the *task*'s volume backup from *source*, a volume or snapshot, and return its catalogue (the content of
    its file ``backup.json``). If the backup exists already after an interrupted attempt, it is not created again."""
    host, document = task.host, task.document
    target, scratch, want, key = usable_target(host), _scratch(host), document.want, keys.document_key(host, document)
    if target.storage.has_backup(document.id):
        return backup_files.read_catalogue(target.storage, document.id)
    size = source.state["bytes"]
    copy = copying.from_snapshot if source.kind == "volume_snapshot" else copying.from_volume
    try:
        scratch.remove(document.id)  # of an interrupted attempt
        copy(task, scratch, size, keys.LUKS if key else "raw", source.id)
        volume = source.id if source.kind == "volume" else source.want["volume"]
        catalogue = backup_files.BackupCatalogue(
            document.id, want["parent"], volume, document.name, size, target_identity(host, target), utc_timestamp(),
            bool(source.state.get("bootable")), record=want["record"] or {})
        if key is not None:  # the content stays encrypted
            catalogue = replace(catalogue, content_size=(scratch.folder / document.id).stat().st_size,
                                key_hash=backup_files.hash_key(document.id, key.secret))
        return backup_files.write_backup(target.storage, catalogue, scratch.folder / document.id,
                                         task.operation.advance)
    finally:
        scratch.remove(document.id)


def _temporary_disks(task: Task, backup: str) -> tuple[Path, Path]:
    """Return the paths of the temporary files for restoring *backup* (a uuid) to the *task*'s volume: for plain
    content, and for encrypted content. A file at one of these paths is complete: it gets this name only at the end."""
    path = _scratch(task.host).folder / f"{task.document.id}.{backup}"
    return path, path.with_name(f"{path.name}.{keys.LUKS}")


def prepare_restore(task: Task) -> None:
    """If the *task*'s volume must be restored from a backup, assemble the backup as a temporary file. An incomplete or
    damaged backup is therefore detected before the volume is overwritten."""
    backup = (task.document.want.get("reimage") or {}).get("backup")
    if backup:
        _assemble(task, backup)


def _assemble(task: Task, backup: str) -> Path:
    storage = usable_target(task.host).storage
    raw, encrypted = _temporary_disks(task, backup)
    path = encrypted if backup_files.read_catalogue(storage, backup).key_hash else raw
    make_state_folder(path.parent)
    catalogue = backup_files.assemble_backup(storage, backup, path, task.operation.advance)
    task.document.state["bootable"] = catalogue.bootable
    task.host.hypervisor.permit([path])
    return path


def from_backup(task: Task, pool: Pool, size: int, format: str, backup: str) -> None:
    """Create the content of the *task*'s volume in *pool* from the volume backup *backup* (a uuid). *size*: bytes.
    *format*: the volume's format. Encrypted content is copied without decryption."""
    raw, encrypted = _temporary_disks(task, backup)
    try:
        path = next((path for path in (raw, encrypted) if path.exists()), None) or _assemble(task, backup)
        key = keys.document_key(task.host, task.document)
        if path == encrypted and (format != keys.LUKS or key is None):
            raise Conflict(f"The backup {backup} is encrypted, and the volume is not.")
        pool.fill(task.document.id, format, size, Disk(path, "", "raw", key=key if path == encrypted else None),
                  task.operation.advance, key)
    finally:
        for path in (raw, encrypted):
            path.unlink(missing_ok=True)


def restored_bytes(host: LocalHost, backup: str, desired: Mapping[str, Any],
                   document: Document | None) -> int:
    """Return the size in bytes that the volume *desired* needs for its restore from *backup* (a uuid). *document*: the
    existing volume; ``None`` for a new one. Raises ``InvalidField`` if the backup cannot be restored, or needs another
    encryption key than the volume has."""
    try:
        catalogue = backup_catalogue(host, backup)
    except Conflict as error:
        raise InvalidField("reimage.backup", f"cannot be restored. {error.message.rstrip('.')}", backup) from None
    if not catalogue.key_hash:
        return catalogue.size
    if desired["format"] != keys.LUKS:
        raise InvalidField("reimage.backup", f"is encrypted, so the volume must have the format {keys.LUKS}", backup)
    key = desired.get("key") or local_backup_key(host, backup) if document is None else keys.open_sealed_key(
        host, document, keys.SEALED)
    if key is None or backup_files.hash_key(backup, key) != catalogue.key_hash:
        raise InvalidField("reimage.backup", "is encrypted with another key than the volume has. Restore it to the "
                           "volume that was backed up, or to a new volume with the key of that volume", backup)
    return catalogue.size


def local_backup_key(host: LocalHost, backup: str) -> str | None:
    """Return the encryption key of the volume backup *backup* (a uuid); ``None`` if it is not encrypted or this host
    does not have the key."""
    document = host.documents.get("volume_backup", backup)
    return None if document is None else keys.open_sealed_key(host, document, keys.SEALED)


def remove_temporary_files(host: LocalHost) -> None:
    """Remove temporary files of backups and restores, except those that an unfinished backup or restore still needs."""
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
