# SPDX-License-Identifier: GPL-3.0-or-later
"""Lists of servers over all cells: filters, order, pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, cast, exists, func, literal_column, or_, select, true
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import Integer, String

from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.paging import beyond
from magnetar_control.store.engine.tables import server_mappings, servers
from magnetar_control.store.scatter_gather import scatter_gather
from magnetar_control.store.store import CellMapping, Store
from magnetar_core.power import SOFT_DELETED, states_of, with_word

Condition = ColumnElement[bool]
Rows = Sequence[Any]
#: Text columns that every locale sorts by code points, since all values have one form.
SAME = frozenset(("id", "created_at", "updated_at", "launched_at", "terminated_at"))
NEWEST_FIRST = (("created_at", True), ("id", True))
# Conditions of nearly every list, made once: to make one takes as long as to read a row.
OF_PROJECT: Condition = servers.c.project_id == bindparam("project")
GONE, SOFT = servers.c.deleted_at.is_not(None), servers.c.vm_state == SOFT_DELETED
ALL_GONE, FOR_GOOD, KEPT, IN_USE = (GONE | SOFT,), (GONE,), (~GONE,), (~GONE, ~SOFT)


@dataclass(kw_only=True)
class ServerListRequest:
    """A page of servers. *limit*: how many. *sort*: (column, descending). *marker*: the uuid of the last server of the
    page before. *project*: whose servers; only who may list *all_projects* may ask for those of others. Filters:
    *equal*: column to value; *matching*: (column, regular expression, see ``regex``); *addresses*: IP version to a
    regular expression; *tags*: (tags, whether all of them, whether none of that); *statuses*: Nova's words, of which
    one fits, or none at all when it is empty; *zone*, whose hosts are *zone_hosts*; *since* and *before*: when the
    server last changed. *soft_deleted*: whether soft-deleted servers are listed; when left out, only beside *deleted*
    ones, with *since* and *before*, and where *statuses* or *equal* ask for them."""

    limit: int
    sort: Sequence[tuple[str, bool]] = NEWEST_FIRST
    marker: str | None = None
    all_projects: bool = False
    project: str | None = None
    equal: dict[str, Any] = field(default_factory=dict)
    matching: list[tuple[str, str]] = field(default_factory=list)
    addresses: dict[int, str] = field(default_factory=dict)
    tags: list[tuple[Sequence[str], bool, bool]] = field(default_factory=list)
    statuses: Sequence[str] | None = None
    locked: bool | None = None
    zone: str | None = None
    zone_hosts: Sequence[str] = ()
    since: str | None = None
    before: str | None = None
    deleted: bool = False
    soft_deleted: bool | None = None


@dataclass(frozen=True)
class ServerPage:
    """The rows in order, whether there may be more, and mappings (id, project, created) of servers in cells that do not
    answer."""

    rows: Rows
    more: bool
    missing: Rows = ()


def page(store: Store, wanted: ServerListRequest, columns: Rows, timeout: float,
         after: tuple[Any, ...] | None = None) -> ServerPage:
    """A page of servers with these *columns*; *after*: what the marker sorts by. A server that moves from cell0 to its
    cell, or to another cell, appears once."""
    named = {column.name for column in columns}
    columns = tuple(columns) if "leaving" in named else (*columns, servers.c.leaving)
    asked = partial(_rows, wanted=wanted, columns=columns, after=after)
    answers = scatter_gather(store, asked, timeout, cell0=True)
    results = [(cell, answers[cell.id]) for cell, _database in store.databases() if cell.id in answers]
    told = [found for _cell, found in reversed(results) if found]
    rows = list(told[0]) if len(told) == 1 else _merged(told, wanted.sort)
    missing = [cell for cell, found in results if found is None]
    return ServerPage(rows[:wanted.limit], len(rows) >= wanted.limit > 0,
                      _unknown(store, missing, wanted, wanted.limit - len(rows)) if missing else ())


def _merged(told: Sequence[Rows], sort: Sequence[tuple[str, bool]]) -> list[Any]:
    """The rows of several cells in order, each server once: of one that leaves its cell, the row where it goes to."""
    each = sorted((row for found in told for row in found), key=lambda row: row.leaving is not None)
    rows = list({row.id: row for row in reversed(each)}.values())
    for name, descending in reversed(sort):
        rows.sort(key=lambda row, name=name: _null(getattr(row, name)), reverse=descending)  # type: ignore[misc]
    return rows


def _rows(database: Database, wanted: ServerListRequest, columns: tuple[Any, ...],
          after: tuple[Any, ...] | None) -> Rows:
    conditions = _conditions(wanted, database.kind)
    if after is not None:
        order = [(_sorts(name, database.kind), descending) for name, descending in wanted.sort]
        conditions.append(beyond(order, after, nulls=True))
    question = _question(columns, tuple(wanted.sort), database.kind, _common(wanted))
    if conditions:
        question = question.where(*conditions)
    with database.read() as connection:
        return connection.execute(question, {"most": wanted.limit, "project": wanted.project}).all()


@lru_cache(maxsize=200)
def _question(columns: tuple[Any, ...], sort: tuple[tuple[str, bool], ...], kind: str,
              conditions: tuple[Condition, ...]) -> Select[Any]:
    """The common part of lists, cached: naming all columns takes longer than a short list."""
    question: Select[Any] = select(*columns).where(*conditions).limit(bindparam("most", type_=Integer))
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


def _null(value: Any) -> tuple[bool, Any]:
    return (value is not None, value if value is not None else 0)


def _unknown(store: Store, cells: Sequence[CellMapping], wanted: ServerListRequest, room: int) -> Rows:
    """Mappings of servers in cells that do not answer."""
    mine = server_mappings.c.project_id == wanted.project if wanted.project and not wanted.all_projects else true()
    with store.api.read() as connection:
        return connection.execute(select(server_mappings).where(
            server_mappings.c.cell_id.in_([cell.id for cell in cells]), ~server_mappings.c.deleted, mine,
        ).limit(max(room, 0))).all()


# Conditions of filters ------------------------------------------------------------------------------------------
def _common(wanted: ServerListRequest) -> tuple[Condition, ...]:
    """Whose servers, and whether deleted ones, or those that are not; soft-deleted ones are with the former."""
    mine = (OF_PROJECT,) if wanted.project else ()
    if wanted.deleted:
        return (*mine, *(FOR_GOOD if wanted.soft_deleted is False else ALL_GONE))
    if wanted.since or wanted.before:
        return mine
    named = wanted.equal.get("vm_state") == SOFT_DELETED or "SOFT_DELETED" in map(str.upper, wanted.statuses or ())
    return (*mine, *(KEPT if wanted.soft_deleted or named else IN_USE))


def _conditions(wanted: ServerListRequest, kind: str) -> list[Condition]:
    """What the rows must fit besides, for an engine."""
    found = [servers.c[column] == value for column, value in wanted.equal.items()]
    found += [servers.c[column].regexp_match(pattern) for column, pattern in wanted.matching]
    found += [_with_address(kind, version, pattern) for version, pattern in wanted.addresses.items() if pattern]
    for tags, every, negated in wanted.tags:
        each = [_has_tag(kind, tag, at) for at, tag in enumerate(tags)]
        fits = and_(*each) if every else or_(*each)
        found.append(~fits if negated else fits)
    if wanted.statuses:
        found.append(or_(*(one for status in wanted.statuses for one in _with_status(status))))
    if wanted.locked is not None:
        found.append(servers.c.locked_by.is_not(None) if wanted.locked else servers.c.locked_by.is_(None))
    if wanted.zone is not None:  # without a host: who asked for the zone
        found.append(or_(servers.c.host.in_(wanted.zone_hosts),
                         and_(servers.c.host.is_(None), servers.c.availability_zone == wanted.zone)))
    if wanted.since or wanted.before:  # to make the words costs a short list as much as the rest
        changed = func.coalesce(servers.c.updated_at, servers.c.created_at)
        found += [changed >= wanted.since] if wanted.since else []
        found += [changed <= wanted.before] if wanted.before else []
    return found


def _with_address(kind: str, version: int, pattern: str) -> Condition:
    """An IP address of this version matches a regular expression."""
    if kind == "postgresql":
        each = func.jsonb_path_query(cast(servers.c.addresses, JSONB), literal_column(
            "'$.*[*].addr'::jsonpath")).table_valued("address", name="address")
        address: Any = each.c.address.op("#>>", return_type=String())(literal_column("'{}'::text[]"))
        known: Condition = true()
    else:
        each = func.json_tree(servers.c.addresses).table_valued("key", "value", name="address")
        address, known = cast(each.c.value, String), each.c.key == "addr"
    six = address.contains(":")
    return exists(select(literal_column("1")).select_from(each).where(
        known, six if version == 6 else ~six, address.regexp_match(pattern)))


def _with_status(word: str) -> list[Condition]:
    """The states of which a server with this status word has one."""
    found: list[Condition] = []
    for vm_state, tasks in states_of(word.upper()):
        fits: Condition = servers.c.vm_state == vm_state
        if tasks is not None:
            fits &= servers.c.task_state.in_(tasks)
        elif with_word(vm_state):
            fits &= servers.c.task_state.is_(None) | servers.c.task_state.not_in(with_word(vm_state))
        found.append(fits)
    return found


def _has_tag(kind: str, tag: str, at: int) -> Condition:
    if kind == "postgresql":
        return func.jsonb_exists(cast(servers.c.tags, JSONB), tag)
    each = func.json_each(servers.c.tags).table_valued("value", name=f"tag{at}")
    return exists(select(literal_column("1")).select_from(each).where(each.c.value == tag))
