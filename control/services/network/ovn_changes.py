# SPDX-License-Identifier: GPL-3.0-or-later
"""What differs between the rows that are wanted and those of a northbound database, and how it is written.

Rows of ours have ``magnetar:unit`` and ``magnetar:key`` in their ``external_ids``. No other row is read as ours,
changed, or taken out of a row that holds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .engine import EngineDifference, Incomplete, Wanted
from .ovn_rows import ACL, DROP_UNIT, GROUP, HOLDERS, REFERRED, TABLES, NorthRow, always, rows

UNIT, KEY = "magnetar:unit", "magnetar:key"
#: A row of ours: table and key.
Name = tuple[str, str]
#: Table and key of the row that holds, and its column.
Holder = tuple[str, str, str]


@dataclass
class NorthboundChanges:
    """*make*, *drop*: rows; *change*: columns of rows; *put* and *take*: (holder, row); *refer*: (row, column, name of
    the row to refer to)."""

    make: list[NorthRow] = field(default_factory=list)
    change: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    drop: list[Any] = field(default_factory=list)
    put: list[tuple[Holder, Name]] = field(default_factory=list)
    take: list[tuple[Holder, Any]] = field(default_factory=list)
    refer: list[tuple[Name, str, str | None]] = field(default_factory=list)
    found: list[EngineDifference] = field(default_factory=list)


class Northbound:
    """The rows of ours that *tables* (of an IDL) have now."""

    def __init__(self, tables: Mapping[str, Any]) -> None:
        self.rows: dict[Name, Any] = {}
        self.units: dict[str, list[Name]] = {}
        self.spare: list[Any] = []  # a second row of one name
        self.names: dict[Any, Name] = {}
        for table in TABLES:
            for row in tables[table].rows.values():
                self._add(table, row)
        self.holders: dict[Any, set[Holder]] = {}
        for table, column, _held in HOLDERS:
            for row in tables[table].rows.values():
                if row.uuid in self.names:
                    for held in getattr(row, column):
                        self.holders.setdefault(held.uuid, set()).add((*self.names[row.uuid], column))

    def _add(self, table: str, row: Any) -> None:
        ids = row.external_ids
        if KEY not in ids:
            return
        name = (table, ids[KEY])
        if name in self.rows:
            self.spare.append(row)
            return
        self.rows[name], self.names[row.uuid] = row, name
        self.units.setdefault(ids.get(UNIT, ""), []).append(name)

    def changes(self, wanted: Wanted) -> NorthboundChanges:
        """What a repair does. Raises ``Incomplete`` where a row belongs to one that is neither there nor wanted."""
        new = {(row.table, row.key): row for row in self._wanted(wanted)}
        changes = NorthboundChanges()
        for name, row in new.items():
            self._one(changes, new, name, row)
        units: Iterable[str] = self.units if wanted.scope is None else {*wanted.scope, DROP_UNIT}
        for name in [name for unit in units for name in self.units.get(unit, ()) if name not in new]:
            self._gone(changes, self.rows[name], name)
        for row in self.spare if wanted.scope is None else ():
            changes.drop.append(row)
            changes.found.append(EngineDifference(row.external_ids.get(UNIT, ""),
                                                  f"{row.external_ids[KEY]} is there twice"))
        return changes

    def _wanted(self, wanted: Wanted) -> Iterator[NorthRow]:
        yield from always()
        for unit in wanted.units.values():
            yield from rows(unit)

    def _one(self, changes: NorthboundChanges, new: Mapping[Name, NorthRow], name: Name, row: NorthRow) -> None:
        there = self.rows.get(name)
        if there is None:
            changes.make.append(row)
            changes.found.append(EngineDifference(row.unit, f"{row.table} {row.key} is missing"))
        else:
            self._columns(changes, row, there)
        held = set() if there is None else self.holders.get(there.uuid, set())
        inside = {one for one in row.inside if self._known(new, one, row)}
        for one in sorted(inside - held):
            changes.put.append((one, name))
            if there is not None:
                changes.found.append(EngineDifference(row.unit, f"{row.table} {row.key} is not in {one[0]} {one[1]}"))
        for one in sorted(held - inside):
            changes.take.append((one, there))
            changes.found.append(EngineDifference(row.unit, f"{row.table} {row.key} is in {one[0]} {one[1]}"))
        for column, key in row.refs.items():
            self._refer(changes, new, name, (row, column, key))

    def _known(self, new: Mapping[Name, NorthRow], holder: Holder, row: NorthRow) -> bool:
        """Whether the holder is there, or will be. A security group that is gone holds no ports; whatever else is not
        there has to be written first."""
        if holder[:2] in new or holder[:2] in self.rows:
            return True
        if holder[0] == GROUP and row.table != ACL:
            return False
        raise Incomplete(f"{row.table} {row.key} belongs to {holder[0]} {holder[1]}, which is not there")

    def _columns(self, changes: NorthboundChanges, row: NorthRow, there: Any) -> None:
        wrong = {column: value for column, value in row.columns.items() if _read(there, column) != value}
        if there.external_ids.get(UNIT) != row.unit:
            wrong["external_ids"] = {**there.external_ids, UNIT: row.unit}
        if wrong:
            changes.change.append((there, wrong))
            changes.found.extend(EngineDifference(row.unit, f"{row.table} {row.key}: {column} differs")
                                 for column in wrong)

    def _refer(self, changes: NorthboundChanges, new: Mapping[Name, NorthRow], name: Name,
               wish: tuple[NorthRow, str, str | None]) -> None:
        row, column, key = wish
        target, there = (REFERRED[column], key or ""), self.rows.get(name)
        known = target in new or target in self.rows
        have = [] if there is None else getattr(there, column)
        if known and [self.names.get(one.uuid) for one in have] != [target]:
            changes.refer.append((name, column, key))
        elif not known and have:
            changes.refer.append((name, column, None))
        else:
            return
        if there is not None:
            changes.found.append(EngineDifference(row.unit, f"{row.table} {row.key}: {column} differs"))

    def _gone(self, changes: NorthboundChanges, row: Any, name: Name) -> None:
        changes.drop.append(row)
        changes.found.append(EngineDifference(row.external_ids.get(UNIT, ""), f"{name[0]} {name[1]} is to go"))


def _read(row: Any, column: str) -> Any:
    value = getattr(row, column)
    return tuple(sorted(value)) if isinstance(value, list) else value


def write(north: Northbound, changes: NorthboundChanges, transaction: Any, tables: Mapping[str, Any]) -> None:
    """Write *changes* in the IDL's *transaction*."""
    known = dict(north.rows)
    for row in changes.make:
        made = known[row.table, row.key] = transaction.insert(tables[row.table])
        _set(made, {**row.columns, "external_ids": {UNIT: row.unit, KEY: row.key}})
    for there, wrong in changes.change:
        _set(there, wrong)
    _take(north, changes)
    filled: dict[Holder, list[Any]] = {}
    for holder, name in changes.put:
        filled.setdefault(holder, []).append(known[name])
    for (table, key, column), held in filled.items():
        if (table, key) in north.rows:
            for one in held:
                known[table, key].addvalue(column, one.uuid)
        else:
            setattr(known[table, key], column, held)
    for name, column, target in changes.refer:
        setattr(known[name], column, [] if target is None else [known[REFERRED[column], target]])


def _take(north: Northbound, changes: NorthboundChanges) -> None:
    """Take rows out of those that hold them, and remove those that are to go."""
    dropped = {row.uuid for row in changes.drop}
    taken = [*changes.take, *((one, row) for row in changes.drop for one in north.holders.get(row.uuid, ()))]
    for (table, key, column), held in taken:
        if (keeper := north.rows[table, key]).uuid not in dropped:
            keeper.delvalue(column, held.uuid)
    for row in changes.drop:
        row.delete()


def _set(row: Any, columns: Mapping[str, Any]) -> None:
    for column, value in columns.items():
        setattr(row, column, list(value) if isinstance(value, tuple) else value)
