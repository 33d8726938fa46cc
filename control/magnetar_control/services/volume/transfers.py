# SPDX-License-Identifier: GPL-3.0-or-later
"""Transfers: offers of volumes to other projects. A transfer is open until a project accepts it with the transfer's
key, or a user deletes it. Then its row is deleted."""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import uuid
from collections.abc import Sequence
from contextlib import suppress

from sqlalchemy import Connection, RowMapping, delete, insert, select, update

from magnetar_control.services import Context
from magnetar_control.services.quotas import Quotas
from magnetar_control.store.engine.database import Database, utc_now
from magnetar_core.document import Document, Documents
from magnetar_core.errors import InvalidRequest, NotFound

from .attachments import lock_volume
from .rows import (
    DryRunEnd,
    Reading,
    check_volume_writer,
    get_visible_row,
    refuse_while_migrating,
    set_columns,
    wrong_status,
)
from .tables import attachments, snapshots, transfers, volumes

log = logging.getLogger(__name__)
#: Status of a volume with an open transfer.
AWAITING = "awaiting-transfer"
#: Random bytes of a key, which is shown in hexadecimal digits, and of its salt.
KEY_BYTES, SALT_BYTES = 16, 16
#: Columns in the documents of transfers.
SHOWN = ("id", "volume_id", "name", "no_snapshots", "project_id", "created_at")


def hash_auth_key(auth_key: str, salt: str) -> str:
    """Return the hash of a transfer's key with *salt*, as the table stores it. A fast hash is enough, because the key
    is random and long."""
    return hmac.digest(bytes.fromhex(salt), auth_key.encode(), hashlib.sha256).hex()


def transfer_documents(_connection: Connection, rows: Sequence[RowMapping]) -> Documents:
    """Convert transfer *rows* to documents for callers, without the hash of the key."""
    return [{name: row[name] for name in SHOWN} for row in rows]


def own_snapshots(connection: Connection, volume: RowMapping) -> Sequence[RowMapping]:
    """Return the snapshots of *volume* that belong to the volume's project. The volume can have other snapshots, too: a
    project that transfers a volume without its snapshots keeps the snapshots."""
    return connection.execute(select(snapshots).where(
        snapshots.c.volume_id == volume["id"], snapshots.c.project_id == volume["project_id"])).mappings().all()


def check_snapshots_available(rows: Sequence[RowMapping]) -> None:
    """Raise ``InvalidRequest`` unless all snapshots *rows*, which will be transferred with their volume, are available.
    """
    if busy := next((row for row in rows if row["status"] != "available"), None):
        raise wrong_status(snapshots, busy, ("available",))


def _check_transferable(connection: Connection, volume: RowMapping, no_snapshots: bool, encrypted: bool) -> None:
    """Raise ``InvalidRequest`` unless *volume* can be offered in a transfer: it must be available, not attached and not
    migrating. *encrypted*: allow an encrypted volume. *no_snapshots*: do not transfer the volume's snapshots; not
    allowed for an encrypted volume. Without *no_snapshots*, the snapshots must be available."""
    used = connection.execute(select(attachments.c.id).where(attachments.c.volume_id == volume["id"]).limit(1)).first()
    if volume["status"] != "available" or used:
        raise wrong_status(volumes, volume, ("available",))
    refuse_while_migrating(volume)
    if volume["encryption_key_id"] and not encrypted:
        raise InvalidRequest("Invalid volume: transferring encrypted volume is not supported before microversion 3.70 "
                             "of volume-transfers.")
    if volume["encryption_key_id"] and no_snapshots:
        raise InvalidRequest("Invalid volume: transferring an encrypted volume without its snapshots is not supported, "
                             "because they have the same key.")
    if not no_snapshots:
        check_snapshots_available(own_snapshots(connection, volume))


