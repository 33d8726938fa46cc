# SPDX-License-Identifier: GPL-3.0-or-later
"""Notes of changes that must still be written to the engine. A note is a row of the table ``network_changes``; it names
a unit of the engine by its key, such as ``port/UUID``. It is added in the transaction that changes a row, and removed
when the engine has the change. This module also notes changes for hosts whose agents filter packets
(``host_groups``)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, cast, delete, insert, literal, null, select, update

from magnetar_control.services.network.security import host_groups
from magnetar_control.services.network.tables import changes, engine
from magnetar_control.store.engine.database import Database, insert_if_absent

#: The signal that the engine's workers wait for, and the signal that the engine has written the noted changes.
NETWORK_CHANGED, WRITTEN = "network_changes", "network_written"
#: Maximum number of notes in one read, and of ids in one statement.
MANY = 500
#: Kinds of resources whose changes are also noted for hosts.
ON_HOSTS = frozenset({"address_group", "port", "security_group", "security_group_rule"})
# Built once: building a statement takes longer than executing it.
_AFTER = select(changes).where(changes.c.id > bindparam("after")).order_by(changes.c.id).limit(bindparam("many"))
_DONE = delete(changes).where(changes.c.id.in_(bindparam("ids", expanding=True)))
_NUMBERED = update(engine).where(engine.c.id == 1).values(number=bindparam("number"))
#: Removes the notes and stores the number in one statement, where the database supports that.
_DONE_AND_NUMBERED = _NUMBERED.add_cte(_DONE.returning(changes.c.id).cte("done"))
_PENDING = select(changes.c.id, cast(null(), engine.c.number.type).label("number")).where(changes.c.unit.in_(
    bindparam("units", expanding=True))).union_all(select(literal(""), engine.c.number))


class Pending(NamedTuple):
    """The result of ``pending_changes``. *notes*: the ids of the rows in ``network_changes`` whose changes are not
    written to the network engine (OVN) yet. *number*: the number that the engine gave to the last change that was
    written (see ``NetworkEngine.reached``)."""

    notes: frozenset[str]
    number: int


class ChangeLog:
    """The queue of changes that must be written to the network engine (OVN). Each row (a note) has the key of a changed
    object of the engine, such as ``port/UUID``. *database*: the API database. *enabled*: false without an engine: no
    notes are added. *leads*: returns whether it is this process that writes the changes to the engine; if so, other
    processes need not be notified of new notes."""

    def __init__(self, database: Database, enabled: bool, leads: Callable[[], bool] = lambda: False) -> None:
        self.database, self.enabled, self.leads = database, enabled, leads

    def note(self, connection: Connection, *units: str) -> None:
        """Add notes to the queue, in the caller's transaction: *units* (keys such as ``port/UUID``) have changed and
        must be written to the engine. Use ``changed`` instead if agents may need the changes, too."""
        if self.enabled and units:
            connection.execute(insert(changes), [{"id": str(uuid.uuid4()), "unit": unit}
                                                 for unit in dict.fromkeys(units)])
            self.database.notify(connection, NETWORK_CHANGED, remote=not self.leads())

    def changed(self, connection: Connection, *units: str) -> None:
        """Add notes to the queue, in the caller's transaction: a request has changed *units* (keys such as
        ``port/UUID``). Unlike ``note``, also make conductors send changed ports and security groups to the hosts whose
        agents filter packets."""
        self.note(connection, *units)
        host_groups.note_changed_units(connection, units)

    def is_followed(self, resource: str) -> bool:
        """Return whether the engine, or agents that filter packets, need changes of resources of the type *resource*
        (such as port). If so, ``changed`` must be called after each change."""
        return self.enabled or resource in ON_HOSTS


def port_unit_keys(ids: Iterable[str]) -> list[str]:
    """Return the keys (``port/ID``) of the ports *ids* in the network engine."""
    return [f"port/{id}" for id in ids]


def read_change_notes(connection: Connection, last_id: str = "") -> dict[str, str]:
    """Return up to ``MANY`` notes (rows of the queue of changes for the network engine) after the note *last_id*,
    sorted by id: {id of the note: key of the changed object, such as ``port/UUID``}."""
    return {row.id: row.unit for row in connection.execute(_AFTER, {"after": last_id, "many": MANY})}


def pending_changes(connection: Connection, units: Collection[str]) -> Pending:
    """Return the changes of *units* (keys such as ``port/UUID``) that are not written to the network engine (OVN) yet,
    and the number that the engine gave to the last change that was written (see ``NetworkEngine.reached``)."""
    rows = connection.execute(_PENDING, {"units": list(units)}).all()
    return Pending(frozenset(row.id for row in rows if row.id), max((row.number or 0 for row in rows), default=0))


def noted_units(connection: Connection) -> set[str]:
    """Return the keys, such as ``port/UUID``, of all objects whose changes are not written to the network engine (OVN)
    yet."""
    return set(connection.execute(select(changes.c.unit).distinct()).scalars())


def finish_change_notes(database: Database, ids: Iterable[str], number: int) -> None:
    """Delete the notes *ids* (rows of the queue of changes), because their changes are written to the network engine
    (OVN). Store *number*, the number that the engine gave to the last of these changes (see ``NetworkEngine.reached``).
    """
    note_ids = list(ids)
    if database.kind == "postgresql" and 0 < len(note_ids) <= MANY:  # one message instead of four
        with database.single() as connection:
            if connection.execute(_DONE_AND_NUMBERED, {"ids": note_ids, "number": number}).rowcount:
                database.notify(connection, WRITTEN)
                return
    with database.write() as connection:
        for at in range(0, len(note_ids), MANY):
            connection.execute(_DONE, {"ids": note_ids[at:at + MANY]})
        if not connection.execute(_NUMBERED, {"number": number}).rowcount:  # the first change of all
            insert_if_absent(connection, engine, id=1, number=number)
        database.notify(connection, WRITTEN)
