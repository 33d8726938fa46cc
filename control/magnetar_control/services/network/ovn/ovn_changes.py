# SPDX-License-Identifier: GPL-3.0-or-later
"""The difference between the desired rows and the rows of a northbound database, and the function that writes it.

The cloud's rows have ``magnetar:unit`` and ``magnetar:key`` in their ``external_ids``. All other rows are ignored: they
are not changed, and not removed from the rows that refer to them.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from magnetar_control.services.network.engine.engine import DesiredContent, EngineDifference, Incomplete

from .ovn_rows import ACL, DROP_UNIT, GROUP, HOLDERS, REFERRED, TABLES, NorthRow, permanent_rows, rows_of_unit

UNIT, KEY = "magnetar:unit", "magnetar:key"
#: The name of one of the cloud's rows: table and key.
Name = tuple[str, str]
#: A column that refers to rows: table and key of its row, and the column.
Holder = tuple[str, str, str]
#: Table to its columns that refer to rows.
_HOLDING = {table: tuple(column for holding, column, _held in HOLDERS if holding == table) for table in TABLES}


@dataclass
class NorthboundChanges:
    """The changes that turn the northbound database into the desired one.

    *make*, *drop*: rows to insert and to delete. *change*: (row, {column: new value}). *put*, *take*: references to add
    to and to remove from columns with several references, each as (``Holder``, row to refer to). A ``Holder`` is such a
    column: (table, key of the column's row, name of the column). *refer*: single references to set: (row, column, key
    of the row to refer to; ``None``: none). *found*: descriptions of the differences.
    """

    make: list[NorthRow] = field(default_factory=list)
    change: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    drop: list[Any] = field(default_factory=list)
    put: list[tuple[Holder, Name]] = field(default_factory=list)
    take: list[tuple[Holder, Any]] = field(default_factory=list)
    refer: list[tuple[Name, str, str | None]] = field(default_factory=list)
    found: list[EngineDifference] = field(default_factory=list)


class Northbound:
    """The rows that this cloud has created in the northbound database, indexed by name. *tables*: the tables of an IDL
    (a local copy of the database). Callers report each changed row with ``update_row``, because reading all rows again
    would take longer than writing a change."""

    def __init__(self, tables: Mapping[str, Any]) -> None:
        self.rows: dict[Name, Any] = {}
        self.units: dict[str, dict[Name, None]] = {}
        self.duplicates: list[Any] = []  # further rows with the same name
        self.names: dict[Any, Name] = {}
        self.holders: dict[Any, set[Holder]] = {}
        self._of: dict[Any, str] = {}  # the unit of a row
        self._held: dict[tuple[Any, str], set[Any]] = {}
        #: An IDL that has lost its connection starts with new tables.
        self._seen = {table: tables[table].rows for table in TABLES}
        #: Whether all rows must be read again.
        self.stale = False
        for table, rows_ in self._seen.items():
            for row in rows_.values():
                self._add(table, row)

    def is_of(self, tables: Mapping[str, Any]) -> bool:
        """Return whether this object was read from *tables*, the tables of an IDL, and is up to date."""
        return not self.stale and all(tables[table].rows is rows_ for table, rows_ in self._seen.items())

    def update_row(self, row: Any, changed: Collection[str] | None, *, is_present: bool) -> None:
        """Update this object after a change of the database row *row*. *changed*: the names of the changed columns;
        ``None`` for a new or deleted row. *is_present*: false if the row was deleted."""
        table = row._table  # noqa: SLF001 - a row has no other name of its table
        if self.stale or table.name not in self._seen:
            return
        if table.rows is not self._seen[table.name] or self.duplicates:
            self.stale = True
        elif changed is None or "external_ids" in changed:
            self._forget(row)
            if is_present:
                self._add(table.name, row)
        elif row.uuid in self.names:
            for column in _HOLDING.get(table.name, ()):
                if column in changed:
                    self._hold(row, column)

    def _add(self, table: str, row: Any) -> None:
        ids = row.external_ids
        if KEY not in ids:
            return
        name = (table, ids[KEY])
        if name in self.rows:
            self.duplicates.append(row)
            return
        self.rows[name], self.names[row.uuid], self._of[row.uuid] = row, name, ids.get(UNIT, "")
        self.units.setdefault(self._of[row.uuid], {})[name] = None
        for column in _HOLDING.get(table, ()):
            self._hold(row, column)

    def _hold(self, row: Any, column: str) -> None:
        """Update ``holders``, which maps the uuid of a row to the columns that refer to it, with the rows that *column*
        of *row* refers to now. There may be thousands of such rows, and the public attributes of the IDL would create
        and hash a new object for each; therefore this method reads the IDL's internal data."""
        place, holder = (row.uuid, column), (*self.names[row.uuid], column)
        previous, now = self._held.get(place, set()), set(row._data[column].values)  # noqa: SLF001
        for atom in now - previous:
            self.holders.setdefault(atom.value, set()).add(holder)
        for atom in previous - now:
            self._remove_holder(atom.value, holder)
        self._held[place] = now

    def _remove_holder(self, row_id: Any, holder: Holder) -> None:
        if holders := self.holders.get(row_id):
            holders.discard(holder)
            if not holders:
                del self.holders[row_id]

    def _forget(self, row: Any) -> None:
        name = self.names.pop(row.uuid, None)
        if name is None:
            return
        del self.rows[name]
        unit = self._of.pop(row.uuid)
        self.units[unit].pop(name, None)
        if not self.units[unit]:
            del self.units[unit]
        for column in _HOLDING.get(name[0], ()):
            for atom in self._held.pop((row.uuid, column), ()):
                self._remove_holder(atom.value, (*name, column))

    def changes(self, desired: DesiredContent) -> NorthboundChanges:
        """Return the changes that make the rows of this cloud match *desired*. Raises ``Incomplete`` when a desired row
        belongs to another row that neither exists nor is desired."""
        new = {(row.table, row.key): row for row in self._desired_rows(desired)}
        changes = NorthboundChanges()
        for name, row in new.items():
            self._one(changes, new, name, row)
        units: Iterable[str] = self.units if desired.scope is None else {*desired.scope, DROP_UNIT}
        for name in [name for unit in units for name in self.units.get(unit, ()) if name not in new]:
            self._gone(changes, self.rows[name], name)
        for row in self.duplicates if desired.scope is None else ():
            changes.drop.append(row)
            changes.found.append(EngineDifference(row.external_ids.get(UNIT, ""),
                                                  f"{row.external_ids[KEY]} is there twice"))
        return changes

    def _desired_rows(self, desired: DesiredContent) -> Iterator[NorthRow]:
        yield from permanent_rows()
        for unit in desired.units.values():
            yield from rows_of_unit(unit)

    def _one(self, changes: NorthboundChanges, new: Mapping[Name, NorthRow], name: Name, row: NorthRow) -> None:
        existing_row = self.rows.get(name)
        if existing_row is None:
            changes.make.append(row)
            changes.found.append(EngineDifference(row.unit, f"{row.table} {row.key} is missing"))
        else:
            self._columns(changes, row, existing_row)
        current_holders = set() if existing_row is None else self.holders.get(existing_row.uuid, set())
        inside = {holder for holder in row.inside if self._holder_exists(new, holder, row)}
        for holder in sorted(inside - current_holders):
            changes.put.append((holder, name))
            if existing_row is not None:
                changes.found.append(EngineDifference(row.unit,
                                                      f"{row.table} {row.key} is not in {holder[0]} {holder[1]}"))
        for holder in sorted(current_holders - inside):
            changes.take.append((holder, existing_row))
            changes.found.append(EngineDifference(row.unit, f"{row.table} {row.key} is in {holder[0]} {holder[1]}"))
        for column, key in row.refs.items():
            self._refer(changes, new, name, (row, column, key))

    def _holder_exists(self, new: Mapping[Name, NorthRow], holder: Holder, row: NorthRow) -> bool:
        """Return whether the row that must refer to *row* exists in the database or among the *new* rows. *holder*: the
        column of that row with the reference: (table, key of the column's row, column). If that row is missing, return
        false when *row* is a port and its security group was deleted. Otherwise raise ``Incomplete``, because that row
        must be written before *row*."""
        if holder[:2] in new or holder[:2] in self.rows:
            return True
        if holder[0] == GROUP and row.table != ACL:
            return False
        raise Incomplete(f"{row.table} {row.key} belongs to {holder[0]} {holder[1]}, which is not there")

    def _columns(self, changes: NorthboundChanges, row: NorthRow, existing_row: Any) -> None:
        columns = row.columns
        if row.kept and row.kept in (options := _read(existing_row, "options")):
            columns = {**columns, "options": {**columns["options"], row.kept: options[row.kept]}}
        wrong = {column: value for column, value in columns.items() if _read(existing_row, column) != value}
        if (ids := _read(existing_row, "external_ids")).get(UNIT) != row.unit:
            wrong["external_ids"] = {**ids, UNIT: row.unit}
        if wrong:
            changes.change.append((existing_row, wrong))
            changes.found.extend(EngineDifference(row.unit, f"{row.table} {row.key}: {column} differs")
                                 for column in wrong)

    def _refer(self, changes: NorthboundChanges, new: Mapping[Name, NorthRow], name: Name,
               wish: tuple[NorthRow, str, str | None]) -> None:
        row, column, key = wish
        target, existing_row = (REFERRED[column], key or ""), self.rows.get(name)
        target_exists = target in new or target in self.rows
        have = () if existing_row is None else _read(existing_row, column)
        if target_exists and [self.names.get(row_id) for row_id in have] != [target]:
            changes.refer.append((name, column, key))
        elif not target_exists and have:
            changes.refer.append((name, column, None))
        else:
            return
        if existing_row is not None:
            changes.found.append(EngineDifference(row.unit, f"{row.table} {row.key}: {column} differs"))

    def _gone(self, changes: NorthboundChanges, row: Any, name: Name) -> None:
        changes.drop.append(row)
        changes.found.append(EngineDifference(row.external_ids.get(UNIT, ""), f"{name[0]} {name[1]} is to go"))


