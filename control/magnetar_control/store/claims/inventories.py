# SPDX-License-Identifier: GPL-3.0-or-later
"""Inventories of resource classes without a column in ``hosts``: custom classes, reported by agents or set by
operators, and the bandwidth of physical networks (``core.bandwidth``: class names that contain the network's name).

Functions take the connection of a transaction of the API database. A claim raises ``used`` with a conditional UPDATE
(``claim_inventory``), after the counters of its host, and one class after the other, sorted by name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Connection, and_, bindparam, delete, or_, select, update

from magnetar_control.store.engine.database import INSERT, utc_now
from magnetar_control.store.engine.rows import DocumentColumn, SelectedRow
from magnetar_control.store.engine.tables import hosts, inventories, resource_classes
from magnetar_core import bandwidth
from magnetar_core.document import Document

#: Placement's largest number.
MOST = 2**31 - 1


class Inventory(NamedTuple):
    """The amounts of one resource class on a host, with the fields of Placement's inventories."""

    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int = MOST
    step_size: int = 1
    allocation_ratio: float = 1.0

    @property
    def limit(self) -> int:
        """Return the amount of the resource class that all consumers together may claim: (total - reserved) x
        allocation ratio, rounded down, but at least 0."""
        return max(0, int((self.total - self.reserved) * self.allocation_ratio))


class InventoryRow(SelectedRow):
    """A row of the table ``inventories``: the limits and the claimed amount of a resource class on a host."""

    host_id: str
    resource_class: str
    limit: int
    used: int
    min_unit: int
    max_unit: int
    step_size: int

    #: The fields of ``Inventory`` that the host's agent reports.
    told = DocumentColumn[Mapping[str, Any] | None]()
    #: The fields of ``Inventory`` that an operator has set.
    own = DocumentColumn[Mapping[str, Any] | None]()


#: Fields that an operator may set in an inventory that an agent reports.
SETTABLE = ("reserved", "allocation_ratio")
NOTHING = Inventory(0)
_MINE = and_(inventories.c.host_id == bindparam("host"), inventories.c.resource_class == bindparam("name"))
_MORE, _WHOLE = bindparam("more", type_=inventories.c.used.type), bindparam("whole", type_=inventories.c.used.type)
#: The condition that the inventory allows a single consumer the amount ``whole``.
_SUITS = and_(inventories.c.min_unit <= _WHOLE, inventories.c.max_unit >= _WHOLE, _WHOLE % inventories.c.step_size == 0)
#: The condition of rows that are shown: an agent or operator provides the class, or something is claimed.
_GIVEN = or_(inventories.c.told.is_not(None), inventories.c.own.is_not(None))
_THERE = or_(_GIVEN, inventories.c.used > 0)
_ROWS = InventoryRow.selection(inventories)
_TAKE = update(inventories).where(_MINE, or_(_MORE <= 0, and_(
    _SUITS, inventories.c.used + _MORE <= inventories.c.limit))).values(used=inventories.c.used + _MORE)


def operator_inventory(row: InventoryRow) -> Document:
    """Return the fields of ``Inventory`` that an operator has set for this row, as a new dict."""
    return {**(row.own or {})}


def effective_inventory(row: InventoryRow) -> Inventory:
    """Return the inventory that applies for a row: each field has the value that an operator has set, or else the value
    that the agent reports. If the agent does not report the resource class, only the operator's fields apply; if the
    operator has set no fields either, the total is 0."""
    own = row.own or {}
    if row.told is None:
        return Inventory(**own) if own else NOTHING
    return Inventory(**row.told)._replace(**{name: own[name] for name in SETTABLE if name in own})


def claim_inventory(connection: Connection, host_id: str, name: str, whole: int, more: int) -> bool:
    """Increase the claimed amount of the resource class *name* on a host by *more*, which may be negative. *whole*: the
    consumer's amount after the claim. Return ``False``, with nothing changed, when the host has too little left, or
    when *whole* violates the inventory's limits for a single consumer."""
    values = {"host": host_id, "name": name, "whole": whole, "more": more}
    return connection.execute(_TAKE, values).rowcount == 1 or more <= 0


def fetch_inventory_rows(connection: Connection,
                         host_ids: Collection[str] | None = None) -> dict[str, dict[str, InventoryRow]]:
    """Return the inventories of *host_ids* (default: all hosts), by host id, then by resource class. A class that
    neither agent nor operator provides any more is included as long as servers claim some of it."""
    query = _ROWS.where(_THERE).order_by(inventories.c.host_id, inventories.c.resource_class)
    if host_ids is not None:
        query = query.where(inventories.c.host_id.in_(list(host_ids)))
    rows_by_host: dict[str, dict[str, InventoryRow]] = {}
    for row in InventoryRow.several(connection.execute(query)):
        rows_by_host.setdefault(row.host_id, {})[row.resource_class] = row
    return rows_by_host


