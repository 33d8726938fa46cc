# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type volume_backup: backups of volumes in the target of the host's backups.

Once the backup is complete, ``document.state`` holds ``made`` and facts of the backup's catalogue (its file
``backup.json``). ``begun`` is set before anything is written: without it, files of that name belong to another owner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from magnetar_agent.reconcile.task import NotRemovable
from magnetar_agent.volumes import (
    backup_files,
    backups,
    cinder_status,
    is_content_complete,
    keys,
    round_up_gib,
)
from magnetar_agent.volumes.backup_target import BackupTarget, target_identity
from magnetar_core.errors import Conflict, InvalidField, MagnetarError
from magnetar_core.fields import SHOW
from magnetar_core.kinds import VolumeBackup
from magnetar_core.plan import Step
from magnetar_core.reconcile import refuse_missing

from .document import DocumentDriver

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task, Verb

#: Fields that name the source of a backup, with the kind of the source. A snapshot has priority.
SOURCES = {"snapshot": "volume_snapshot", "volume": "volume"}


class BackupDriver(DocumentDriver):
    """The resource driver of volume backups. The files of a backup are named by its uuid."""

    def __init__(self) -> None:
        super().__init__(VolumeBackup)
        self.verbs: Mapping[str, Verb] = {"make": _make, "drop": _drop}

    def complete(self, host: LocalHost, want: Fields, document: Document | None) -> Fields:
        """Return the requested fields *want* with the uuids of volume and snapshot. *document*: the stored backup;
        ``None`` for a new one. Raises ``InvalidField`` for a source or parent that cannot be used, and ``Conflict`` if
        the host has no backup target."""
        completed = dict(want)
        if document is not None and is_content_complete(document):
            return {**completed, **{name: document.want[name] for name in SOURCES}}
        target = backups.usable_target(host)
        if completed["volume"] is None and completed["snapshot"] is None:
            _check_adoptable(target, str(completed.get("id") or (document.id if document else "")))
            return completed
        for field in SOURCES:
            if completed[field] is not None:
                completed[field] = _source_id(host, field, completed[field], document)
        _check_volume_of_snapshot(host, completed)
        if completed["parent"] is not None:
            try:
                backup_files.read_chain(target.storage, completed["parent"])
            except Conflict as error:
                raise InvalidField("parent", f"must be a complete backup that this host reaches. "
                                             f"{error.message.rstrip('.')}", completed["parent"]) from None
        return completed

    def snapshot(self, host: LocalHost, document: Document | None = None) -> Any:
        """Return true if the caller observes all backups, and false if it observes only *document*. If true,
        ``observe`` does not ask an object store about each backup, but assumes that complete backups are there."""
        return document is None

    def observe(self, host: LocalHost, document: Document, snapshot: Any = None) -> Fields | None:
        """Return the backup's stored fields, and whether its content is complete (``made``) and in the target of the
        host's backups (``there``). *snapshot*: whether all backups are read."""
        facts: Fields = {**document.want, "made": is_content_complete(document), "there": False}
        try:
            storage = backups.usable_target(host).storage
            facts["there"] = facts["made"] and ((snapshot and storage.costly) or storage.has_backup(document.id))
        except MagnetarError as error:
            facts["why"] = f" ({error.message.rstrip('.')})"
        return facts

    def plan(self, want: Fields | None, have: Fields | None) -> Iterator[Step]:
        """Yield the steps that write or remove the backup. Raises ``Conflict`` if the files of a complete backup are
        missing."""
        if want is None:
            yield Step("drop", "remove the backup")
        elif not have or not have["made"]:
            yield Step("make", "write the backup")
        elif not have["there"]:
            raise Conflict(f"The files of backup {want['name']!r} are gone from the backup target"
                           f"{have.get('why') or ''}. Restore them, or delete this backup.")

    def show(self, host: LocalHost, document: Document, have: Fields | None, snapshot: Any = None) -> Fields:
        """Return the backup's fields as API responses show them, with a status as in Cinder."""
        state = document.state
        values = {**document.want, **state, "id": document.id, "name": document.name,
                  "size": round_up_gib(state.get("bytes", 0)), "status": cinder_status(document, have, False),
                  "encrypted": bool(state.get("encrypted")),
                  "host": host.name, "created_at": document.created_at, "updated_at": document.updated_at}
        return {f.name: values.get(f.name) for f in self.kind.fields if SHOW in f.on}

    def sweep(self, host: LocalHost) -> None:
        """Remove temporary files that no backup or restore needs."""
        backups.remove_temporary_files(host)