def _read(row: Any, column: str) -> Any:
    """Return the value of a column as the database stores it: references as uuids, sets as sorted tuples. This reads
    the IDL's internal data, because the public attributes are slow: they also look for uncommitted changes, and at this
    point there are none."""
    datum = row._data[column]  # noqa: SLF001 - as in _hold
    if datum.type.is_map():
        return {name.value: value.value for name, value in datum.values.items()}
    atoms = tuple(sorted(atom.value for atom in datum.values))
    return atoms[0] if datum.type.is_scalar() else atoms


def write_northbound_changes(north: Northbound, changes: NorthboundChanges, transaction: Any,
                             tables: Mapping[str, Any]) -> None:
    """Write *changes* to the northbound database, in the IDL's *transaction*. *north*: the existing rows of this cloud.
    *tables*: the tables of the IDL."""
    rows_by_name: ChainMap[Name, Any] = ChainMap({}, north.rows)
    for row in changes.make:
        made = rows_by_name[row.table, row.key] = transaction.insert(tables[row.table])
        _set(made, {**row.columns, "external_ids": {UNIT: row.unit, KEY: row.key}})
    for existing_row, wrong in changes.change:
        _set(existing_row, wrong)
    _take(north, changes)
    filled: dict[Holder, list[Any]] = {}
    for holder, name in changes.put:
        filled.setdefault(holder, []).append(rows_by_name[name])
    for (table, key, column), member_rows in filled.items():
        if (table, key) in north.rows:
            for member_row in member_rows:
                rows_by_name[table, key].addvalue(column, member_row.uuid)
        else:
            setattr(rows_by_name[table, key], column, member_rows)
    for name, column, target in changes.refer:
        setattr(rows_by_name[name], column, [] if target is None else [rows_by_name[REFERRED[column], target]])


def _take(north: Northbound, changes: NorthboundChanges) -> None:
    """Remove the references in *changes.take*, and delete the rows in *changes.drop* with all references to them.
    *north*: the existing rows of this cloud."""
    dropped = {row.uuid for row in changes.drop}
    taken = [*changes.take, *((holder, row) for row in changes.drop for holder in north.holders.get(row.uuid, ()))]
    for (table, key, column), member_row in taken:
        if (keeper := north.rows[table, key]).uuid not in dropped:
            keeper.delvalue(column, member_row.uuid)
    for row in changes.drop:
        row.delete()


def _set(row: Any, columns: Mapping[str, Any]) -> None:
    for column, value in columns.items():
        setattr(row, column, list(value) if isinstance(value, tuple) else value)
