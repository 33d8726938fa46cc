# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud of several cells with many servers, on PostgreSQL: ``bench/scale --cells 10 --servers 1000000``.

The first cell is that of ``magnetar serve`` and has hosts; the others have only databases. Every project has servers in
every cell, so each list queries all cells.
"""

from __future__ import annotations

import statistics
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import psycopg
from control_client import Wire, request
from control_cloud import Cloud
from control_life import LOOK, lives
from control_reads import FETCHED, plain
from figures import Figure, spread
from sqlalchemy import select, text

from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.schema import upgrade_schema
from magnetar_control.store.engine.tables import CELL, servers
from magnetar_control.store.store import Store
from tools import postgres
from tools.filled import analyze_database, fill_mappings, fill_servers

#: Number of servers that are shown, drawn from all cells; and of servers on a page.
SHOWN, PAGE = 200, 50
HOSTS = 3
#: Targets in ms.
OWN_PAGE, SHOW, CREATE = 10.0, 3.0, 20.0


class CellsCloud(Cloud):
    """``magnetar serve`` with *cells* cells that have in all *live* and *deleted* servers of *projects* projects."""

    def __init__(self, cells: int, live: int, deleted: int, projects: int) -> None:
        super().__init__("postgresql", HOSTS)
        self.cells, self.live, self.deleted, self.project_count = cells, live, deleted, projects

    def _set_up(self) -> None:
        super()._set_up()
        self.filled: list[Database] = [self.cell]
        began = time.monotonic()
        self.tokens = [self.empty_project(f"bench{at}") for at in range(self.project_count)]
        ids = [self.projects[token] for token in self.tokens]
        store = Store(self.api)
        for at in range(self.cells):
            self._fill_cell(store, at, ids)
        analyze_database(self.api)
        print(f"{self.live} servers and {self.deleted} deleted ones in {self.cells} cells and {self.project_count} "
              f"projects, filled in {time.monotonic() - began:.0f} s, {self.disk_space():.1f} GiB", file=sys.stderr)
        time.sleep(6)  # until the API has read the list of cells

    def _fill_cell(self, store: Store, at: int, projects: Sequence[str]) -> None:
        live, deleted = self.live // self.cells, self.deleted // self.cells
        first = at * (live + deleted)
        if at:
            folder = Path(str(self.api.url.query["host"]))
            with psycopg.connect(host=str(folder), user=postgres.USER, dbname="postgres",
                                 autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE filled{at}")
            url = postgres.postgres_url(folder, f"filled{at}")
            self.filled.append(Database(url, f"filled{at}"))
            upgrade_schema(self.filled[at], CELL)
            cell_id = store.add_cell(f"filled{at}", url).id
        else:
            cell_id = store.find_cell("cell1").id
        fill_servers(self.filled[at], live, deleted, projects, first)
        analyze_database(self.filled[at])
        with self.filled[at].read() as connection:
            rows = connection.execute(select(servers.c["id", "project_id", "created_at"]).where(
                servers.c.deleted_at.is_(None), servers.c.name.startswith("server-")))
            fill_mappings(self.api, cell_id, rows.mappings())
        print(f"  cell {at + 1} of {self.cells}", file=sys.stderr)

    def disk_space(self) -> float:
        """Return the size of all databases in GiB."""
        with self.api.read() as connection:
            return float(connection.execute(text(
                "SELECT sum(pg_database_size(oid)) FROM pg_database")).scalar_one()) / 2**30

    def draw_servers(self, count: int) -> list[str]:
        """Return the uuids of *count* live servers, drawn from all cells."""
        drawn: list[str] = []
        for database in self.filled:
            with database.read() as connection:
                drawn += connection.execute(select(servers.c.id).where(
                    servers.c.deleted_at.is_(None), servers.c.vm_state == "active",
                    servers.c.id > str(uuid.UUID(int=Random(1).getrandbits(128)))).order_by(  # noqa: S311 - no secrets
                    servers.c.id).limit(-(-count // self.cells))).scalars()
        return drawn

    def __exit__(self, *error: object) -> None:
        for database in self.filled[1:]:
            database.close()
        super().__exit__(*error)


def measure_cells(cloud: CellsCloud, rounds: int) -> list[Figure]:
    """Return the figures of pages, of one server, and of a create."""
    began_rss, token, admin = cloud.rss(), cloud.tokens[0], cloud.token
    marker = _ask_as(cloud, token, "/v2.1/servers?limit=1000")[-1]["id"]
    with cloud.cell.read() as connection:
        ids = connection.execute(select(servers.c.id).where(servers.c.deleted_at.is_(None)).limit(PAGE)).scalars().all()
    floor = plain(cloud.cell, select(servers).where(servers.c.id.in_(ids)), rounds)
    figures = [_measure_page(cloud, name, path, owner, rounds, floor, limit) for name, path, owner, limit in (
        (f"own page of {PAGE}", f"/servers/detail?limit={PAGE}", token, OWN_PAGE),
        ("the same after a marker", f"/servers/detail?limit={PAGE}&marker={marker}", token, OWN_PAGE),
        ("the same by uuid", f"/servers/detail?limit={PAGE}&sort_key=uuid&sort_dir=asc", token, None),
        ("the same in ACTIVE", f"/servers/detail?limit={PAGE}&status=ACTIVE", token, None),
        (f"page of {PAGE} of all tenants", f"/servers/detail?limit={PAGE}&all_tenants=1", admin, None),
        ("the same by name", f"/servers/detail?limit={PAGE}&all_tenants=1&sort_key=display_name&sort_dir=asc", admin,
         None))]
    figures += [_measure_page(cloud, name, path, owner, rounds, None, None) for name, path, owner in (
        ("a name that no server has, all tenants", f"/servers?limit={PAGE}&all_tenants=1&name=nothing-like-it", admin),
        ("GET /limits", "/limits", token))]
    figures += [_measure_show(cloud, rounds), *_measure_create(cloud, rounds)]
    return [*figures, Figure("resident memory of serve", cloud.rss(), "MiB", notes=(
        f"{began_rss:.0f} MiB before the requests",))]


def _ask_as(cloud: Cloud, token: str, path: str) -> list[dict[str, Any]]:
    """Return the servers of a list, requested with *token*."""
    reply = Wire(cloud.port).ask("GET", path, token)
    if reply.status != 200:
        raise SystemExit(f"GET {path}: {reply.held[:500]!r}")
    servers_of_page: list[dict[str, Any]] = reply.json["servers"]
    return servers_of_page


def _measure_page(cloud: Cloud, name: str, path: str, token: str, rounds: int, floor: float | None,
                  limit: float | None) -> Figure:
    text_of_request = request("GET", f"/v2.1{path}", token)
    cloud.load([text_of_request], 1, 5)
    measured = cloud.load([text_of_request], 1, rounds * 10)
    return Figure(name, statistics.median(measured["taken"]), floor=floor, limit=limit,
                  floor_name=f"{PAGE} rows {FETCHED}", spread=spread(measured["taken"]), cpu=measured["cpu"],
                  notes=(_fastest(measured["taken"]),))


def _fastest(taken: Sequence[float]) -> str:
    """Return a text with the time in which the fastest tenth of the requests is done. This time depends least on other
    load of the machine. *taken*: the milliseconds of each request."""
    return f"{statistics.quantiles(taken, n=10)[0]:.3g} ms for the fastest tenth"


def _measure_show(cloud: CellsCloud, rounds: int) -> Figure:
    """Measure requests for single servers of all cells in turn."""
    texts = [request("GET", f"/v2.1/servers/{id}", cloud.token) for id in cloud.draw_servers(SHOWN)]
    first = cloud.load(texts, 1, len(texts))
    measured = cloud.load(texts, 1, max(len(texts), rounds * 20))
    return Figure("GET /servers/{id}", statistics.median(measured["taken"]), limit=SHOW,
                  spread=spread(measured["taken"]), cpu=measured["cpu"],
                  notes=(_fastest(measured["taken"]), f"{statistics.median(first['taken']):.3g} ms for servers that "
                         f"were not asked for before; {_fastest(first['taken'])}"))


def _measure_create(cloud: Cloud, rounds: int) -> list[Figure]:
    """Measure the creation of servers, one after the other."""
    cloud.made("first")
    answers, active = [], []
    for _round in range(rounds):
        began = time.perf_counter()
        id = cloud.ask("POST", "/v2.1/servers", cloud.want("bench"))["server"]["id"]
        answers.append((time.perf_counter() - began) * 1000)
        while cloud.state(id) != "ACTIVE":
            time.sleep(LOOK)
        active.append((time.perf_counter() - began) * 1000)
        cloud.ask("DELETE", f"/v2.1/servers/{id}")
    unseen, cpu = lives(cloud, rounds)
    return [Figure("POST /servers, until the answer", statistics.median(answers), spread=spread(answers),
                   notes=(_fastest(answers),)),
            Figure("the same, until ACTIVE", statistics.median(active), limit=CREATE, spread=spread(active),
                   notes=(_fastest(active),)),
            Figure("a create until the queue is empty, nobody looks", unseen, cpu=cpu)]
