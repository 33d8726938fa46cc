# SPDX-License-Identifier: GPL-3.0-or-later
"""Inventories of resource classes that are no columns of ``hosts``: custom ones, told by agents or set by operators,
and the bandwidth of physical networks (``core.bandwidth``: the class with the network's name).

Functions take the connection of a transaction of the API database. A claim raises ``used`` with a conditional UPDATE
(``take``), after the counters of its host, and class by class in the order of their names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Connection, Row, and_, bindparam, delete, or_, select, update

from magnetar_control.store.engine.database import INSERT, now
from magnetar_control.store.engine.tables import hosts, inventories, resource_classes
from magnetar_core import bandwidth

#: The greatest number of Placement.
MOST = 2**31 - 1


class Inventory(NamedTuple):
    """What a host has of a class: its amount, what is kept from it, what one consumer may have of it (least, most, in
    steps of), and how often it may be promised. Fields are Placement's."""

    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int = MOST
    step_size: int = 1
    allocation_ratio: float = 1.0

    @property
    def limit(self) -> int:
        """What may be claimed."""
        return max(0, int((self.total - self.reserved) * self.allocation_ratio))


#: What an operator may set of an inventory that an agent tells.
SETTABLE = ("reserved", "allocation_ratio")
NOTHING = Inventory(0)
_MINE = and_(inventories.c.host_id == bindparam("host"), inventories.c.resource_class == bindparam("name"))
_MORE, _WHOLE = bindparam("more", type_=inventories.c.used.type), bindparam("whole", type_=inventories.c.used.type)
#: How much one consumer may have, and how much is left.
_SUITS = and_(inventories.c.min_unit <= _WHOLE, inventories.c.max_unit >= _WHOLE, _WHOLE % inventories.c.step_size == 0)
#: Of a row that says nothing any more, as nobody gives the class, and nothing is claimed of it, nothing is shown.
_GIVEN = or_(inventories.c.told.is_not(None), inventories.c.own.is_not(None))
_THERE = or_(_GIVEN, inventories.c.used > 0)
_TAKE = update(inventories).where(_MINE, or_(_MORE <= 0, and_(
    _SUITS, inventories.c.used + _MORE <= inventories.c.limit))).values(used=inventories.c.used + _MORE)


def effective(row: Any) -> Inventory:
    """The inventory of a row: what the agent tells, with what an operator has set; else all of it is the operator's."""
    told, own = (orjson.loads(one) if one else None for one in (row.told, row.own))
    if told is None:
        return Inventory(**own) if own else NOTHING
    return Inventory(**told)._replace(**{name: own[name] for name in SETTABLE if own and name in own})


def take(connection: Connection, host_id: str, name: str, whole: int, more: int) -> bool:
    """Raise what is claimed of a class by *more* (which may be negative), for a consumer that has *whole* of it then.
    ``False``, and nothing changed, where there is not enough, or no consumer may have that much."""
    values = {"host": host_id, "name": name, "whole": whole, "more": more}
    return connection.execute(_TAKE, values).rowcount == 1 or more <= 0


def of_hosts(connection: Connection, host_ids: Collection[str] | None = None) -> dict[str, dict[str, Row[Any]]]:
    """Rows by host and class: of some hosts, or of all. A class that neither agent nor operator gives any more is there
    while something is claimed of it."""
    query = select(inventories).where(_THERE).order_by(inventories.c.host_id, inventories.c.resource_class)
    if host_ids is not None:
        query = query.where(inventories.c.host_id.in_(list(host_ids)))
    found: dict[str, dict[str, Row[Any]]] = {}
    for row in connection.execute(query):
        found.setdefault(row.host_id, {})[row.resource_class] = row
    return found