def _check_adoptable(target: BackupTarget, id: str) -> None:
    """Raise ``InvalidField`` unless *target* has the backup *id* and all backups that it depends on (an incremental
    backup depends on its parents)."""
    try:
        backup_files.read_chain(target.storage, id)
    except Conflict as error:
        raise InvalidField("volume", "or snapshot is required for a backup that does not exist yet. "
                                     f"{error.message.rstrip('.')}") from None


def _source_id(host: LocalHost, field: str, key: str, document: Document | None) -> str:
    """Return the uuid of the volume or snapshot *key* (name or uuid) to be backed up. *field*: ``volume`` or
    ``snapshot``. *document*: the stored backup; ``None`` for a new one. Raises ``InvalidField`` if it cannot be backed
    up."""
    old = document.want.get(field) if document else None
    if old and key in (old, document.state.get("source_name") if document else None):
        return str(old)
    kind = SOURCES[field]
    source = host.documents.standing(kind, key)
    if source is None:
        refuse_missing(InvalidField(field, f"must name a {kind.replace('_', ' ')} of this host", key), kind, key)
        return key
    if not is_content_complete(source):
        raise InvalidField(field, "must be complete, and this one is still being made", key)
    return source.id


def _check_volume_of_snapshot(host: LocalHost, completed: Fields) -> None:
    """Raise ``InvalidField`` if the requested backup has both a volume and a snapshot, but the snapshot is not of this
    volume. *completed*: the fields of the backup."""
    snapshot = host.documents.get("volume_snapshot", completed["snapshot"]) if completed["snapshot"] else None
    if snapshot and completed["volume"] and snapshot.want["volume"] != completed["volume"]:
        raise InvalidField("snapshot", "must be a snapshot of the volume", completed["snapshot"])


def _make(task: Task) -> None:
    """Write the backup's files from its volume or snapshot. If it has neither, use the files with its uuid that are in
    the backup target already."""
    host, document = task.host, task.document
    target, want, state = backups.usable_target(host), document.want, document.state
    field = next((name for name in SOURCES if want[name] is not None), None)
    if field is None:
        catalogue = backup_files.read_catalogue(target.storage, document.id)
    else:
        source = host.documents.get(SOURCES[field], want[field])
        if source is None:
            raise Conflict(f"The {SOURCES[field].replace('_', ' ')} was removed before its backup was made.")
        if "begun" not in state and target.storage.has_files(document.id):
            raise Conflict(f"There is a backup {document.id} already in {target.storage}. Choose another id, or leave "
                           "it out.", uuids=[document.id])
        state.update(begun=True, source_name=source.name, **{name: source.state[name] for name in (keys.SEALED,)
                                                             if name in source.state})
        task.keep()
        catalogue = backups.make_backup(task, source)
    state.pop("begun", None)
    state.update(made=True, bytes=catalogue.size, stored_bytes=catalogue.stored_bytes,
                 stored_chunks=catalogue.stored_chunks, checksum=catalogue.checksum,
                 encrypted=bool(catalogue.key_hash),
                 target=target_identity(host, target))
    task.keep()


def _drop(task: Task) -> None:
    """Remove the backup's files. Do nothing if none were written. Raises ``NotRemovable`` while incremental backups
    depend on this backup. This check is not in ``release``, because the backups may be on a network file system
    that hangs."""
    document = task.document
    if not {"made", "begun"} & document.state.keys():
        return
    storage = backups.usable_target(task.host).storage
    if users := backup_files.dependent_backups(storage, document.id):
        raise NotRemovable(f"Backup {document.name!r} is the parent of {', '.join(users)}. Delete these first.",
                           users=users)
    backup_files.remove_backup(storage, document.id)
