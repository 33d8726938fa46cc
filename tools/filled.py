# SPDX-License-Identifier: GPL-3.0-or-later
"""Filling of databases with many rows, in bulk, for tests of query plans and for measurements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from random import Random
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import orjson
from sqlalchemy import Table

from magnetar_control.store.engine.database import Database, format_moment
from magnetar_control.store.engine.json_column import JsonColumn
from magnetar_control.store.engine.tables import (
    column_defaults,
    server_addresses,
    server_mappings,
    server_tags,
    servers,
)

#: Rows that are sent to a database at once.
CHUNK = 5000
FIRST_CREATED = datetime(2026, 1, 1)  # noqa: DTZ001 - as the tables store times
FLAVOR = orjson.dumps({"id": "1", "name": "m1.small", "vcpus": 1, "ram": 2048, "disk": 20, "ephemeral": 0,
                       "swap": 0, "extra_specs": {}}).decode()
#: The states of live servers, and how many of a hundred thousand have each: vm_state, task_state, count.
STATES = (("active", None, 80000), ("stopped", None, 17000), ("error", None, 1000), ("paused", None, 900),
          ("soft-delete", None, 500), ("shelved_offloaded", None, 300), ("active", "resize_migrating", 100),
          ("stopped", "resize_migrating", 20), ("active", "rebooting", 50), ("building", "spawning", 100),
          ("resized", None, 30))
#: The number of hosts, and of servers for each server with tags.
HOSTS, TAGGED = 500, 20
IMAGE = "70a599e0-31e7-49b7-b260-868f441e862b"


def insert_rows(database: Database, table: Table, rows: Iterable[Mapping[str, Any]]) -> int:
    """Insert *rows*, which have the same columns; other columns have their defaults. Return the number of rows."""
    rows, total = iter(rows), 0
    defaults = {**{name: value for name, value in column_defaults(table).items() if value is not None},
                **_json_defaults(table)}
    raw = database.engine.raw_connection()
    try:
        while chunk := [{**defaults, **row} for row in islice(rows, CHUNK)]:
            _insert_chunk(database.kind, raw.cursor(), table.name, list(chunk[0]),
                          [tuple(row.values()) for row in chunk])
            raw.commit()
            total += len(chunk)
    finally:
        raw.close()
    return total


def _json_defaults(table: Table) -> dict[str, str]:
    """Return the JSON text of the default of each column with JSON that has one, by the column's name."""
    return {column.name: orjson.dumps(column.default.arg(None)).decode() for column in table.c
            if isinstance(column.type, JsonColumn) and column.default is not None}


