# SPDX-License-Identifier: GPL-3.0-or-later
"""volume_transfer: offers of volumes to other projects, and their acceptance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.compute.caller import Caller
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField
from magnetar_core.kinds import VolumeTransfer
from magnetar_core.operations import Operation
from magnetar_core.plan import Result, Step
from magnetar_core.reconcile import is_uuid_key

from .driver import CloudDriver
from .volume import VOLUMES, Stored


class VolumeTransfers(Stored):
    """The driver of the v1 API for open volume transfers of the caller's project. A transfer is created, accepted or
    withdrawn, never changed."""

    kind = VolumeTransfer
    counted = ("transfers", "")
    making: tuple[Step, ...] = ()
    removing: tuple[Step, ...] = ()

    def __init__(self) -> None:
        #: The uuid and the key of the transfer that this driver has created last.
        self._created = ("", "")

    def as_document(self, caller: Caller, row: Mapping[str, Any]) -> Document:
        """Return *row*, a transfer of the volume service, in the format of the v1 API. ``auth_key`` is ``None``, except
        for the transfer that this driver object has created."""
        return {"id": row["id"], "name": row["name"] or "", "volume": row["volume_id"],
                "no_snapshots": row["no_snapshots"], "created_at": row["created_at"],
                "auth_key": self._created[1] if row["id"] == self._created[0] else None}

    def ensure(self, caller: Caller, key: str, want: Document | None, permissions: Mapping[str, Any], dry_run: bool,
               operation: Operation) -> Result:
        """Override ``CloudDriver.ensure``: accept the transfer if *want* has the field ``accept``, which contains the
        transfer's auth_key. Otherwise use a new driver object for the request, because the driver object stores the
        auth_key of a new transfer, and no other request may read this key."""
        operation.private = True
        if want is not None and "accept" in want:
            return self._accept(caller, key, self.kind.check(want, partial=True), dry_run)
        return CloudDriver.ensure(VolumeTransfers(), caller, key, want, permissions, dry_run, operation)

    def wait_until_usable(self, caller: Caller, have: Document, operation: Operation | None) -> Document:
        """Override ``Stored.wait_until_usable``: return *have* immediately, because a transfer is created in one
        transaction."""
        return have

    def complete(self, caller: Caller, want: Document, have: Document | None) -> Document:
        """Return the desired state *want* with the uuid of the volume. Raises ``InvalidField`` for an unknown name, and
        ``NotFound`` for a uuid of another project's volume."""
        key = str(want["volume"])
        rule = f"there is no volume {key!r} that you may use"
        volume = VOLUMES.one(caller, key) if is_uuid_key(key) else VOLUMES.referred(caller, key, "volume", rule)
        return {**want, "volume": volume["id"] if volume else key}

    def check_make(self, caller: Caller, want: Document, have: Document | None) -> None:
        """Check that the volume can be offered to other projects. *have*: the transfer that *want* replaces. If *have*
        offers the same volume as *want*, check nothing, because the volume has passed the check before."""
        if is_uuid_key(want["volume"]) and not (have and have["volume"] == want["volume"]):
            self.store(caller).check(caller.context, want["volume"], no_snapshots=want["no_snapshots"])

    def make(self, caller: Caller, want: Document, operation: Operation) -> str:
        made = self.store(caller).create(caller.context, want["volume"], want["name"],
                                         no_snapshots=want["no_snapshots"], encrypted=True)
        self._created = str(made["id"]), str(made["auth_key"])
        return self._created[0]

    def remove(self, caller: Caller, have: Document, operation: Operation) -> None:
        """Withdraw the transfer. After that, the project can use the volume again."""
        self.store(caller).delete(caller.context, have["id"])

    def _accept(self, caller: Caller, key: str, want: Document, dry_run: bool) -> Result:
        """Accept the transfer *key* (a uuid), so that the caller's project gets the volume, and return the result. If
        the volume that *want* names already belongs to the project, change nothing. Raises ``InvalidField``, and the
        errors of the volume service.
        """
        if not is_uuid_key(key):
            raise InvalidField("id", "is required to accept a transfer: its uuid, from the project that offers it", key)
        volume = self._own_volume(caller, want["volume"]) if want.get("volume") is not None else None
        if volume is not None:
            return Result([], [], {**_nothing(), "id": key.lower(), "volume": volume["id"]})
        row = self.store(caller).accept(caller.context, key.lower(), want["accept"], dry_run=dry_run)
        return Result([Step("accept", f"accept volume transfer {key.lower()}")],
                      [{"path": "accepted", "old": False, "new": True}], self.as_document(caller, row))

    def _own_volume(self, caller: Caller, id: str) -> Document | None:
        """Return the volume *id* if it belongs to the caller's project and no transfer offers it; otherwise ``None``.
        Raises ``InvalidField`` if *id* is not a uuid."""
        if not is_uuid_key(id):
            raise InvalidField("volume", "must be a uuid when a transfer is accepted, since a volume of the project "
                               "may have the same name", id)
        row: Document | None = caller.cloud.services.volume.show(caller.context, id.lower())
        owned = row is not None and row["project_id"] == caller.project and row["status"] != "awaiting-transfer"
        return row if owned else None


def _nothing() -> Document:
    return {field.name: None for field in VolumeTransfer.fields if "show" in field.on}
