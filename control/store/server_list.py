# SPDX-License-Identifier: GPL-3.0-or-later
"""Lists of servers over all cells: filters, order, pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    String,
    and_,
    bindparam,
    cast,
    exists,
    func,
    literal,
    literal_column,
    or_,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import JSONB

from magnetar_core.power import states_of, with_word

from .database import Database
from .scatter_gather import scatter_gather
from .store import Cell, Store
from .tables import server_mappings, servers

Condition = ColumnElement[bool]
#: Text columns that every locale sorts by code points, since all values have one form.
SAME = frozenset(("id", "created_at", "updated_at", "launched_at", "terminated_at"))


@dataclass
class ServerQuery:
    """*filters*: functions that make a condition for an engine. *sort*: (column, descending). *after*: values of the
    marker's sort columns."""

    columns: Sequence[Any]
    limit: int
    sort: Sequence[tuple[str, bool]]
    filters: list[Callable[[str], Condition]] = field(default_factory=list)
    after: tuple[Any, ...] | None = None
    project: str | None = None
    timeout: float = 60.0
    needs: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Page:
    """The rows in order, whether there may be more, and mappings (id, project, created) of servers in cells that do not
    answer."""

    rows: Sequence[Any]
    more: bool
    missing: Sequence[Any] = ()


def page(store: Store, wanted: ServerQuery) -> Page:
    """A page of servers. A server that moves from cell0 to its cell appears once."""
    answers = scatter_gather(store, partial(_rows, wanted=wanted), wanted.timeout, cell0=True)
    results = [(cell, answers[cell.id]) for cell, _database in store.databases() if cell.id in answers]
    rows, seen, merged = [], set(), len([1 for _cell, found in results if found]) > 1
    for _cell, found in reversed(results):  # cell0 last: its row of a server that has moved is older
        for row in found or ():
            if row.id not in seen:
                seen.add(row.id)
                rows.append(row)
    if merged:
        for name, descending in reversed(wanted.sort):
            rows.sort(key=lambda row, name=name: _null(getattr(row, name)), reverse=descending)  # type: ignore[misc]
    missing = [cell for cell, found in results if found is None]
    return Page(rows[:wanted.limit], len(rows) >= wanted.limit > 0,
                _unknown(store, missing, wanted, wanted.limit - len(rows)) if missing else ())


def _rows(database: Database, wanted: ServerQuery) -> Sequence[Any]:
    conditions = [make(database.kind) for make in wanted.filters]
    if wanted.after is not None:
        order = [(_sorts(name, database.kind), descending) for name, descending in wanted.sort]
        conditions.append(_beyond(order, wanted.after))
    question = _question(tuple(wanted.columns), tuple(wanted.sort), database.kind).where(*conditions)
    with database.read() as connection:
        return connection.execute(question, {"most": wanted.limit}).all()


@lru_cache(maxsize=200)
def _question(columns: tuple[Any, ...], sort: tuple[tuple[str, bool], ...], kind: str) -> Select[Any]:
    """The common part of lists, cached: naming all columns takes longer than a short list."""
    question: Select[Any] = select(*columns).limit(bindparam("most", type_=Integer))
    for name, descending in sort:
        column = _sorts(name, kind)
        question = question.order_by(column.desc().nulls_last() if descending else column.asc().nulls_first())
    return question


def _sorts(name: str, kind: str) -> Any:
    """The column for ORDER BY, so that each cell sorts as ``page`` merges: by code points, as SQLite and Python do.
    PostgreSQL would sort by its locale; moments and uuids sort the same, and can use their index."""
    column = servers.c[name]
    if kind == "postgresql" and isinstance(column.type, String) and name not in SAME:
        return column.collate("C")
    return column


def _beyond(order: Sequence[tuple[Any, bool]], values: Sequence[Any]) -> Condition:
    """The condition of rows after the marker; null sorts first."""
    found: list[Condition] = []
    for at, (column, descending) in enumerate(order):
        same = [_same(before, value) for (before, _d), value in zip(order[:at], values, strict=False)]
        value = values[at]
        if value is None:
            further: Condition = literal(False).is_(True) if descending else column.is_not(None)
        else:
            further = or_(column < value, column.is_(None)) if descending else column > value
        found.append(and_(*same, further))
    return or_(*found)


def _same(column: Any, value: Any) -> Condition:
    return column.is_(None) if value is None else column == value  # type: ignore[no-any-return]


def _null(value: Any) -> tuple[bool, Any]:
    return (value is not None, value if value is not None else 0)


