# SPDX-License-Identifier: GPL-3.0-or-later
"""Objects on hosts (networks, exports of volumes) that the hosts must remove after the objects are deleted in the
cloud.

A row is inserted before the object is created on the host. The transaction that deletes the object sets ``due``; a
conductor then removes it from the host (``conductor.hosts.host_removals``), as soon as the host is up.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, select, update

from magnetar_control.store.engine.database import insert_if_absent
from magnetar_control.store.engine.tables import host_removals as table

#: Number of objects of one host that are removed in one batch.
BATCH_SIZE = 100


def insert_removal_row(connection: Connection, host: str, resource_type: str, key: str, *, due: bool = False) -> None:
    """Record that *host* has a resource, so that the resource can be removed later. *resource_type*: the resource's
    type in the agents' API, such as volume. *key*: the resource's uuid or name in that API. *due*: whether the host
    must remove it now."""
    if not insert_if_absent(connection, table, host=host, noun=resource_type, key=key, due=due) and due:
        connection.execute(update(table).where(
            table.c.host == host, table.c.noun == resource_type, table.c.key == key).values(due=True))


def mark_removals_due(connection: Connection, resource_type: str, key: str) -> None:
    """Record that a resource was deleted, so that every host that has it must remove it. *resource_type*: the
    resource's type in the agents' API, such as volume. *key*: the resource's uuid or name in that API."""
    connection.execute(update(table).where(table.c.noun == resource_type, table.c.key == key).values(due=True))


def fetch_removal_hosts(connection: Connection) -> list[str]:
    """Return the names of the hosts that must remove deleted resources (networks, exports of volumes)."""
    return list(connection.execute(select(table.c.host).where(table.c.due).distinct()).scalars())


def fetch_due_removals(connection: Connection, host: str) -> Sequence[tuple[str, str]]:
    """Return (resource type, key) of the deleted resources that *host* must remove, at most ``BATCH_SIZE``."""
    return [(row.noun, row.key) for row in connection.execute(select(table.c.noun, table.c.key).where(
        table.c.host == host, table.c.due).order_by(table.c.noun, table.c.key).limit(BATCH_SIZE))]


def remove_removal_row(connection: Connection, host: str, resource_type: str, key: str) -> None:
    """Delete the row of a resource that *host* has removed. *resource_type*: the resource's type in the agents' API,
    such as volume. *key*: the resource's uuid or name in that API."""
    connection.execute(delete(table).where(table.c.host == host, table.c.noun == resource_type, table.c.key == key))


def remove_host_removals(connection: Connection, host: str) -> None:
    """Delete all rows of *host* from the table ``host_removals``, because the host is being deleted from the cloud."""
    connection.execute(delete(table).where(table.c.host == host))
