# SPDX-License-Identifier: GPL-3.0-or-later
"""Candidates for a list of servers: the servers that an indexed filter accepts. If they are few, the list reads only
these.

SQLite has no statistics that tell a frequent value from a rare one, so it would read all servers in the order of the
list and test each one. PostgreSQL chooses by its statistics, except for addresses, which are not a column of
``servers``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import Any

import orjson
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    String,
    any_,
    bindparam,
    column,
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
#: The most beginnings of addresses that a query searches for.
MOST_PREFIXES = 8000
#: A character that sorts after the digits and the dot of an IPv4 address.
AFTER = ":"
NUMBERS = tuple(map(str, range(256)))
LIVE, GONE = servers.c.deleted_at.is_(None), servers.c.deleted_at.is_not(None)


def candidate_conditions(connection: Connection, request: ServerListRequest, gone: bool) -> list[Condition]:
    """Search for servers by one filter of *request* that has an index. Return a list with one SQL condition, which
    limits the caller's query to the servers found. Return an empty list if no filter has an index, or if more than
    ``MOST`` servers are found. *gone*: whether deleted servers are listed instead of live ones."""
    kind = connection.dialect.name
    queries = _address_queries(kind, request)
    if not queries and kind == "sqlite":
        queries = [query] if (query := _candidate_query(connection, request, gone)) is not None else []
    for query in queries:
        ids = list(connection.execute(query.limit(MOST + 1)).scalars())
        if len(ids) > MOST:
            continue
        ids = list(dict.fromkeys(ids))  # a server may have several addresses that match
        if kind == "postgresql":
            return [servers.c.id == any_(literal(ids, ARRAY(String)))]
        return [servers.c.id.in_(select(_each_of(kind, ids)))]
    return []


def _each_of(kind: str, texts: Sequence[str]) -> Any:
    """Return the column of an SQL table expression with one row for each of *texts*. All texts are passed as a single
    query parameter. *kind*: ``sqlite`` or ``postgresql``."""
    rows = func.unnest(literal(texts, ARRAY(String))) if kind == "postgresql" else func.json_each(
        orjson.dumps(texts).decode())
    table = rows.table_valued(column("value", String), name="each_text")
    return (table.render_derived(name="each_text") if kind == "postgresql" else table).c.value


def _address_queries(kind: str, request: ServerListRequest) -> list[Select[Any]]:
    """Return queries for the uuids of servers with a requested IP address, which the caller tries in the order of the
    list. The list is empty if *request* has no filter by address, or no query would be faster than the caller's own. A
    uuid may appear several times. *kind*: ``sqlite`` or ``postgresql``. Three queries are possible:

    - by prefixes of IPv4 addresses in an index, if ``address_prefixes`` finds few prefixes
    - by the addresses of the project's servers, on SQLite, if *request* names a project
    - by all addresses, if *request* names no project and there are no such prefixes
    """
    version, pattern = next(((version, pattern) for version, pattern in request.addresses.items() if pattern), (0, ""))
    if not pattern:
        return []
    address, queries = server_addresses.c.address, list[Select[Any]]()
    # Not a parameter: a general plan would not find the index of IPv6 addresses.
    found = select(server_addresses.c.server_id).where(server_addresses.c.version == literal_column(f"{version:d}"))
    if version == 4 and (prefixes := address_prefixes(pattern)) is not None:
        prefix = _each_of(kind, prefixes)
        queries.append(found.join_from(prefix.table, server_addresses,
                                       (address >= prefix) & (address < prefix + literal_column(f"'{AFTER}'"))))
    found = found.where(match_pattern(kind, address, pattern))
    if not request.project:
        return queries or [found]
    if kind == "sqlite":  # PostgreSQL reads the project's servers sooner than their addresses
        queries.append(found.join_from(servers, server_addresses, server_addresses.c.server_id == servers.c.id).where(
            servers.c.project_id == request.project, servers.c.deleted_at.is_(None)))
    return queries


def address_prefixes(pattern: str) -> list[str] | None:
    """Return prefixes that together cover all IPv4 addresses that match the regular expression *pattern*. Return
    ``None`` if there are more than ``MOST_PREFIXES``, or if *pattern* is not a sequence of numbers with dots between
    them (the first and the last may be parts of numbers)."""
    parts = parse_wildcards(pattern)
    if parts is None:
        return None
    begins, ends = parts[:1] != [ANY_TEXT], parts[-1:] != [ANY_TEXT]
    inner = parts[not begins:len(parts) - (not ends)]
    texts = "".join("." if part == ANY_CHAR else part for part in inner).split(".")
    # A dot at an end that is cut off only refuses some of the addresses.
    texts = texts[not begins and not texts[0]:len(texts) - (not ends and not texts[-1])]
    if not 1 <= len(texts) <= 5 or not all(text.isascii() and text.isdigit() for text in texts):
        return None
    prefixes: list[str] = []
    for reading in _readings(texts):
        free = 4 - len(reading)
        first = [number for number in NUMBERS if (number == reading[0] if begins else number.endswith(reading[0]))]
        places = [place for place in range(free + 1) if (place == 0 or not begins) and (place == free or not ends)]
        if len(prefixes) + len(first) * sum(len(NUMBERS) ** place for place in places) > MOST_PREFIXES:
            return None
        prefixes += (".".join((*before, number, *reading[1:]))
                     for place in places for before in product(NUMBERS, repeat=place) for number in first)
    return prefixes


def _readings(texts: list[str]) -> Iterator[list[str]]:
    """Yield each way to interpret a regular expression as numbers of an IPv4 address. *texts*: the parts between the
    dots of the expression. A dot matches any character, so it may stand for a digit: "1.5" means the two numbers 1 and
    5, or one of the numbers 105, 115 … 195."""
    yield texts
    for at, (left, right) in enumerate(pairwise(texts)):
        if len(left) == len(right) == 1 and left in "12":
            for digit in "0123456789":
                yield from _readings([*texts[:at], left + digit + right, *texts[at + 2:]])


def _candidate_query(connection: Connection, request: ServerListRequest, gone: bool) -> Select[Any] | None:
    """Return a query that finds the uuids of servers by one filter of *request*. Used only on SQLite, where the query
    reads only an index. Return ``None`` if no filter has an index, or if too many servers were changed in the requested
    time. *gone*: whether deleted servers are listed instead of live ones."""
    for tags, every, negated in request.tags:
        if not negated:
            return select(server_tags.c.server_id).where(server_tags.c.tag.in_(tags[:1] if every else tags))
    alive = GONE if gone else LIVE
    if request.since or request.before:
        changed = (alive, *changed_conditions(request))
        if has_more_servers(connection, changed, MOST_CHANGED if request.project else MOST):
            return None
        # The plus keeps SQLite from reading all servers of the project.
        mine = [literal_column("+servers.project_id") == request.project] if request.project else []
        return select(servers.c.id).where(*changed, *mine)
    named = [match_pattern("sqlite", servers.c.name, pattern) for name, pattern in request.matching
             if name == "name"]
    return select(servers.c.id).where(alive, *named) if named and not gone and not request.project else None


def has_more_servers(connection: Connection, conditions: Sequence[Condition], count: int) -> bool:
    """Return whether more than *count* servers fulfil the SQL *conditions*. Reads at most *count* + 1 rows."""
    first = select(literal_column("1")).select_from(servers).where(*conditions).limit(bindparam("most")).subquery()
    return bool(connection.execute(select(func.count()).select_from(first), {"most": count + 1}).scalar_one() > count)


def changed_conditions(request: ServerListRequest) -> list[Condition]:
    """Return the SQL conditions for the filters changes-since and changes-before of *request*; empty without these
    filters."""
    return [*([servers.c.updated_at >= request.since] if request.since else []),
            *([servers.c.updated_at <= request.before] if request.before else [])]
