# SPDX-License-Identifier: GPL-3.0-or-later
"""The servers that a filter accepts, if they are few: found by the filter's index, before a list reads and sorts them.

SQLite has no statistics that tell a frequent value from a rare one, so it reads all servers in the order of the list
and tests each one. With few candidates, the list reads only these. PostgreSQL chooses by its statistics, except for
addresses, which are no column.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import orjson
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    String,
    any_,
    bindparam,
    func,
    literal,
    literal_column,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY

from magnetar_control.store.engine.conditions import match_pattern
from magnetar_control.store.engine.regex import ANY_CHAR, ANY_TEXT, parse_wildcards
from magnetar_control.store.engine.tables import server_addresses, server_tags, servers

from .server_list_request import ServerListRequest

Condition = ColumnElement[bool]
#: Most candidates. With more of them a list is read in its order: then it finds one among about a hundred servers.
MOST = 1000
#: The number of changed servers of all projects that are read for the candidates of one project.
MOST_CHANGED = 4 * MOST
NUMBERS = tuple(map(str, range(256)))
LIVE, GONE = servers.c.deleted_at.is_(None), servers.c.deleted_at.is_not(None)


def candidate_conditions(connection: Connection, request: ServerListRequest, gone: bool) -> list[Condition]:
    """Return a list with one condition that limits the result to the servers that an indexed filter of *request*
    accepts; an empty list if no filter has an index, or if the filter accepts more than ``MOST`` servers. *gone*: for a
    list of deleted servers instead of live ones."""
    kind = connection.dialect.name
    query = _address_query(kind, request)
    if query is None and kind == "sqlite":
        query = _candidate_query(connection, request, gone)
    if query is None:
        return []
    ids = list(connection.execute(query.limit(MOST + 1)).scalars())
    if len(ids) > MOST:
        return []
    ids = list(dict.fromkeys(ids))  # a server may have several addresses that match
    if kind == "postgresql":
        return [servers.c.id == any_(literal(ids, ARRAY(String)))]
    each = func.json_each(orjson.dumps(ids).decode()).table_valued("value", name="candidate")
    return [servers.c.id.in_(select(each.c.value))]


def _address_query(kind: str, request: ServerListRequest) -> Select[Any] | None:
    """Return the query for ids of servers with a requested address, perhaps several times each; ``None`` without such a
    filter. For a part of an address, the query tests all addresses of the IP version, or on SQLite only the project's.
    On PostgreSQL return ``None`` for a part of an address in one project, because reading the project's servers is as
    fast."""
    for version, pattern in request.addresses.items():
        # Not a parameter: a general plan would not find the index of IPv6 addresses.
        found = select(server_addresses.c.server_id).where(server_addresses.c.version == literal_column(f"{version:d}"))
        if not pattern:
            continue
        if version == 4 and (addresses := possible_addresses(pattern)) is not None:
            return found.where(server_addresses.c.address.in_(addresses))
        found = found.where(match_pattern(kind, server_addresses.c.address, pattern))
        if not request.project:
            return found
        if kind == "sqlite":
            return found.join_from(servers, server_addresses, server_addresses.c.server_id == servers.c.id).where(
                servers.c.project_id == request.project, servers.c.deleted_at.is_(None))
    return None


def possible_addresses(pattern: str) -> list[str] | None:
    """Return all IPv4 addresses that the expression *pattern* accepts, if it consists of four numbers between dots, the
    first and the last possibly cut off; ``None`` for any other expression.

    A dot in an expression matches any character, also a digit: "1.5" accepts 115. Return ``None`` for such an
    expression."""
    parts = parse_wildcards(pattern)
    if parts is None:
        return None
    begins, ends = parts[:1] != [ANY_TEXT], parts[-1:] != [ANY_TEXT]
    inner = parts[not begins:len(parts) - (not ends)]
    texts = "".join("." if part == ANY_CHAR else part for part in inner).split(".")
    if len(texts) != 4 or not all(text.isascii() and text.isdigit() for text in texts) or any(
            len(left) == len(right) == 1 and left in "12" for left, right in pairwise(texts)):
        return None
    first = [number for number in NUMBERS if (number == texts[0] if begins else number.endswith(texts[0]))]
    last = [number for number in NUMBERS if (number == texts[3] if ends else number.startswith(texts[3]))]
    middle = f".{texts[1]}.{texts[2]}."
    return [left + middle + right for left in first for right in last]


def _candidate_query(connection: Connection, request: ServerListRequest, gone: bool) -> Select[Any] | None:
    """Return the query for ids that only reads an index; ``None`` if *request* has no filter with an index, or if so
    many servers have changed that the query would read too many rows."""
    for tags, every, negated in request.tags:
        if not negated:
            return select(server_tags.c.server_id).where(server_tags.c.tag.in_(tags[:1] if every else tags))
    alive = GONE if gone else LIVE
    if request.since or request.before:
        changed = (alive, *changed_conditions(request))
        if _are_more(connection, changed, MOST_CHANGED if request.project else MOST):
            return None
        # The plus keeps SQLite from reading all servers of the project.
        mine = [literal_column("+servers.project_id") == request.project] if request.project else []
        return select(servers.c.id).where(*changed, *mine)
    named = [match_pattern("sqlite", servers.c.name, pattern) for column, pattern in request.matching
             if column == "name"]
    return select(servers.c.id).where(alive, *named) if named and not gone and not request.project else None


def _are_more(connection: Connection, conditions: tuple[Condition, ...], count: int) -> bool:
    """Return whether more than *count* servers fulfil the conditions. Reads at most one row more than *count*."""
    first = select(literal_column("1")).select_from(servers).where(*conditions).limit(bindparam("most")).subquery()
    return bool(connection.execute(select(func.count()).select_from(first), {"most": count + 1}).scalar_one() > count)


def changed_conditions(request: ServerListRequest) -> list[Condition]:
    """Return the conditions that a server was last changed within the bounds of *request*; empty without bounds."""
    return [*([servers.c.updated_at >= request.since] if request.since else []),
            *([servers.c.updated_at <= request.before] if request.before else [])]