def fetch_available_amounts(connection: Connection, amounts: Mapping[str, int],
                            beginnings: Collection[str] = ()) -> dict[str, dict[str, int]]:
    """Return the unclaimed amounts of resource classes, by host name and class. An amount is 0 where the inventory does
    not allow a single consumer the requested amount.

    *amounts*: the requested amounts by class. *beginnings*: also include all classes whose names begin with one of
    these prefixes (used for the bandwidth of network cards). Hosts with none of the classes are absent.
    """
    query = select(hosts.c.name, inventories).join_from(inventories, hosts, hosts.c.id == inventories.c.host_id).where(
        or_(inventories.c.resource_class.in_(list(amounts)), *(
            inventories.c.resource_class.startswith(prefix, autoescape=True) for prefix in sorted(set(beginnings)))))
    amounts_by_host: dict[str, dict[str, int]] = {}
    for row in connection.execute(query):
        requested = amounts.get(row.resource_class, row.min_unit)
        amounts_by_host.setdefault(row.name, {})[row.resource_class] = available_amount(row, requested)
    return amounts_by_host


def available_amount(row: Any, requested: int) -> int:
    """Return the unclaimed amount in *row*, a row of the table ``inventories``. Return 0 if the inventory does not
    allow a single consumer the amount *requested*."""
    suits = row.min_unit <= requested <= row.max_unit and requested % row.step_size == 0
    return max(0, row.limit - row.used) if suits else 0


def fetch_provided_classes(connection: Connection, names: Iterable[str]) -> set[str]:
    """Return the resource classes among *names* that the agent or an operator provides on at least one host."""
    return set(connection.execute(select(inventories.c.resource_class).distinct().where(
        inventories.c.resource_class.in_(list(names)), _GIVEN)).scalars())


def save_agent_inventories(connection: Connection, host_id: str,
                           agent_inventories: Mapping[str, Mapping[str, Any]]) -> bool:
    """Save the inventories that an agent reports, and return whether they differ from the agent's last report.
    *agent_inventories*: by resource class, the fields of ``Inventory``. Fields that an operator has set do not change.
    Call this with the host's row locked."""
    rows = {row.resource_class: row for row in InventoryRow.several(connection.execute(
        _ROWS.where(inventories.c.host_id == host_id)))}
    changed = False
    for name in sorted(agent_inventories.keys() | {
            name for name, row in rows.items() if row.stored.told is not None}):
        reported = canonical_json(Inventory(**agent_inventories[name])._asdict()) if name in agent_inventories else None
        if name not in rows or rows[name].stored.told != reported:
            changed = True
            _write(connection, host_id, name, rows.get(name), told=reported)
    return changed


def save_operator_inventory(connection: Connection, host_id: str, name: str,
                            operator_fields: Mapping[str, Any] | None) -> None:
    """Set the fields of ``Inventory`` that an operator has chosen for the resource class *name* on a host, or remove
    them (``None``). Call this with the host's row locked."""
    row = InventoryRow.optional(connection.execute(_ROWS.where(
        inventories.c.host_id == host_id, inventories.c.resource_class == name)).one_or_none())
    _write(connection, host_id, name, row, own=canonical_json(operator_fields) if operator_fields else None)


def canonical_json(document: Mapping[str, Any]) -> str:
    """Return *document* as JSON text with sorted keys, so that equal documents have equal texts."""
    return orjson.dumps({**document}, option=orjson.OPT_SORT_KEYS).decode()


def _write(connection: Connection, host_id: str, name: str, row: InventoryRow | None, **source: str | None) -> None:
    """Set the column ``told`` (the agent's fields) or ``own`` (the operator's fields) of a host's inventory row, and
    update the columns with the resulting limits. *source*: ``told`` or ``own`` as JSON text; ``None``: no fields.
    *row*: the present row, if any. Delete the row when both columns are null and nothing is claimed."""
    changed = (row or InventoryRow.of_values({})).changed_columns(**source)
    inventory = effective_inventory(changed)
    values = {"told": changed.stored.told, "own": changed.stored.own, "limit": inventory.limit,
              "min_unit": inventory.min_unit, "max_unit": min(inventory.max_unit, MOST),
              "step_size": inventory.step_size}
    query = INSERT[connection.dialect.name](inventories).values(host_id=host_id, resource_class=name, **values)
    connection.execute(query.on_conflict_do_update(index_elements=["host_id", "resource_class"], set_=values))
    if not bandwidth.split_resource(name)[1]:
        insert_resource_class(connection, name)
    connection.execute(delete(inventories).where(
        inventories.c.host_id == host_id, inventories.c.told.is_(None), inventories.c.own.is_(None),
        inventories.c.used == 0))


def fetch_resource_classes(connection: Connection) -> list[str]:
    """Return the names of the resource classes that have inventories instead of a column in ``hosts``, sorted."""
    return list(connection.execute(select(resource_classes.c.name).order_by(resource_classes.c.name)).scalars())


def insert_resource_class(connection: Connection, name: str) -> bool:
    """Insert a resource class; return ``False`` when it exists."""
    return connection.execute(INSERT[connection.dialect.name](resource_classes).values(
        name=name, created_at=utc_now()).on_conflict_do_nothing().execution_options(
            preserve_rowcount=True)).rowcount == 1


def remove_resource_class(connection: Connection, name: str) -> bool:
    """Delete a resource class. Return ``False``, with nothing deleted, when it does not exist, a host provides it, or
    some of it is claimed."""
    used = select(inventories.c.host_id).where(inventories.c.resource_class == name, _THERE).exists()
    return connection.execute(delete(resource_classes).where(resource_classes.c.name == name, ~used)).rowcount == 1
