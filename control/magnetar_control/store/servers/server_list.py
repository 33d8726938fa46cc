# SPDX-License-Identifier: GPL-3.0-or-later
"""Lists of servers across all cells: filters, order, pages."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import ceil
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, cast, exists, func, literal_column, or_, select, true
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import Integer, String

from magnetar_control.store.engine.conditions import (
    keyset_condition,
    match_pattern,
    match_wildcards,
    order_column,
)
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.prepared import PreparedQuery
from magnetar_control.store.engine.regex import ANY_TEXT, outline_wildcards, parse_wildcards
from magnetar_control.store.engine.tables import server_mappings, server_tags, servers
from magnetar_control.store.scatter_gather import scatter_gather_cells, scatter_query
from magnetar_control.store.store import CellMapping, Store
from magnetar_core.power import SOFT_DELETED, states_of_status, tasks_with_status

from .server_candidates import candidate_conditions, changed_conditions
from .server_list_request import ServerListRequest

Condition = ColumnElement[bool]
#: Rows of the database, whose JSON documents are still text: a list passes most of them through.
Rows = Sequence[Any]
Cells = Sequence[tuple[CellMapping, Database]]
#: ``SHARING``: number of cells from which on a list first requests a part of the page from each; ``MORE``: the rows
#: that it requests beyond twice a cell's share.
SHARING, MORE = 4, 5
#: Text columns that every locale sorts by code points, because all values have the same form.
SAME = frozenset(("id", "created_at", "updated_at", "launched_at", "terminated_at"))
# Conditions of nearly every list, built once: building one takes as long as reading a row.
OF_PROJECT: Condition = servers.c.project_id == bindparam("project")
#: The same condition for SQLite, where the plus prevents the use of an index of projects.
OF_PROJECT_UNINDEXED: Condition = literal_column("+servers.project_id") == bindparam("project")
GONE, SOFT = servers.c.deleted_at.is_not(None), servers.c.vm_state == SOFT_DELETED
FOR_GOOD, NOT_DELETED, IN_USE, SOFTLY = (GONE,), (~GONE,), (~GONE, ~SOFT), (~GONE, SOFT)


@dataclass(frozen=True)
class ServerPage:
    """A page of a list of servers. *rows*: the servers, in order. *more*: whether further servers may follow.
    *missing*: for servers in cells that do not answer, only uuid, project and creation time, from the API database."""

    rows: Rows
    more: bool
    missing: Rows = ()


def fetch_server_page(store: Store, request: ServerListRequest, columns: Rows, timeout: float,
                      marker_values: tuple[Any, ...] | None = None) -> ServerPage:
    """Return a page of servers from all cells, with these *columns*. *timeout*: seconds for a cell to answer.
    *marker_values*: the values that the marker, the last server of the previous page, has in the sort columns. A server
    that is moving between cells appears once."""
    named = {column.name for column in columns}
    columns = tuple(columns) if "leaving" in named else (*columns, servers.c.leaving)
    cells = store.databases()
    query_cells = partial(_query_cells, columns=columns, marker_values=marker_values)
    answers, rows = _ask_cells(cells, request, query_cells, timeout)
    missing = [cell for cell, _database in cells if answers[cell.id] is None]
    return ServerPage(rows[:request.limit], len(rows) >= request.limit > 0,
                      _unknown(store, missing, request, request.limit - len(rows)) if missing else ())


def _ask_cells(cells: Cells, request: ServerListRequest, query_cells: Callable[..., Mapping[str, Rows | None]],
               timeout: float) -> tuple[Mapping[str, Rows | None], list[Any]]:
    """Query the *cells* for a page. Return (rows by cell id, rows of all cells merged in the list's order). A cell that
    does not answer has ``None``. *query_cells*: ``_query_cells`` with its other arguments set.

    With many cells, first request only twice the average share of a page from each cell. If all rows that a cell has
    returned belong to the page, more rows of this cell may belong to the page: then request a whole page from this
    cell.
    """
    count = max(1, len(cells) - 1)  # cell0 has few servers
    share = request.limit if count < SHARING else min(request.limit, 2 * ceil(request.limit / count) + MORE)
    began = time.monotonic()
    answers = query_cells(cells, replace(request, limit=share), timeout=timeout)
    rows = _merged([answers[cell.id] or () for cell, _database in reversed(cells)], request.sort)
    if share < request.limit:
        page = {row.id for row in rows[:request.limit]}
        short = [(cell, database) for cell, database in cells
                 if (part := answers[cell.id]) and len(part) == share and part[-1].id in page]
        if short:
            remaining = max(0.0, timeout - (time.monotonic() - began))
            answers = {**answers, **query_cells(short, request, timeout=remaining)}
            rows = _merged([answers[cell.id] or () for cell, _database in reversed(cells)], request.sort)
    return answers, rows


def _query_cells(cells: Cells, request: ServerListRequest, *, columns: tuple[Any, ...],
                 marker_values: tuple[Any, ...] | None, timeout: float) -> Mapping[str, Rows | None]:
    """Return a page of servers from each of these cells, by cell id; ``None`` for a cell that does not answer. On
    PostgreSQL, usually one statement for each cell. *columns*, *marker_values*: see ``fetch_server_page``."""
    if {database.kind for _cell, database in cells} == {"postgresql"}:
        parts = _parts(request, "postgresql")
        if len(parts) == 1 and not any(request.addresses.values()):
            sort, parameters = _unique_order(request.sort), _parameters(request, marker_values)
            query = _question(columns, sort, "postgresql", (*parts[0], *_after(sort, "postgresql", marker_values)))
            if conditions := _conditions(request, "postgresql"):
                query = PreparedQuery(query.query.where(*conditions), parameters)
            return scatter_query(cells, lambda _kind: query, parameters, timeout)
    question = partial(_rows, request=request, columns=columns, marker_values=marker_values)
    return scatter_gather_cells(cells, question, timeout)


def _merged(answered: Sequence[Rows], sort: Sequence[tuple[str, bool]]) -> list[Any]:
    """Merge rows of several cells (*answered*) in the order *sort*, which has (column, descending). If a server moves
    between two cells and both cells have its row, only the target cell's row is returned."""
    answered = [rows for rows in answered if rows]
    if len(answered) < 2:
        return list(answered[0]) if answered else []
    each = sorted((row for cell_rows in answered for row in cell_rows), key=lambda row: row.leaving is not None)
    rows = list({row.id: row for row in reversed(each)}.values())
    names = [name for name, _descending in sort]
    if len({descending for _name, descending in sort}) == 1 and not any(servers.c[name].nullable for name in names):
        rows.sort(key=attrgetter(*names), reverse=sort[0][1])
        return rows
    for name, descending in reversed(sort):
        rows.sort(key=lambda row, name=name: _null(getattr(row, name)), reverse=descending)  # type: ignore[misc]
    return rows


def _rows(database: Database, *, request: ServerListRequest, columns: tuple[Any, ...],
          marker_values: tuple[Any, ...] | None) -> Rows:
    """Return a page of the servers of one cell after the marker, with the columns *columns*. *request* decides whether
    live servers, deleted servers or both are listed. *marker_values*: see ``fetch_server_page``."""
    sort = _unique_order(request.sort)
    conditions, after = _conditions(request, database.kind), _after(sort, database.kind, marker_values)
    parameters = _parameters(request, marker_values)
    answered: list[Rows] = []
    with database.read() as connection:
        for part in _parts(request, database.kind):
            further = conditions + candidate_conditions(connection, request, part[-1] is GONE)
            if request.project and _sorts_in_memory(sort, database.kind):
                by_ids = _question_by_ids(columns, sort, database.kind, (*part, *after), further)
                rows = connection.execute(by_ids, parameters).all()
            else:
                question = _question(columns, sort, database.kind, (*part, *after))
                rows = question.all(connection, parameters) if not further else connection.execute(
                    question.query.where(*further), parameters).all()
            answered += [rows] if rows else []
    return _merged(answered, sort)[:request.limit]


def _unique_order(sort: Sequence[tuple[str, bool]]) -> tuple[tuple[str, bool], ...]:
    """Return *sort* up to the uuid column. The uuid makes the order unique, so later columns have no effect. *sort* has
    (column, descending)."""
    names = [name for name, _descending in sort]
    return tuple(sort[:names.index("id") + 1] if "id" in names else sort)


def _after(sort: tuple[tuple[str, bool], ...], kind: str,
           marker_values: tuple[Any, ...] | None) -> tuple[Condition, ...]:
    """Return the SQL conditions for servers after the marker in the order *sort*; empty without a marker.
    *marker_values*: the marker's values in the sort columns. *kind*: ``sqlite`` or ``postgresql``."""
    if marker_values is None:
        return ()
    return (_after_marker(sort, kind, tuple(value is None for value in marker_values[:len(sort)])),)


@lru_cache(maxsize=200)
def _after_marker(sort: tuple[tuple[str, bool], ...], kind: str, empty: tuple[bool, ...]) -> Condition:
    """Return the SQL condition for servers after the marker in the order *sort*. *kind*: ``sqlite`` or ``postgresql``.
    *empty*: for each sort column, whether the marker's value is null. Other values of the marker are parameters, so the
    condition can be cached."""
    values = [None if is_null else bindparam(f"after_{name}", type_=servers.c[name].type)
              for (name, _descending), is_null in zip(sort, empty, strict=True)]
    order = [(_sorts(name, kind), descending) for name, descending in sort]
    return keyset_condition(order, values, nulls=any(servers.c[name].nullable for name, _descending in sort))


def _parameters(request: ServerListRequest, marker_values: tuple[Any, ...] | None) -> dict[str, Any]:
    """Return the parameters of a page's query: limit, project, and those of *marker_values* (the marker's values in the
    sort columns) that are not null."""
    after = {f"after_{name}": value for (name, _descending), value in zip(
        _unique_order(request.sort), marker_values or (), strict=False) if value is not None}
    return {"most": request.limit, "project": request.project, **after}


def _question_by_ids(columns: tuple[Any, ...], sort: tuple[tuple[str, bool], ...], kind: str,
                     conditions: tuple[Condition, ...], further: Sequence[Condition]) -> Select[Any]:
    """Return the query of a page. The query first sorts only uuids of servers, and then reads the whole rows of the
    page. Servers must fulfil *conditions*, the part of the query that is cached, and *further*. *kind*: ``sqlite`` or
    ``postgresql``."""
    ids = _question((servers.c.id,), sort, kind, conditions).query.where(*further).correlate(None)
    by_ids: Select[Any] = _question(columns, sort, kind, ()).query.where(servers.c.id.in_(ids))
    return by_ids


def _sorts_in_memory(sort: tuple[tuple[str, bool], ...], kind: str) -> bool:
    """Return whether the database sorts a project's servers in memory for the order *sort*, because no index has this
    order. The caller then sorts only uuids, because whole rows would take much memory. *kind*: ``sqlite`` or
    ``postgresql``."""
    return kind == "sqlite" and sort[0][0] not in ("created_at", "updated_at")


@lru_cache(maxsize=200)
def _question(columns: tuple[Any, ...], sort: tuple[tuple[str, bool], ...], kind: str,
              conditions: tuple[Condition, ...]) -> PreparedQuery:
    """Return the query of a page of servers that fulfil *conditions*, in the order *sort*. Cached, because building the
    query takes longer than reading a short list. *kind*: ``sqlite`` or ``postgresql``."""
    question: Select[Any] = select(*columns).where(*conditions).limit(bindparam("most", type_=Integer))
    for name, descending in sort:
        question = question.order_by(order_column(_sorts(name, kind), descending,
                                                  nullable=bool(servers.c[name].nullable)))
    return PreparedQuery(question)


def _sorts(name: str, kind: str) -> Any:
    """Return the ORDER BY expression for the column *name* on the database *kind*. Text is sorted by code points on
    both databases, because ``fetch_server_page`` merges the pages of all cells. In PostgreSQL, text columns therefore
    need the collation ``C``, except for times and uuids, which every locale sorts by code points: without a collation,
    the index of the column can be used."""
    column = servers.c[name]
    if kind == "postgresql" and isinstance(column.type, String) and name not in SAME:
        return column.collate("C")
    return column


def _null(value: Any) -> tuple[bool, Any]:
    return (value is not None, value if value is not None else 0)


def _unknown(store: Store, cells: Sequence[CellMapping], request: ServerListRequest, room: int) -> Rows:
    """Return the mappings (uuid, project, creation time) of servers in *cells*, which do not answer; at most *room* of
    them."""
    mine = server_mappings.c.project_id == request.project if request.project and not request.all_projects else true()
    with store.api.read() as connection:
        return connection.execute(select(server_mappings).where(
            server_mappings.c.cell_id.in_([cell.id for cell in cells]), ~server_mappings.c.deleted, mine,
        ).limit(max(room, 0))).all()


# Conditions of filters ------------------------------------------------------------------------------------------
def _parts(request: ServerListRequest, kind: str) -> list[tuple[Condition, ...]]:
    """Return lists of SQL conditions, one for each statement to execute: live and deleted servers are read by separate
    statements, because they have separate indexes. Live servers come first, because a server may be deleted between the
    statements. Soft-deleted servers count as deleted. *kind*: ``sqlite`` or ``postgresql``."""
    mine = (OF_PROJECT,) if request.project else ()
    named = request.equal.get("vm_state") == SOFT_DELETED or "SOFT_DELETED" in map(str.upper, request.statuses or ())
    if request.deleted:
        parts: list[tuple[Condition, ...]] = [FOR_GOOD]
        if request.soft_deleted is not False:  # few servers: SQLite would rather read all of the project
            by_state = (OF_PROJECT_UNINDEXED,) if mine and kind == "sqlite" else mine
            return [(*by_state, *SOFTLY), (*mine, *FOR_GOOD)]
    elif request.since or request.before:
        parts = [NOT_DELETED, FOR_GOOD]
    else:
        parts = [NOT_DELETED if request.soft_deleted or named else IN_USE]
    return [(*mine, *part) for part in parts]


def _conditions(request: ServerListRequest, kind: str) -> list[Condition]:
    """Return the SQL conditions for the filters of *request*, except for those of ``_parts`` (project, live or
    deleted). *kind*: ``sqlite`` or ``postgresql``."""
    conditions = [servers.c[column] == value for column, value in request.equal.items()]
    conditions += [match_pattern(kind, servers.c[column], pattern) for column, pattern in request.matching]
    conditions += [_with_address(kind, version, pattern) for version, pattern in request.addresses.items() if pattern]
    for tags, every, negated in request.tags:
        sets = [[tag] for tag in tags] if every else [tags]
        conditions.append(or_(*(~_test_tags(each) for each in sets)) if negated else and_(*(
            _test_tags(each) if kind == "sqlite" else _has_tag(each) for each in sets)))
    if request.statuses:
        conditions += _with_statuses(request.statuses)
    if request.locked is not None:
        conditions.append(servers.c.locked_by.is_not(None) if request.locked else servers.c.locked_by.is_(None))
    if request.zone is not None:  # servers without a host: the requested zone
        conditions.append(or_(servers.c.host.in_(request.zone_hosts),
                              and_(servers.c.host.is_(None), servers.c.availability_zone == request.zone)))
    return conditions + changed_conditions(request)


def _with_address(kind: str, version: int, pattern: str) -> Condition:
    """Return the SQL condition that a server has an IP address of this *version* (4 or 6) that matches the regular
    expression *pattern*. *kind*: ``sqlite`` or ``postgresql``."""
    if kind == "postgresql":
        each = func.jsonb_path_query(cast(servers.c.addresses, JSONB), literal_column(
            "'$.*[*].addr'::jsonpath")).table_valued("address", name="address")
        address: Any = each.c.address.op("#>>", return_type=String())(literal_column("'{}'::text[]"))
        is_address: Condition = true()
    else:
        each = func.json_tree(servers.c.addresses).table_valued("key", "value", name="address")
        address, is_address = cast(each.c.value, String), each.c.key == "addr"
    six = address.contains(":")
    matches: Condition = exists(select(literal_column("1")).select_from(each).where(
        is_address, six if version == 6 else ~six, match_pattern(kind, address, pattern)))
    # Most servers are refused by their text, which takes a tenth of the time of parsing it.
    if (parts := parse_wildcards(pattern) or outline_wildcards(pattern)) is not None:
        matches = and_(match_wildcards(kind, servers.c.addresses, [ANY_TEXT, *parts, ANY_TEXT]), matches)
    return matches


def _with_statuses(statuses: Sequence[str]) -> list[Condition]:
    """Return the SQL conditions that a server has one of *statuses*, status values of Nova's API such as ACTIVE.

    If all of them imply certain task_states (as RESIZE does), a condition on the task_state is added, because the index
    of this column finds the few servers with a task.
    """
    alternatives: list[Condition] = []
    all_tasks: set[str] | None = set()
    for status in statuses:
        for vm_state, tasks in states_of_status(status.upper()):
            fits: Condition = servers.c.vm_state == vm_state
            if tasks is not None:
                fits &= servers.c.task_state.in_(tasks)
            elif tasks_with_status(vm_state):
                fits &= servers.c.task_state.is_(None) | servers.c.task_state.not_in(tasks_with_status(vm_state))
            alternatives.append(fits)
            all_tasks = None if tasks is None or all_tasks is None else all_tasks.union(tasks)
    return [or_(*alternatives), *([servers.c.task_state.in_(sorted(all_tasks))] if all_tasks else [])]


def _has_tag(tags: Sequence[str]) -> Condition:
    """Return the SQL condition that a server has one of *tags*. It is an IN subquery, so PostgreSQL can begin with the
    rows of the tags or with the servers, whichever are fewer."""
    return servers.c.id.in_(select(server_tags.c.server_id).where(server_tags.c.tag.in_(tags)))


def _test_tags(tags: Sequence[str]) -> Condition:
    """Return the SQL condition that a server has one of *tags*, as a correlated EXISTS, which is tested for each
    server. Used on SQLite and for negated filters; otherwise ``_has_tag`` is used."""
    return exists().where(server_tags.c.server_id == servers.c.id, server_tags.c.tag.in_(tags))
