# SPDX-License-Identifier: GPL-3.0-or-later
"""What has changed for the engine: written in the transaction that changes a row, removed when the engine has it.
And what has changed for hosts that filter by themselves (``host_groups``)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, cast, delete, insert, literal, null, select, update

from magnetar_control.services.network.security import host_groups
from magnetar_control.services.network.tables import changes, engine
from magnetar_control.store.engine.database import Database, added

#: The bell that the engine's workers listen to, and the one that rings when the engine has what was noted.
BELL, WRITTEN = "network_changes", "network_written"
#: Notes that are worked on together, and ids in one statement.
MANY = 500
#: Resources of which hosts are told too.
ON_HOSTS = frozenset({"address_group", "port", "security_group", "security_group_rule"})
# Made once: to make a statement takes longer than to execute it.
_AFTER = select(changes).where(changes.c.id > bindparam("after")).order_by(changes.c.id).limit(bindparam("many"))
_DONE = delete(changes).where(changes.c.id.in_(bindparam("ids", expanding=True)))
_NUMBERED = update(engine).where(engine.c.id == 1).values(number=bindparam("number"))
#: Both at once, where a statement can be two.
_DONE_AND_NUMBERED = _NUMBERED.add_cte(_DONE.returning(changes.c.id).cte("done"))
_PENDING = select(changes.c.id, cast(null(), engine.c.number.type).label("number")).where(changes.c.unit.in_(
    bindparam("units", expanding=True))).union_all(select(literal(""), engine.c.number))


class Pending(NamedTuple):
    """What the engine does not have yet of some units: the notes of these, and the number of its last change."""

    notes: frozenset[str]
    number: int


class ChangeLog:
    """The notes in the API *database*; without an engine (*enabled*) none are made. *leads*: whether this process
    writes them to the engine, so that no other has to hear of them."""

    def __init__(self, database: Database, enabled: bool, leads: Callable[[], bool] = lambda: False) -> None:
        self.database, self.enabled, self.leads = database, enabled, leads

    def note(self, connection: Connection, *units: str) -> None:
        """*units* have changed for the engine, in this transaction."""
        if self.enabled and units:
            connection.execute(insert(changes), [{"id": str(uuid.uuid4()), "unit": unit}
                                                 for unit in dict.fromkeys(units)])
            self.database.ring(connection, BELL, others=not self.leads())

    def changed(self, connection: Connection, *units: str) -> None:
        """*units* have changed as somebody asked for, in this transaction: for the engine, and for hosts."""
        self.note(connection, *units)
        host_groups.changed(connection, units)

    def minds(self, resource: str) -> bool:
        """Whether anybody is told of changes of a *resource*."""
        return self.enabled or resource in ON_HOSTS


def ports(ids: Iterable[str]) -> list[str]:
    """The units of these ports."""
    return [f"port/{id}" for id in ids]


def read(connection: Connection, after: str = "") -> dict[str, str]:
    """Some of the notes, in the order of their ids, of those that come *after* an id: id to unit."""
    return {row.id: row.unit for row in connection.execute(_AFTER, {"after": after, "many": MANY})}


def pending(connection: Connection, units: Collection[str]) -> Pending:
    """What is noted of *units*. Where that is nothing, the engine has them as they are."""
    rows = connection.execute(_PENDING, {"units": list(units)}).all()
    return Pending(frozenset(row.id for row in rows if row.id), max((row.number or 0 for row in rows), default=0))


def noted_units(connection: Connection) -> set[str]:
    """All units that the engine does not have as they are."""
    return set(connection.execute(select(changes.c.unit).distinct()).scalars())


def done(database: Database, ids: Iterable[str], number: int) -> None:
    """The engine has these notes, by its change *number*."""
    known = list(ids)
    if database.kind == "postgresql" and 0 < len(known) <= MANY:  # one message instead of four
        with database.single() as connection:
            if connection.execute(_DONE_AND_NUMBERED, {"ids": known, "number": number}).rowcount:
                database.ring(connection, WRITTEN)
                return
    with database.write() as connection:
        for at in range(0, len(known), MANY):
            connection.execute(_DONE, {"ids": known[at:at + MANY]})
        if not connection.execute(_NUMBERED, {"number": number}).rowcount:  # it is the first one
            added(connection, engine, id=1, number=number)
        database.ring(connection, WRITTEN)