class TransferStore(Reading):
    """The operations on transfers of volumes between projects. *quota*: the volume quotas, which the accepting project
    must not exceed."""

    table, documents = transfers, staticmethod(transfer_documents)

    def __init__(self, database: Database, quota: Quotas) -> None:
        super().__init__(database)
        self.quota = quota

    def create(self, context: Context, volume_id: str, name: str | None = None, *, no_snapshots: bool = False,
               encrypted: bool = False) -> Document:
        """Offer an available volume to other projects, and return the transfer. Only this call returns the
        ``auth_key``, which another project needs to accept. *no_snapshots*: do not transfer the snapshots of the
        volume. *encrypted*: allow an encrypted volume. Raises ``NotFound``, ``InvalidRequest``."""
        check_volume_writer(context)
        id, auth_key, salt = str(uuid.uuid4()), secrets.token_hex(KEY_BYTES), secrets.token_hex(SALT_BYTES)
        with self.database.write() as connection:
            lock_volume(connection, volume_id)
            volume = get_visible_row(connection, volumes, context, volume_id)
            _check_transferable(connection, volume, no_snapshots, encrypted)
            # A transfer that was open when an administrator reset the volume's status. Nobody can accept it.
            connection.execute(delete(transfers).where(transfers.c.volume_id == volume_id))
            connection.execute(insert(transfers).values(
                id=id, volume_id=volume_id, project_id=volume["project_id"], name=name, no_snapshots=no_snapshots,
                salt=salt, key_hash=hash_auth_key(auth_key, salt), created_at=utc_now()))
            set_columns(connection, volumes, volume_id, status=AWAITING)
            transfer = get_visible_row(connection, transfers, context, id)
            return {**transfer_documents(connection, [transfer])[0], "auth_key": auth_key}

    def check(self, context: Context, volume_id: str, *, no_snapshots: bool = False) -> None:
        """Raise the errors that ``create`` would raise for this volume, without changing anything. Encrypted volumes
        are allowed. *no_snapshots*: as in ``create``."""
        check_volume_writer(context)
        with self.database.read() as connection:
            volume = get_visible_row(connection, volumes, context, volume_id)
            _check_transferable(connection, volume, no_snapshots, encrypted=True)

    def accept(self, context: Context, id: str, auth_key: str, *, dry_run: bool = False) -> Document:
        """Move the volume of the transfer *id*, and its snapshots unless the transfer excludes them, into the caller's
        project. Return the transfer. *auth_key*: the key from ``create``. *dry_run*: only raise the errors. Raises
        ``NotFound``, ``InvalidRequest`` for a wrong key or a busy volume or snapshot, ``TooLarge`` beyond the project's
        quota."""
        check_volume_writer(context)
        with suppress(DryRunEnd), self.database.write() as connection:
            transfer = connection.execute(select(transfers).where(transfers.c.id == id)).mappings().first()
            if transfer is None:
                raise NotFound(f"Transfer {id} could not be found.")
            if not hmac.compare_digest(hash_auth_key(auth_key, transfer["salt"]), transfer["key_hash"]):
                raise InvalidRequest(f"Invalid auth key: Attempt to transfer {id} with invalid auth key. The answer to "
                                     "the creation of the transfer has it.")
            self._end(connection, transfer)
            volume = connection.execute(select(volumes).where(
                volumes.c.id == transfer["volume_id"])).mappings().one()
            if volume["status"] != AWAITING:
                raise wrong_status(volumes, volume, (AWAITING,))
            self._move(connection, context, volume, transfer["no_snapshots"])
            document = transfer_documents(connection, [transfer])[0]
            if dry_run:
                raise DryRunEnd
        if not dry_run:
            log.info("volume %s moved from project %s to project %s by transfer %s", volume["id"],
                     volume["project_id"], context.project_id, id)
        return document

    def _move(self, connection: Connection, context: Context, volume: RowMapping, no_snapshots: bool) -> None:
        """Move *volume* into the caller's project. *no_snapshots*: do not move its snapshots with it. Raises the
        quota's error if the project's quota is exceeded."""
        moved = [] if no_snapshots else own_snapshots(connection, volume)
        check_snapshots_available(moved)
        target = context.project_id or ""
        if target != volume["project_id"]:
            self.quota.within(connection, target, per_volume_gigabytes=volume["size"], volumes=1, snapshots=len(moved),
                              gigabytes=volume["size"] + sum(row["size"] for row in moved))
        owner = {"project_id": target, "user_id": context.user_id, "updated_at": utc_now()}
        of_volume = (snapshots.c.volume_id == volume["id"], snapshots.c.project_id == volume["project_id"])
        if no_snapshots:
            # The former project no longer sees the volume's image metadata, which its new owner may change.
            connection.execute(update(snapshots).where(*of_volume).values(image_metadata=volume["image_metadata"]))
        else:
            connection.execute(update(snapshots).where(*of_volume).values(owner))
        connection.execute(update(volumes).where(volumes.c.id == volume["id"]).values(status="available", **owner))

    def delete(self, context: Context, id: str) -> None:
        """Cancel the transfer *id*, and make its volume available again. Raises ``NotFound``."""
        check_volume_writer(context)
        with self.database.write() as connection:
            transfer = get_visible_row(connection, transfers, context, id)
            self._end(connection, transfer)
            connection.execute(update(volumes).where(
                volumes.c.id == transfer["volume_id"], volumes.c.status == AWAITING).values(
                    status="available", updated_at=utc_now()))

    def _end(self, connection: Connection, transfer: RowMapping) -> None:
        """Lock the volume of *transfer*, and delete the transfer's row. Raises ``NotFound`` if another caller has just
        accepted or deleted the transfer."""
        lock_volume(connection, transfer["volume_id"])
        if not connection.execute(delete(transfers).where(transfers.c.id == transfer["id"])).rowcount:
            raise NotFound(f"Transfer {transfer['id']} could not be found; it was just accepted or deleted.")
