# SPDX-License-Identifier: GPL-3.0-or-later
"""Attachments: a volume kept for a server (reserved, attaching), had by it (attached), and let go (the row goes)."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Sequence

import orjson
from sqlalchemy import Connection, RowMapping, delete, insert, select, update

from magnetar_control.services import Context, Document, Documents
from magnetar_control.store.engine.database import Database, now
from magnetar_core.errors import Conflict, NotFound

from .rows import Reading, check_writer, seen, set_, wrong_status
from .tables import attachments, volumes
from .volumes import attachments_of, follow

#: Whether a server (its uuid) has an attachment (its uuid), as the Compute API knows it.
Used = Callable[[str, str], bool]


#: Attachments of one volume.
MOST = 256


def id_of_new(server_id: str, volume_id: str) -> str:
    """Return the attachment's uuid of a volume that a new server names: the same for the API and for conductors."""
    return str(uuid.uuid5(uuid.UUID(server_id), f"attachment {volume_id}"))


def reserve(connection: Connection, context: Context, volume_id: str, server_id: str | None, id: str | None = None,
            mode: str = "rw", connector: Document | None = None) -> RowMapping:
    """Keep the volume for a server. A volume with multiattach may be kept for several; any for the server that has it
    already (a live migration). Raises ``InvalidRequest``."""
    lock(connection, volume_id)
    row = seen(connection, volumes, context, volume_id)
    others = connection.execute(select(attachments).where(attachments.c.volume_id == volume_id)).mappings().all()
    again = next((one for one in others if one["id"] == id), None)
    if again is not None:
        return again
    same = bool(others) and all(one["server_id"] == server_id and server_id for one in others)
    if others and not (row["multiattach"] or same):
        raise wrong_status(volumes, row, ("available",))
    if row["status"] not in ("available", *(("in-use", "reserved", "attaching") if others else ())):
        raise wrong_status(volumes, row, ("available", "in-use") if row["multiattach"] else ("available",))
    if len(others) >= MOST:
        raise Conflict(f"Volume {volume_id} has {MOST} attachments, and may have no more. Delete some first.")
    id = id or str(uuid.uuid4())
    connection.execute(insert(attachments).values(
        id=id, volume_id=volume_id, project_id=row["project_id"], server_id=server_id, created_at=now(),
        mode="ro" if row["readonly"] else mode, **_connected(connector)))
    follow(connection, volume_id)
    return seen(connection, attachments, context, id)


def lock(connection: Connection, volume_id: str) -> None:
    """Others wait for the volume until this transaction ends; what is read from here on is what they have left."""
    connection.execute(update(volumes).where(volumes.c.id == volume_id).values(updated_at=volumes.c.updated_at))


def _connected(connector: Document | None) -> Document:
    """What a connector says: who is about to attach, and as what."""
    if not connector:
        return {"status": "reserved"}
    return {"status": "attaching", "host": connector.get("host"), "connector": orjson.dumps(connector).decode(),
            "device": connector.get("mountpoint")}


def _locked(connection: Connection, id: str) -> RowMapping:
    """The attachment, when its volume is locked. Raises ``NotFound`` where it is gone."""
    volume_id = connection.execute(select(attachments.c.volume_id).where(attachments.c.id == id)).scalar()
    if volume_id is not None:
        lock(connection, volume_id)
    row = connection.execute(select(attachments).where(attachments.c.id == id)).mappings().first()
    if row is None:
        raise NotFound(f"Volume attachment {id} could not be found.")
    return row


def connect(connection: Connection, id: str, connector: Document) -> None:
    """A host is about to attach it. Raises ``NotFound`` where the attachment is gone."""
    row, values = _locked(connection, id), _connected(connector)
    if row["status"] == "attached":
        values.pop("status")
    set_(connection, attachments, id, **values)
    follow(connection, row["volume_id"])


def complete(connection: Connection, id: str, host: str | None = None, device: str | None = None) -> None:
    """The server has it now. Raises ``NotFound`` where the attachment is gone."""
    row = _locked(connection, id)
    set_(connection, attachments, id, status="attached", attached_at=row["attached_at"] or now(),
         host=host or row["host"], device=device or row["device"])
    follow(connection, row["volume_id"])


def begin_detaching(connection: Connection, id: str) -> None:
    """Show the attachment as detaching; nothing when there is none."""
    with contextlib.suppress(NotFound):
        row = _locked(connection, id)
        set_(connection, attachments, id, status="detaching")
        follow(connection, row["volume_id"])


def roll_detaching(connection: Connection, id: str) -> None:
    """Show the attachment as it was before ``begin_detaching``; nothing when it is not detaching."""
    with contextlib.suppress(NotFound):
        row = _locked(connection, id)
        if row["status"] == "detaching":
            set_(connection, attachments, id, status="attached" if row["attached_at"] else "reserved")
            follow(connection, row["volume_id"])


def disconnect(connection: Connection, id: str) -> None:
    """The server keeps it, and is on no host; nothing when the server had it not."""
    with contextlib.suppress(NotFound):
        row = _locked(connection, id)
        set_(connection, attachments, id, status="reserved", host=None, connector=None, attached_at=None)
        follow(connection, row["volume_id"])


def drop(connection: Connection, id: str) -> None:
    """The server has it no more; nothing when it had not."""
    with contextlib.suppress(NotFound):
        row = _locked(connection, id)
        connection.execute(delete(attachments).where(attachments.c.id == id))
        follow(connection, row["volume_id"])


def documents(connection: Connection, rows: Sequence[RowMapping]) -> Documents:
    """The rows, with ``volume_host``."""
    hosts = {row.id: row.host for row in connection.execute(select(volumes.c.id, volumes.c.host).where(
        volumes.c.id.in_([row["volume_id"] for row in rows])))}
    return [{**row, "volume_host": hosts.get(row["volume_id"])} for row in rows]


def check_free(context: Context, used: Used, rows: Iterable[RowMapping]) -> None:
    """Raises ``Conflict`` where a server has one of the attachments *rows*: its host would go on with a volume that the
    next server gets (CVE-2023-2088). A service that asks knows what it does."""
    for row in () if context.is_service else rows:
        if row["server_id"] and used(row["server_id"], row["id"]):
            raise Conflict(f"Detach volume from instance {row['server_id']} using the Compute API")


class AttachmentStore(Reading):
    """*used*: whether a server has an attachment."""

    table, documents = attachments, staticmethod(documents)

    def __init__(self, database: Database, used: Used) -> None:
        super().__init__(database)
        self.used = used

    def create(self, context: Context, volume_id: str, server_id: str | None, mode: str,
               connector: Document | None) -> str:
        """Keep a volume for a server; the attachment's id."""
        check_writer(context)
        with self.database.write() as connection:
            return str(reserve(connection, context, volume_id, server_id, None, mode, connector)["id"])

    def update(self, context: Context, id: str, connector: Document) -> None:
        check_writer(context)
        with self.database.write() as connection:
            connect(connection, seen(connection, attachments, context, id)["id"], connector)

    def complete(self, context: Context, id: str) -> None:
        check_writer(context)
        with self.database.write() as connection:
            complete(connection, seen(connection, attachments, context, id)["id"])

    def delete(self, context: Context, id: str) -> Documents:
        """The server has it no more; what others have of the volume."""
        check_writer(context)
        with self.database.read() as connection:
            check_free(context, self.used, [seen(connection, attachments, context, id)])
        with self.database.write() as connection:
            volume_id = seen(connection, attachments, context, id)["volume_id"]
            drop(connection, id)
            return [{**left} for left in attachments_of(connection, [volume_id])[volume_id]]
