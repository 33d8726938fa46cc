# SPDX-License-Identifier: GPL-3.0-or-later
"""Attachments of volumes to servers. An attachment is first reserved or attaching, then attached, and its row is
deleted when the volume is detached."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Sequence

from sqlalchemy import Connection, RowMapping, delete, insert, select, update

from magnetar_control.services import Context
from magnetar_control.store.engine.database import Database, utc_now
from magnetar_core.document import Document, Documents
from magnetar_core.errors import Conflict, NotFound

from .rows import Reading, check_volume_writer, get_visible_row, refuse_while_migrating, set_columns, wrong_status
from .tables import attachments, volumes
from .volumes import attachments_of, follow_attachments

#: Returns whether a server (uuid) uses an attachment (uuid), according to the Compute API.
Used = Callable[[str, str], bool]


#: Maximum number of attachments of one volume.
MOST = 256


def id_of_new(server_id: str, volume_id: str) -> str:
    """Return the uuid for the attachment of a volume to a new server. The uuid is derived from the ids of volume and
    server, so that the API and a conductor calculate the same uuid."""
    return str(uuid.uuid5(uuid.UUID(server_id), f"attachment {volume_id}"))


def reserve_attachment(connection: Connection, context: Context, volume_id: str, server_id: str | None,
                       id: str | None = None, mode: str = "rw", connector: Document | None = None) -> RowMapping:
    """Reserve a volume for the server *server_id* (``None``: not known yet), and return the row of the attachment.
    *id*: the uuid for the attachment; if the attachment exists already, it is returned unchanged. *mode*: rw or ro.
    *connector*: describes the host that will attach the volume; ``None`` if not known. Several servers can have the
    volume only if it is multiattach, but one server can reserve it repeatedly (for a live migration). Raises
    ``InvalidRequest``, ``NotFound``, ``Conflict``."""
    lock_volume(connection, volume_id)
    row = get_visible_row(connection, volumes, context, volume_id)
    existing = connection.execute(select(attachments).where(attachments.c.volume_id == volume_id)).mappings().all()
    again = next((attachment for attachment in existing if attachment["id"] == id), None)
    if again is not None:
        return again
    refuse_while_migrating(row)
    same = bool(existing) and all(attachment["server_id"] == server_id and server_id for attachment in existing)
    if existing and not (row["multiattach"] or same):
        raise wrong_status(volumes, row, ("available",))
    if row["status"] not in ("available", *(("in-use", "reserved", "attaching") if existing else ())):
        raise wrong_status(volumes, row, ("available", "in-use") if row["multiattach"] else ("available",))
    if len(existing) >= MOST:
        raise Conflict(f"Volume {volume_id} has {MOST} attachments, and may have no more. Delete some first.")
    id = id or str(uuid.uuid4())
    connection.execute(insert(attachments).values(
        id=id, volume_id=volume_id, project_id=row["project_id"], server_id=server_id, created_at=utc_now(),
        mode="ro" if row["readonly"] else mode, **_connected(connector)))
    follow_attachments(connection, volume_id)
    return get_visible_row(connection, attachments, context, id)


def lock_volume(connection: Connection, volume_id: str) -> None:
    """Lock the volume until the transaction ends, so that concurrent changes of its attachments wait."""
    connection.execute(update(volumes).where(volumes.c.id == volume_id).values(updated_at=volumes.c.updated_at))


def _connected(connector: Document | None) -> Document:
    """Return the columns status, host, connector and device of an attachment with this *connector* (the description of
    the host that will attach the volume; ``None``: the attachment is only reserved)."""
    if not connector:
        return {"status": "reserved"}
    return {"status": "attaching", "host": connector.get("host"), "connector": connector,
            "device": connector.get("mountpoint")}


def _locked(connection: Connection, id: str) -> RowMapping:
    """Return the row of the attachment *id*, after locking its volume. Raises ``NotFound`` if the attachment was
    deleted."""
    volume_id = connection.execute(select(attachments.c.volume_id).where(attachments.c.id == id)).scalar()
    if volume_id is not None:
        lock_volume(connection, volume_id)
    row = connection.execute(select(attachments).where(attachments.c.id == id)).mappings().first()
    if row is None:
        raise NotFound(f"Volume attachment {id} could not be found.")
    return row


def connect_attachment(connection: Connection, id: str, connector: Document) -> None:
    """Save in the attachment *id* which host is about to attach the volume. *connector*: describes this host. Raises
    ``NotFound`` if the attachment was deleted."""
    row, values = _locked(connection, id), _connected(connector)
    if row["status"] == "attached":
        values.pop("status")
    set_columns(connection, attachments, id, **values)
    follow_attachments(connection, row["volume_id"])


def complete_attachment(connection: Connection, id: str, host: str | None = None, device: str | None = None) -> None:
    """Set the status of the attachment *id* to attached. *host*, *device*: also set these columns; ``None``: do not
    change them. Raises ``NotFound`` if the attachment was deleted."""
    row = _locked(connection, id)
    set_columns(connection, attachments, id, status="attached", attached_at=row["attached_at"] or utc_now(),
                host=host or row["host"], device=device or row["device"])
    follow_attachments(connection, row["volume_id"])


def begin_attachment_detaching(connection: Connection, id: str) -> None:
    """Set the status of the attachment *id* to ``detaching``. Do nothing if it does not exist."""
    with contextlib.suppress(NotFound):
        row = _locked(connection, id)
        set_columns(connection, attachments, id, status="detaching")
        follow_attachments(connection, row["volume_id"])


def roll_attachment_detaching(connection: Connection, id: str) -> None:
    """Set the status of the attachment *id* from ``detaching`` back to ``attached``, or to ``reserved`` if
    ``attached_at`` is not set. Do nothing in another status, or if the attachment does not exist."""
    with contextlib.suppress(NotFound):
        row = _locked(connection, id)
        if row["status"] == "detaching":
            set_columns(connection, attachments, id, status="attached" if row["attached_at"] else "reserved")
            follow_attachments(connection, row["volume_id"])


def disconnect_attachment(connection: Connection, id: str) -> None:
    """Set the status of the attachment *id* back to ``reserved``, and clear its host. Do nothing if it does not exist.
    """
    with contextlib.suppress(NotFound):
        row = _locked(connection, id)
        set_columns(connection, attachments, id, status="reserved", host=None, connector=None, attached_at=None)
        follow_attachments(connection, row["volume_id"])


def remove_attachment(connection: Connection, id: str) -> None:
    """Delete the attachment *id*, and update the status of its volume. Do nothing if it does not exist."""
    with contextlib.suppress(NotFound):
        row = _locked(connection, id)
        connection.execute(delete(attachments).where(attachments.c.id == id))
        follow_attachments(connection, row["volume_id"])


def documents(connection: Connection, rows: Sequence[RowMapping]) -> Documents:
    """Convert attachment *rows* to documents for callers, with ``volume_host``: the host of the volume."""
    hosts = {row.id: row.host for row in connection.execute(select(volumes.c.id, volumes.c.host).where(
        volumes.c.id.in_([row["volume_id"] for row in rows])))}
    return [{**row, "volume_host": hosts.get(row["volume_id"])} for row in rows]


def check_free(context: Context, used: Used, rows: Iterable[RowMapping]) -> None:
    """Raise ``Conflict`` if a server still uses one of the attachments *rows*, because this server's host would keep
    its access to the volume after another server gets the volume (CVE-2023-2088). *used*: a function that returns
    whether a server uses an attachment. Requests of services, such as Nova, are not checked."""
    for row in () if context.is_service else rows:
        if row["server_id"] and used(row["server_id"], row["id"]):
            raise Conflict(f"Detach volume from instance {row['server_id']} using the Compute API")


class AttachmentStore(Reading):
    """The operations on attachments of volumes. *used*: a function that returns whether a server uses an attachment."""

    table, documents = attachments, staticmethod(documents)

    def __init__(self, database: Database, used: Used) -> None:
        super().__init__(database)
        self.used = used

    def create(self, context: Context, volume_id: str, server_id: str | None, mode: str,
               connector: Document | None) -> str:
        """Reserve a volume for a server, and return the id of the attachment. See ``reserve_attachment`` for the
        parameters."""
        check_volume_writer(context)
        with self.database.write() as connection:
            return str(reserve_attachment(connection, context, volume_id, server_id, None, mode, connector)["id"])

    def update(self, context: Context, id: str, connector: Document) -> None:
        check_volume_writer(context)
        with self.database.write() as connection:
            connect_attachment(connection, get_visible_row(connection, attachments, context, id)["id"], connector)

    def complete(self, context: Context, id: str) -> None:
        check_volume_writer(context)
        with self.database.write() as connection:
            complete_attachment(connection, get_visible_row(connection, attachments, context, id)["id"])

    def delete(self, context: Context, id: str) -> Documents:
        """Delete the attachment *id*. Return the remaining attachments of its volume. Raises ``NotFound``,
        ``Conflict``."""
        check_volume_writer(context)
        with self.database.read() as connection:
            check_free(context, self.used, [get_visible_row(connection, attachments, context, id)])
        with self.database.write() as connection:
            volume_id = get_visible_row(connection, attachments, context, id)["volume_id"]
            remove_attachment(connection, id)
            return [{**attachment} for attachment in attachments_of(connection, [volume_id])[volume_id]]
