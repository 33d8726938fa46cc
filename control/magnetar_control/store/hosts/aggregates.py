# SPDX-License-Identifier: GPL-3.0-or-later
"""Host aggregates and their metadata; users see only ``availability_zone``."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, bindparam, delete, insert, select, update

from magnetar_control.store.engine.database import insert_if_absent_returning, utc_now
from magnetar_control.store.engine.tables import aggregate_hosts, aggregates, hosts
from magnetar_control.store.servers.servers import json_text

ZONE = "availability_zone"


@dataclass(frozen=True)
class Aggregate:
    """A host aggregate with the names of its hosts."""

    id: int
    uuid: str
    name: str
    metadata: Mapping[str, str]
    created_at: str
    updated_at: str | None
    hosts: Sequence[str]

    @property
    def zone(self) -> str | None:
        """The availability zone in the aggregate's metadata; ``None`` without one."""
        return self.metadata.get(ZONE)


_EVERY = select(aggregates).order_by(aggregates.c.id)
_MEMBERS = select(aggregate_hosts.c.aggregate_id, aggregate_hosts.c.host).where(
    aggregate_hosts.c.aggregate_id.in_(bindparam("ids", expanding=True))).order_by(aggregate_hosts.c.host)


def fetch_aggregate_rows(connection: Connection, *, lock: bool = False) -> list[Aggregate]:
    """Return all aggregates, ordered by id. *lock*: lock their rows until the transaction ends. Uses two queries, or
    one when there are no aggregates."""
    return _made(connection, _EVERY.with_for_update() if lock else _EVERY)


def fetch_aggregate_row(connection: Connection, id: int, *, lock: bool = False) -> Aggregate | None:
    """Return the aggregate with this id, or ``None``. *lock*: lock its row until the transaction ends."""
    question = select(aggregates).where(aggregates.c.id == id)
    return next(iter(_made(connection, question.with_for_update() if lock else question)), None)


def _made(connection: Connection, question: Any) -> list[Aggregate]:
    rows = connection.execute(question).all()
    members: dict[int, list[str]] = {}
    for id, host in connection.execute(_MEMBERS, {"ids": [row.id for row in rows]}).all() if rows else ():
        members.setdefault(id, []).append(host)
    return [Aggregate(row.id, row.uuid, row.name, orjson.loads(row.metadata), row.created_at, row.updated_at,
                      members.get(row.id, [])) for row in rows]


def fetch_aggregate_id(connection: Connection, name: str) -> int | None:
    """Return the id of the aggregate with this name; ``None`` when there is none."""
    return connection.execute(select(aggregates.c.id).where(aggregates.c.name == name)).scalar()


def insert_aggregate_row(connection: Connection, name: str, metadata: Mapping[str, str]) -> int | None:
    """Insert an aggregate; return its id, or ``None`` when the name is taken."""
    row = insert_if_absent_returning(connection, aggregates, uuid=str(uuid.uuid4()), name=name,
                                     metadata=json_text(metadata), created_at=utc_now())
    return None if row is None else int(row.id)


def update_aggregate_row(connection: Connection, id: int, **values: Any) -> None:
    """Set columns of an aggregate. *values*: ``name`` or ``metadata``."""
    if "metadata" in values:
        values["metadata"] = json_text(values["metadata"])
    connection.execute(update(aggregates).where(aggregates.c.id == id).values(updated_at=utc_now(), **values))


def remove_aggregate_row(connection: Connection, id: int) -> None:
    """Delete the aggregate."""
    connection.execute(delete(aggregates).where(aggregates.c.id == id))


def insert_aggregate_host_row(connection: Connection, id: int, host: str) -> None:
    """Add a host to the aggregate."""
    connection.execute(insert(aggregate_hosts).values(aggregate_id=id, host=host))
    _risen(connection, host)


def remove_aggregate_host_row(connection: Connection, id: int | None, host: str) -> None:
    """Remove a host from the aggregate *id*, or from all aggregates when *id* is ``None``."""
    where = [aggregate_hosts.c.host == host]
    if id is not None:
        where.append(aggregate_hosts.c.aggregate_id == id)
    connection.execute(delete(aggregate_hosts).where(*where))
    _risen(connection, host)


def _risen(connection: Connection, host: str) -> None:
    """Increase the generation of the host's resource provider by 1, because the host's aggregates changed."""
    connection.execute(update(hosts).where(hosts.c.name == host).values(generation=hosts.c.generation + 1))


def fetch_host_zones(connection: Connection, hosts: Iterable[str] | None = None,
                     excluded_id: int | None = None) -> dict[str, str]:
    """Return the availability zone by host name, for those of *hosts* (default: all) that are in an aggregate with a
    zone. Ignores the aggregate *excluded_id*."""
    question = select(aggregate_hosts.c.host, aggregates.c.metadata).join(
        aggregates, aggregates.c.id == aggregate_hosts.c.aggregate_id).order_by(aggregates.c.id)
    if hosts is not None:
        question = question.where(aggregate_hosts.c.host.in_(list(hosts)))
    if excluded_id is not None:
        question = question.where(aggregates.c.id != excluded_id)
    zones_by_host = {}
    for host, metadata in connection.execute(question).all():
        zone = orjson.loads(metadata).get(ZONE)
        if zone:
            zones_by_host[host] = zone
    return zones_by_host
