# SPDX-License-Identifier: GPL-3.0-or-later
"""What differs between the rows that are wanted and those of a northbound database, and how it is written.

Rows of ours have ``magnetar:unit`` and ``magnetar:key`` in their ``external_ids``. No other row is read as ours,
changed, or taken out of a row that holds it.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from magnetar_control.services.network.engine.engine import EngineDifference, Incomplete, Wanted

from .ovn_rows import ACL, DROP_UNIT, GROUP, HOLDERS, REFERRED, TABLES, NorthRow, always, rows

UNIT, KEY = "magnetar:unit", "magnetar:key"
#: A row of ours: table and key.
Name = tuple[str, str]
#: Table and key of the row that holds, and its column.
Holder = tuple[str, str, str]
#: Table to its columns that hold rows.
_HOLDING = {table: tuple(column for holding, column, _held in HOLDERS if holding == table) for table in TABLES}


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
    """The rows of ours that *tables* (of an IDL) have: now, and later too if it is told of each row that changes. To
    look at all of them at each change would take longer than to write it."""

    def __init__(self, tables: Mapping[str, Any]) -> None:
        self.rows: dict[Name, Any] = {}
        self.units: dict[str, dict[Name, None]] = {}
        self.spare: list[Any] = []  # a second row of one name
        self.names: dict[Any, Name] = {}
        self.holders: dict[Any, set[Holder]] = {}
        self._of: dict[Any, str] = {}  # the unit of a row
        self._held: dict[tuple[Any, str], set[Any]] = {}
        #: An IDL that has lost its connection begins with others.
        self._seen = {table: tables[table].rows for table in TABLES}
        #: It has seen something after which all rows have to be looked at again.
        self.stale = False
        for table, rows_ in self._seen.items():
            for row in rows_.values():
                self._add(table, row)

    def is_of(self, tables: Mapping[str, Any]) -> bool:
        """Whether it knows what *tables* have."""
        return not self.stale and all(tables[table].rows is rows_ for table, rows_ in self._seen.items())

    def hear(self, row: Any, changed: Collection[str] | None, *, there: bool) -> None:
        """A row has changed: *changed* are its columns, ``None`` for one that is new or has gone."""
        table = row._table  # noqa: SLF001 - a row has no other name of its table
        if self.stale or table.name not in self._seen:
            return
        if table.rows is not self._seen[table.name] or self.spare:
            self.stale = True
        elif changed is None or "external_ids" in changed:
            self._forget(row)
            if there:
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
            self.spare.append(row)
            return
        self.rows[name], self.names[row.uuid], self._of[row.uuid] = row, name, ids.get(UNIT, "")
        self.units.setdefault(self._of[row.uuid], {})[name] = None
        for column in _HOLDING.get(table, ()):
            self._hold(row, column)

    def _hold(self, row: Any, column: str) -> None:
        """Note which rows *row* holds. Read without the IDL's way to make Python of a column, and compared as the IDL
        has it (its atoms stay the same objects, of which the sets know the hashes): a row may hold many thousands."""
        place, holder = (row.uuid, column), (*self.names[row.uuid], column)
        before, now = self._held.get(place, set()), set(row._data[column].values)  # noqa: SLF001
        for one in now - before:
            self.holders.setdefault(one.value, set()).add(holder)
        for one in before - now:
            self._let_go(one.value, holder)
        self._held[place] = now

    def _let_go(self, held: Any, holder: Holder) -> None:
        if left := self.holders.get(held):
            left.discard(holder)
            if not left:
                del self.holders[held]

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
            for one in self._held.pop((row.uuid, column), ()):
                self._let_go(one.value, (*name, column))

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
        columns = row.columns
        if row.kept and row.kept in (options := _read(there, "options")):
            columns = {**columns, "options": {**columns["options"], row.kept: options[row.kept]}}
        wrong = {column: value for column, value in columns.items() if _read(there, column) != value}
        if (ids := _read(there, "external_ids")).get(UNIT) != row.unit:
            wrong["external_ids"] = {**ids, UNIT: row.unit}
        if wrong:
            changes.change.append((there, wrong))
            changes.found.extend(EngineDifference(row.unit, f"{row.table} {row.key}: {column} differs")
                                 for column in wrong)

    def _refer(self, changes: NorthboundChanges, new: Mapping[Name, NorthRow], name: Name,
               wish: tuple[NorthRow, str, str | None]) -> None:
        row, column, key = wish
        target, there = (REFERRED[column], key or ""), self.rows.get(name)
        known = target in new or target in self.rows
        have = () if there is None else _read(there, column)
        if known and [self.names.get(one) for one in have] != [target]:
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
    """What the database has: rows are their uuids, sets sorted tuples. A repair compares dozens of columns, and the
    IDL's way to make Python of one goes there and back for what a transaction has changed: here none has yet."""
    datum = row._data[column]  # noqa: SLF001 - as in _hold
    if datum.type.is_map():
        return {name.value: value.value for name, value in datum.values.items()}
    found = tuple(sorted(one.value for one in datum.values))
    return found[0] if datum.type.is_scalar() else found


def write(north: Northbound, changes: NorthboundChanges, transaction: Any, tables: Mapping[str, Any]) -> None:
    """Write *changes* in the IDL's *transaction*."""
    known: ChainMap[Name, Any] = ChainMap({}, north.rows)
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
