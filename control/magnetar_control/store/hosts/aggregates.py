# SPDX-License-Identifier: GPL-3.0-or-later
"""Host aggregates and their metadata, of which ``availability_zone`` is seen by users."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, bindparam, delete, insert, select, update

from magnetar_control.store.engine.database import added_row, now
from magnetar_control.store.engine.tables import aggregate_hosts, aggregates, hosts
from magnetar_control.store.servers.servers import text

ZONE = "availability_zone"


@dataclass(frozen=True)
class Aggregate:
    """A row with the names of its hosts."""

    id: int
    uuid: str
    name: str
    metadata: Mapping[str, str]
    created_at: str
    updated_at: str | None
    hosts: Sequence[str]

    @property
    def zone(self) -> str | None:
        """Its availability zone."""
        return self.metadata.get(ZONE)


_EVERY = select(aggregates).order_by(aggregates.c.id)
_MEMBERS = select(aggregate_hosts.c.aggregate_id, aggregate_hosts.c.host).where(
    aggregate_hosts.c.aggregate_id.in_(bindparam("ids", expanding=True))).order_by(aggregate_hosts.c.host)


def every(connection: Connection, *, lock: bool = False) -> list[Aggregate]:
    """All, by creation; *lock* locks them until the transaction ends. Two queries, one where there are none."""
    return _made(connection, _EVERY.with_for_update() if lock else _EVERY)


def find(connection: Connection, id: int, *, lock: bool = False) -> Aggregate | None:
    """One; *lock* locks it until the transaction ends."""
    question = select(aggregates).where(aggregates.c.id == id)
    return next(iter(_made(connection, question.with_for_update() if lock else question)), None)


def _made(connection: Connection, question: Any) -> list[Aggregate]:
    rows = connection.execute(question).all()
    members: dict[int, list[str]] = {}
    for id, host in connection.execute(_MEMBERS, {"ids": [row.id for row in rows]}).all() if rows else ():
        members.setdefault(id, []).append(host)
    return [Aggregate(row.id, row.uuid, row.name, orjson.loads(row.metadata), row.created_at, row.updated_at,
                      members.get(row.id, [])) for row in rows]


def named(connection: Connection, name: str) -> int | None:
    """The id of the aggregate of that name."""
    return connection.execute(select(aggregates.c.id).where(aggregates.c.name == name)).scalar()


def make(connection: Connection, name: str, metadata: Mapping[str, str]) -> int | None:
    """Insert an aggregate; ``None`` when there is one of that name."""
    row = added_row(connection, aggregates, uuid=str(uuid.uuid4()), name=name, metadata=text(metadata),
                    created_at=now())
    return None if row is None else int(row.id)


def change(connection: Connection, id: int, **values: Any) -> None:
    """Set the name, the metadata."""
    if "metadata" in values:
        values["metadata"] = text(values["metadata"])
    connection.execute(update(aggregates).where(aggregates.c.id == id).values(updated_at=now(), **values))


def remove(connection: Connection, id: int) -> None:
    """Delete it."""
    connection.execute(delete(aggregates).where(aggregates.c.id == id))


def put(connection: Connection, id: int, host: str) -> None:
    """Add a host."""
    connection.execute(insert(aggregate_hosts).values(aggregate_id=id, host=host))
    _risen(connection, host)


def take(connection: Connection, id: int | None, host: str) -> None:
    """Remove a host; without *id*, from all aggregates."""
    where = [aggregate_hosts.c.host == host]
    if id is not None:
        where.append(aggregate_hosts.c.aggregate_id == id)
    connection.execute(delete(aggregate_hosts).where(*where))
    _risen(connection, host)


def _risen(connection: Connection, host: str) -> None:
    """The host is in other aggregates than before: another generation of its provider."""
    connection.execute(update(hosts).where(hosts.c.name == host).values(generation=hosts.c.generation + 1))


def zones(connection: Connection, hosts: Iterable[str] | None = None, but: int | None = None) -> dict[str, str]:
    """The zone of each of *hosts* (of all when left out) that is in an aggregate with one; aggregate *but* is
    ignored."""
    question = select(aggregate_hosts.c.host, aggregates.c.metadata).join(
        aggregates, aggregates.c.id == aggregate_hosts.c.aggregate_id).order_by(aggregates.c.id)
    if hosts is not None:
        question = question.where(aggregate_hosts.c.host.in_(list(hosts)))
    if but is not None:
        question = question.where(aggregates.c.id != but)
    found = {}
    for host, metadata in connection.execute(question).all():
        zone = orjson.loads(metadata).get(ZONE)
        if zone:
            found[host] = zone
    return found
