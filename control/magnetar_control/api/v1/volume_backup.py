# SPDX-License-Identifier: GPL-3.0-or-later
"""volume_backup: backups of the project's volumes, and their restore to new or existing volumes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.compute.caller import Caller
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, InvalidField, NotFound
from magnetar_core.kinds import CloudVolumeBackup
from magnetar_core.operations import Operation
from magnetar_core.plan import Result, Step
from magnetar_core.reconcile import assumed_warning, is_uuid_key

from .driver import lock_key
from .volume import SNAPSHOTS, VOLUMES, Stored

#: Statuses of a backup that end without a request.
BUSY = ("creating", "restoring")


class VolumeBackups(Stored):
    """The driver of the v1 API for backups of volumes in the caller's project. It also restores backups."""

    kind = CloudVolumeBackup
    counted = ("backups", "")
    making = (Step("make", "write the backup"),)
    removing = (Step("drop", "remove the backup"),)

    def as_document(self, caller: Caller, row: Mapping[str, Any]) -> Document:
        """Return *row*, a backup of the volume service, in the format of the v1 API."""
        return {**{name: row[name] for name in ("id", "size", "container", "metadata", "has_dependent_backups", "fault",
                                                "created_at", "updated_at", "data_timestamp", "status")},
                "name": row["name"] or "", "description": row["description"] or "", "volume": row["volume_id"],
                "snapshot": row["snapshot_id"], "incremental": row["parent_id"] is not None,
                "parent": row["parent_id"], "stored_chunks": row["object_count"], "restored_volume": None,
                "_status": row["status"]}

    def why(self, caller: Caller, id: str) -> str:
        """Return the reason why the backup *id* has failed; a default text if none is stored."""
        try:
            fault = self.store(caller).show(caller.context, id)["fault"]
        except NotFound:
            fault = None
        return str(fault or "it does not say why; its log does.")

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Return the desired state *want* with the uuids of the volume and the snapshot. Raises ``InvalidField`` for an
        unknown name, and ``NotFound`` for a uuid that does not exist in the project. Uuids that are already in *have*
        are not looked up, because a backup may exist longer than its volume and snapshot."""
        completed = {**want}
        for field, driver in (("volume", VOLUMES), ("snapshot", SNAPSHOTS)):
            key = want.get(field)
            if key and is_uuid_key(key):
                completed[field] = key.lower()
                if not (have and have[field] == key.lower()):
                    driver.one(caller, key)
            elif key:
                rule = f"there is no {driver.kind.noun} {key!r} that you may use"
                resource = driver.referred(caller, key, field, rule)
                completed[field] = resource["id"] if resource else key
        return completed

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        """Check that the volume exists and can be backed up, and that the quota allows the backup. Checks nothing in a
        dry run that assumes that an earlier Ansible task creates the volume or the snapshot."""
        if is_uuid_key(want["volume"]) and is_uuid_key(want["snapshot"] or want["volume"]):
            self.store(caller).check(caller.context, want["volume"], snapshot_id=want["snapshot"],
                                     incremental=want["incremental"], force=want["force"])

    def make(self, caller: Caller, want: Document, operation: Operation) -> str:
        """Create the backup, wait until it is complete, and return its uuid."""
        made = self.store(caller).create(
            caller.context, want["volume"], snapshot_id=want["snapshot"], incremental=want["incremental"],
            force=want["force"], name=want["name"], description=want["description"] or None,
            container=want["container"], metadata=want["metadata"])
        operation.advance(0, None, "chunks", "write the backup")
        return self.made(caller, str(made["id"]), operation)

    def wait_until_usable(self, caller: Caller, have: Document, operation: Operation | None) -> Document:
        """Wait until the backup *have* is neither being created nor being restored, and return it. *operation*:
        ``None`` in a dry run, which does not wait. Raises ``Conflict`` if the backup is in error or is being removed.
        """
        if have["_status"] in BUSY and operation:
            with operation.waiting():
                for status in self._statuses(caller, str(have["id"])):
                    operation.raise_if_cancelled()
                    if status not in BUSY:
                        break
            have = self.one(caller, str(have["id"]))
        return super().wait_until_usable(caller, have, None)

    def ensure(self, caller: Caller, key: str, want: Document | None, permissions: Mapping[str, Any], dry_run: bool,
               operation: Operation) -> Result:
        """Override ``CloudDriver.ensure``: if *want* has the field ``restore``, which names a volume, restore the
        backup to this volume."""
        if want is None or "restore" not in want:
            return super().ensure(caller, key, want, permissions, dry_run, operation)
        restore = self.kind.check(want, partial=True)
        if others := [name for name in restore if name != "restore"]:
            raise InvalidField(others[0], "goes with a new backup, not with restore; leave it out")
        target = str(restore["restore"]["volume"])
        with lock_key(VOLUMES.kind.noun, caller.project, target, operation):
            return self._restore(caller, key, target, bool(restore["restore"].get("force")), dry_run, operation)

    def _restore(self, caller: Caller, key: str, target: str, force: bool, dry_run: bool,
                 operation: Operation) -> Result:
        """Restore the backup *key* to the volume *target* (a uuid, the name of an existing volume, or a name for a new
        one), and return the result. If the volume already has the content of the backup, change nothing, unless *force*
        is true."""
        backup = self.find(caller, key)
        if backup is None:
            if dry_run and not is_uuid_key(key):
                return Result([_restore_step(key, target)], [], None, [assumed_warning(self.kind.noun, key)])
            self.one(caller, key)
            raise NotFound(f"There is no volume_backup {key!r} in this cloud that you may see.")
        backup = self.wait_until_usable(caller, backup, None if dry_run else operation)
        volume = VOLUMES.find(caller, target)
        if volume is None and is_uuid_key(target):
            raise InvalidField("restore.volume", "must be a volume that you may use. To make a new one, give its name",
                               target)
        if volume is not None and volume["_restored_from"] == backup["id"] and not force:
            return Result([], [], {**self.public(backup), "restored_volume": volume["id"]})
        if volume is not None and not force:
            _check_age(backup, volume)
        done = self.store(caller).restore(caller.context, backup["id"], volume and volume["id"], target,
                                          dry_run=dry_run)
        id = volume["id"] if volume else None if dry_run else done["volume_id"]
        if not dry_run:
            operation.advance(0, None, "chunks", "restore the backup")
            self._wait_until_restored(caller, backup, target, operation)
            backup = self.one(caller, str(backup["id"]))
        return Result([_restore_step(backup["name"], target)],
                      [{"path": "restored_volume", "old": None, "new": id or target}],
                      {**self.public(backup), "restored_volume": id})

    def _wait_until_restored(self, caller: Caller, backup: Document, target: str, operation: Operation) -> None:
        """Wait until *backup* is restored to the volume *target*. Raises ``Conflict`` with the reason if the
        restoration fails."""
        id = str(backup["id"])
        with operation.waiting():
            for status in self._statuses(caller, id, f"{backup['name']!r} is still being restored to {target}"):
                if status != "restoring":
                    break
                operation.raise_if_cancelled()
        fault = None if status is None else self.store(caller).show(caller.context, id)["fault"]
        if status != "available" or fault:
            reason = fault or f"it became {status or 'nothing'}."
            raise Conflict(f"The volume_backup {backup['name']!r} was not restored to {target}: {reason}")


def _restore_step(name: str, target: str) -> Step:
    return Step("restore", f"restore volume_backup {name} to volume {target}")


def _check_age(backup: Document, volume: Document) -> None:
    """Raise ``Conflict`` if *volume* was changed after *backup* was taken: a restoration would overwrite the changes.
    """
    changed = str(volume["updated_at"] or volume["created_at"])
    if changed > str(backup["data_timestamp"]):
        raise Conflict(f"Volume {volume['name']!r} was last changed at {changed}, after the content of volume_backup "
                       f"{backup['name']!r} ({backup['data_timestamp']}). A restore would overwrite that. Nothing was "
                       "changed. Restore it to a new volume, or say force.", fields=["force"])
