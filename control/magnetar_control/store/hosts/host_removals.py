# SPDX-License-Identifier: GPL-3.0-or-later
"""What hosts have of things of the cloud, and what of it they must remove: networks, exports of volumes.

A row says that a host has the thing, from before it is put there. The transaction that deletes the thing sets ``due``;
a conductor then removes it from the host (``conductor.hosts.host_removals``), or does so when the host is back.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, select, update

from magnetar_control.store.engine.database import added
from magnetar_control.store.engine.tables import host_removals as table

#: Things of one host that are removed in one go.
AT_ONCE = 100


def note(connection: Connection, host: str, noun: str, key: str, *, due: bool = False) -> None:
    """Note that *host* has the thing *key* of the agents' kind *noun*. *due*: it must be removed there."""
    if not added(connection, table, host=host, noun=noun, key=key, due=due) and due:
        connection.execute(update(table).where(
            table.c.host == host, table.c.noun == noun, table.c.key == key).values(due=True))


def begin(connection: Connection, noun: str, key: str) -> None:
    """The thing is deleted: every host that has it must remove it."""
    connection.execute(update(table).where(table.c.noun == noun, table.c.key == key).values(due=True))


def hosts(connection: Connection) -> list[str]:
    """Return the hosts that must remove something."""
    return list(connection.execute(select(table.c.host).where(table.c.due).distinct()).scalars())


def due(connection: Connection, host: str) -> Sequence[tuple[str, str]]:
    """Return nouns and keys of the first things that *host* must remove."""
    return [(row.noun, row.key) for row in connection.execute(select(table.c.noun, table.c.key).where(
        table.c.host == host, table.c.due).order_by(table.c.noun, table.c.key).limit(AT_ONCE))]


def done(connection: Connection, host: str, noun: str, key: str) -> None:
    """*host* has the thing no longer."""
    connection.execute(delete(table).where(table.c.host == host, table.c.noun == noun, table.c.key == key))


def forget(connection: Connection, host: str) -> None:
    """Remove the rows of a host that is removed."""
    connection.execute(delete(table).where(table.c.host == host))