def offers(connection: Connection, amounts: Mapping[str, int],
           beginnings: Collection[str] = ()) -> dict[str, dict[str, int]]:
    """By name of host: how much of each of the classes a consumer of *amounts* could still have there, 0 where its
    amount is none that one consumer may have; and of all classes with such *beginnings* (of cards) what is left. Hosts
    that have none of them are absent."""
    query = select(hosts.c.name, inventories).join_from(inventories, hosts, hosts.c.id == inventories.c.host_id).where(
        or_(inventories.c.resource_class.in_(list(amounts)), *(
            inventories.c.resource_class.startswith(one, autoescape=True) for one in sorted(set(beginnings)))))
    found: dict[str, dict[str, int]] = {}
    for row in connection.execute(query):
        wanted = amounts.get(row.resource_class, row.min_unit)
        suits = row.min_unit <= wanted <= row.max_unit and wanted % row.step_size == 0
        found.setdefault(row.name, {})[row.resource_class] = max(0, row.limit - row.used) if suits else 0
    return found


def had(connection: Connection, names: Iterable[str]) -> set[str]:
    """Those of the classes that some host has."""
    return set(connection.execute(select(inventories.c.resource_class).distinct().where(
        inventories.c.resource_class.in_(list(names)), _GIVEN)).scalars())


def hear(connection: Connection, host_id: str, told: Mapping[str, Mapping[str, Any]]) -> bool:
    """Save what an agent tells, {class: fields of ``Inventory``}; returns whether that is another than before. What an
    operator has set stays. Call it with the host's row locked."""
    rows = {row.resource_class: row for row in connection.execute(select(inventories).where(
        inventories.c.host_id == host_id))}
    changed = False
    for name in sorted(told.keys() | {name for name, row in rows.items() if row.told is not None}):
        told_now = text(Inventory(**told[name])._asdict()) if name in told else None
        if name not in rows or rows[name].told != told_now:
            changed = True
            _write(connection, host_id, name, rows.get(name), told=told_now)
    return changed


def set_own(connection: Connection, host_id: str, name: str, own: Mapping[str, Any] | None) -> None:
    """Set what an operator says of a class, or (``None``) that it says nothing. Call it with the host's row locked."""
    row = connection.execute(select(inventories).where(
        inventories.c.host_id == host_id, inventories.c.resource_class == name)).one_or_none()
    _write(connection, host_id, name, row, own=text(own) if own else None)


def text(document: Mapping[str, Any]) -> str:
    """JSON text of a document, the same for the same."""
    return orjson.dumps({**document}, option=orjson.OPT_SORT_KEYS).decode()


class _Sources(NamedTuple):
    told: str | None
    own: str | None


def _write(connection: Connection, host_id: str, name: str, row: Row[Any] | None, **source: str | None) -> None:
    """Write one source of an inventory, and the limits that follow; a row that says nothing goes."""
    sources = _Sources(row.told if row else None, row.own if row else None)._replace(**source)
    found = effective(sources)
    values = {**sources._asdict(), "limit": found.limit, "min_unit": found.min_unit,
              "max_unit": min(found.max_unit, MOST), "step_size": found.step_size}
    query = INSERT[connection.dialect.name](inventories).values(host_id=host_id, resource_class=name, **values)
    connection.execute(query.on_conflict_do_update(index_elements=["host_id", "resource_class"], set_=values))
    if not bandwidth.split(name)[1]:
        add_class(connection, name)
    connection.execute(delete(inventories).where(
        inventories.c.host_id == host_id, inventories.c.told.is_(None), inventories.c.own.is_(None),
        inventories.c.used == 0))


def classes(connection: Connection) -> list[str]:
    """The resource classes that are no columns of ``hosts``, by name."""
    return list(connection.execute(select(resource_classes.c.name).order_by(resource_classes.c.name)).scalars())


def add_class(connection: Connection, name: str) -> bool:
    """Add a class; ``False`` where there is one of that name."""
    return connection.execute(INSERT[connection.dialect.name](resource_classes).values(
        name=name, created_at=now()).on_conflict_do_nothing().execution_options(preserve_rowcount=True)).rowcount == 1


def drop_class(connection: Connection, name: str) -> bool:
    """Remove a class that no host has; ``False`` where one has it, or something is claimed of it."""
    used = select(inventories.c.host_id).where(inventories.c.resource_class == name, _THERE).exists()
    return connection.execute(delete(resource_classes).where(resource_classes.c.name == name, ~used)).rowcount == 1