def _unknown(store: Store, cells: Sequence[Cell], wanted: ServerQuery, room: int) -> Sequence[Any]:
    """Mappings of servers in cells that do not answer."""
    mine = server_mappings.c.project_id == wanted.project if wanted.project else true()
    with store.api.read() as connection:
        return connection.execute(select(server_mappings).where(
            server_mappings.c.cell_id.in_([cell.id for cell in cells]), ~server_mappings.c.deleted, mine,
        ).limit(max(room, 0))).all()


# Conditions of filters ------------------------------------------------------------------------------------------
def plain(column: str, value: Any) -> Callable[[str], Condition]:
    """The column has this value."""
    return lambda _kind: servers.c[column] == value


def among(column: str, values: Sequence[Any]) -> Callable[[str], Condition]:
    """The column has one of these values."""
    return lambda _kind: servers.c[column].in_(values)


def matching(column: str, pattern: str) -> Callable[[str], Condition]:
    """The column matches a regular expression (``regex``)."""
    return lambda _kind: servers.c[column].regexp_match(pattern)


def with_address(version: int, pattern: str) -> Callable[[str], Condition]:
    """An IP address of this version matches a regular expression; an empty one does not filter, as in Nova."""
    def condition(kind: str) -> Condition:
        if not pattern:
            return true()
        if kind == "postgresql":
            each = func.jsonb_path_query(cast(servers.c.addresses, JSONB), literal_column(
                "'$.*[*].addr'::jsonpath")).table_valued("address", name="address")
            address: Any = each.c.address.op("#>>", return_type=String())(literal_column("'{}'::text[]"))
            known: Condition = true()
        else:
            each = func.json_tree(servers.c.addresses).table_valued("key", "value", name="address")
            address, known = cast(each.c.value, String), each.c.key == "addr"
        six = address.contains(":")
        return exists(select(literal(1)).select_from(each).where(
            known, six if version == 6 else ~six, address.regexp_match(pattern)))

    return condition


def word(status: str) -> Callable[[str], Condition] | None:
    """The server has a status word; ``None`` when there is no such word."""
    states = states_of(status.upper())
    if not states:
        return None
    found: list[Condition] = []
    for vm_state, tasks in states:
        if tasks is not None:
            found.append(and_(servers.c.vm_state == vm_state, servers.c.task_state.in_(tasks)))
        elif with_word(vm_state):
            found.append(and_(servers.c.vm_state == vm_state, or_(
                servers.c.task_state.is_(None), servers.c.task_state.not_in(with_word(vm_state)))))
        else:
            found.append(servers.c.vm_state == vm_state)
    return lambda _kind: or_(*found)


def tagged(tags: Sequence[str], every: bool, negated: bool) -> Callable[[str], Condition]:
    """The server has all (*every*) or one of the tags; *negated*: it has not."""
    def condition(kind: str) -> Condition:
        each = [_has_tag(kind, tag, at) for at, tag in enumerate(tags)]
        found = and_(*each) if every else or_(*each)
        return ~found if negated else found

    return condition


def _has_tag(kind: str, tag: str, at: int) -> Condition:
    if kind == "postgresql":
        return func.jsonb_exists(cast(servers.c.tags, JSONB), tag)
    each = func.json_each(servers.c.tags).table_valued("value", name=f"tag{at}")
    return exists(select(literal(1)).select_from(each).where(each.c.value == tag))


def with_metadata(wanted: dict[str, Any]) -> Callable[[str], Condition]:
    """The server has these metadata."""
    def condition(kind: str) -> Condition:
        if kind == "postgresql":
            return and_(*(cast(servers.c.metadata, JSONB)[key].astext == str(value) for key, value in wanted.items()))
        return and_(*(cast(func.json_extract(servers.c.metadata, "$." + json.dumps(key)), String) == str(value)
                      for key, value in wanted.items()))

    return condition


def changed(since: str | None, before: str | None) -> Callable[[str], Condition]:
    """The server changed in a span of time."""
    moment = func.coalesce(servers.c.updated_at, servers.c.created_at)

    def condition(_kind: str) -> Condition:
        found = []
        if since:
            found.append(moment >= since)
        if before:
            found.append(moment <= before)
        return and_(*found)

    return condition


def deleted(value: bool) -> Callable[[str], Condition]:
    """The server is deleted, or is not."""
    return lambda _kind: servers.c.deleted_at.is_not(None) if value else servers.c.deleted_at.is_(None)