def _insert_chunk(kind: str, cursor: Any, table: str, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert *rows*, which have values for the columns *names*, into *table*, with a *cursor* of the database driver.
    *kind*: postgresql (uses COPY) or sqlite."""
    columns = ", ".join(f'"{name}"' for name in names)
    if kind == "postgresql":
        with cursor.copy(f'COPY "{table}" ({columns}) FROM STDIN') as copy:
            for row in rows:
                copy.write_row(row)
    else:
        cursor.execute("BEGIN")
        cursor.executemany(f'INSERT INTO "{table}" ({columns}) VALUES ({", ".join("?" * len(names))})',  # noqa: S608
                           rows)


def analyze_database(database: Database) -> None:
    """Make the database collect the statistics that its planner uses. PostgreSQL also merges new entries into its
    trigram indexes, which it would do by itself later.
    """
    with database.read() as connection:
        connection.exec_driver_sql("VACUUM ANALYZE" if database.kind == "postgresql" else "ANALYZE")


def server_rows(live: int, deleted: int, projects: int | Sequence[str], first: int = 0) -> Iterator[dict[str, Any]]:
    """Yield rows of servers in the order of their creation: the *live* ones mixed with half of the *deleted* ones, then
    the other deleted ones.

    The *projects* (their ids, or a number for ``project0`` …) have the same number of servers. Every twentieth server
    has tags; one of a thousand has ``rare``. *first*: the number of the first server, which decides its uuid.
    """
    names = [f"project{at}" for at in range(projects)] if isinstance(projects, int) else projects
    random = Random(1)  # noqa: S311 - no secrets
    states = random.choices(STATES, [count for _vm_state, _task_state, count in STATES], k=live)
    kinds = [True] * live + [False] * (deleted // 2)
    random.shuffle(kinds)
    for at, is_live in enumerate([*kinds, *[False] * (deleted - deleted // 2)], first):
        vm_state, task_state, _count = states.pop() if is_live else ("deleted", None, 0)
        created = FIRST_CREATED + timedelta(seconds=(at - first) * 3, microseconds=random.randrange(10**6))
        yield _server_row(at, names[at % len(names)], vm_state, task_state, created,
                          format_moment(created + timedelta(seconds=random.randrange(3600))))


def _server_row(at: int, project: str, vm_state: str, task_state: str | None, created: datetime,
                updated_at: str) -> dict[str, Any]:
    addresses = [{"version": version, "addr": address, "OS-EXT-IPS:type": "fixed",
                  "OS-EXT-IPS-MAC:mac_addr": f"fa:16:3e:{at >> 16:02x}:{at >> 8 & 255:02x}:{at & 255:02x}"}
                 for version, address in ((4, f"10.{at >> 16}.{at >> 8 & 255}.{at & 255}"), (6, f"fd00::{at:x}"))]
    tags = [f"t{at % 7}", *(["rare"] if at % 1000 == 0 else [])] if at % TAGGED == 0 else []
    return {"id": str(uuid5(NAMESPACE_OID, str(at))), "project_id": project, "user_id": f"user of {project}",
            "name": f"server-{at:07}", "hostname": f"server-{at:07}", "vm_state": vm_state, "task_state": task_state,
            "power_state": 1 if vm_state == "active" else 4, "host": f"kvm{at % HOSTS:04}",
            "availability_zone": "nova", "flavor_id": "1", "flavor": FLAVOR, "image_id": IMAGE,
            "tags": orjson.dumps(tags).decode(), "launched_at": format_moment(created),
            "addresses": orjson.dumps({"private": addresses}).decode() if vm_state != "deleted" else "{}",
            "created_at": format_moment(created), "updated_at": updated_at,
            "deleted_at": updated_at if vm_state == "deleted" else None}


def fill_servers(database: Database, live: int, deleted: int, projects: int | Sequence[str] = 20,
                 first: int = 0) -> int:
    """Insert the servers that ``server_rows`` yields for these arguments into a cell's *database*, with their tags and
    addresses; return the number of servers."""
    tags: list[dict[str, str]] = []
    addresses: list[dict[str, Any]] = []

    def noting_rows() -> Iterator[dict[str, Any]]:
        for row in server_rows(live, deleted, projects, first):
            tags.extend({"tag": tag, "server_id": row["id"]} for tag in orjson.loads(row["tags"]))
            addresses.extend({"version": address["version"], "address": address["addr"], "server_id": row["id"]}
                             for network in orjson.loads(row["addresses"]).values() for address in network)
            yield row

    inserted = insert_rows(database, servers, noting_rows())
    analyze_database(database)  # without statistics PostgreSQL reads all servers for each reference to one
    insert_rows(database, server_tags, tags)
    insert_rows(database, server_addresses, addresses)
    return inserted


def fill_mappings(database: Database, cell_id: str, rows: Iterable[Mapping[str, Any]]) -> int:
    """Insert the mappings of servers to the cell *cell_id* into the API *database*; return their number. *rows* have
    the servers' ``id``, ``project_id`` and ``created_at``."""
    return insert_rows(database, server_mappings, (
        {"server_id": row["id"], "cell_id": cell_id, "project_id": row["project_id"], "created_at": row["created_at"]}
        for row in rows))
