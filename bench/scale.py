# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures lists of servers in databases with many rows, of live and deleted servers. Run ``bench/scale``.

Each list of ``tests/cases/statements/servers.yml`` is measured without HTTP, next to its floor: the same rows by their
uuids, fetched with the driver and serialised. ``--only requests`` measures whole requests instead, which the
applications answer in this process (``scale_requests.py``). With ``--cells`` it measures ``magnetar serve`` over
several cells on PostgreSQL (``scale_cells.py``).

No figure has a target, because tests check the query plans of the same lists
(``tests/unit/control/store/test_plans.py``).
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
try:
    import yaml
    from control_reads import FETCHED, plain
    from figures import Figure, spread, table
    from scale_cells import CellsCloud, measure_cells
    from scale_requests import measure_requests
    from sqlalchemy import select

    from magnetar_control.store.engine.database import Database
    from magnetar_control.store.engine.schema import upgrade_schema
    from magnetar_control.store.engine.tables import API, CELL, servers
    from magnetar_control.store.servers.server_list import fetch_server_page
    from magnetar_control.store.servers.server_list_request import NEWEST_FIRST, ServerListRequest
    from magnetar_control.store.store import Store
    from tools.filled import analyze_database, fill_servers
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing}. Make the development environment first: ./check mypy") from None

CASES = ROOT / "tests" / "cases" / "statements" / "servers.yml"
PROJECT, PAGE, PATIENCE = "project3", 50, 60.0
List = Callable[[], Any]


@contextlib.contextmanager
def filled_store(engine: str, live: int, deleted: int, projects: int) -> Iterator[Store]:
    """Yield a store with one cell that has *live* and *deleted* servers of *projects* projects, in a temporary
    database.
    """
    with contextlib.ExitStack() as stack:
        if engine == "sqlite":
            url = f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory(prefix='scale'))}/cell.db"
        else:
            from tools import postgres
            url = postgres.postgres_url(stack.enter_context(postgres.postgres_cluster()), "postgres")
        store = Store(Database(url))
        stack.callback(store.close)
        for metadata in (API, CELL):
            upgrade_schema(store.api, metadata)
        began = time.monotonic()
        fill_servers(store.api, live, deleted, projects)
        analyze_database(store.api)
        print(f"{engine}: {live} servers and {deleted} deleted ones in {projects} projects, "
              f"filled in {time.monotonic() - began:.0f} s", file=sys.stderr)
        store.add_cell("cell1", url)
        yield store


def _list_of_case(store: Store, case: Mapping[str, Any]) -> List:
    """Return a function that fetches from *store* the page of servers that *case* describes."""
    fields = dict(case.get("request", {}))
    sort = fields["sort"] = [tuple(pair) for pair in fields.get("sort", NEWEST_FIRST)]
    fields["project"] = None if fields.get("all_projects") else PROJECT
    marker = None
    if case.get("after"):
        sorted_columns = [servers.c[name] for name, _descending in sort]
        with store.api.read() as connection:
            rows = connection.execute(select(*sorted_columns).where(servers.c.project_id == PROJECT).order_by(
                servers.c.created_at)).all()
        marker = tuple(rows[len(rows) // 2])
    columns = tuple(servers.c)
    return lambda: fetch_server_page(store, ServerListRequest(limit=PAGE, **fields), columns, PATIENCE, marker)


def _figure_of_case(store: Store, case: Mapping[str, Any], rounds: int) -> Figure:
    fetch = _list_of_case(store, case)
    ids = [row.id for row in fetch().rows]
    taken: list[float] = []
    began_cpu = time.process_time()
    for _round in range(rounds):
        began = time.perf_counter()
        fetch()
        taken.append((time.perf_counter() - began) * 1000)
    cpu = (time.process_time() - began_cpu) * 1000 / rounds
    floor = plain(store.api, select(servers).where(servers.c.id.in_(ids)), rounds) if ids else None
    return Figure(case["name"], statistics.median(taken), floor=floor, floor_name=FETCHED if ids else "",
                  spread=spread(taken), cpu=cpu, notes=() if len(ids) == PAGE else (f"{len(ids)} servers",))


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", action="append", choices=("sqlite", "postgresql"), help="on this database only")
    parser.add_argument("--servers", type=int, default=100000, metavar="N", help="live servers (default: 100000)")
    parser.add_argument("--deleted", type=int, default=100000, metavar="N", help="deleted servers (default: 100000)")
    parser.add_argument("--projects", type=int, default=20, metavar="N", help="projects (default: 20)")
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="fetches of each list (default: 10)")
    parser.add_argument("--cells", type=int, metavar="N", help="measure magnetar serve with the servers in N cells, on "
                        "PostgreSQL, in place of the lists")
    parser.add_argument("--only", action="append", metavar="TEXT", help="lists with this text in their name only; "
                        "requests: whole requests, in place of the lists")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_signal: sys.exit(143))  # so that nothing is left then either
    if options.cells:
        with CellsCloud(options.cells, options.servers, options.deleted, options.projects) as cloud:
            print(table(measure_cells(cloud, options.rounds)))
        return 0
    cases = [case for case in yaml.safe_load(CASES.read_text())
             if not options.only or any(text in case["name"] for text in options.only)]
    for engine in options.engine or ("sqlite", "postgresql"):
        with filled_store(engine, options.servers, options.deleted, options.projects) as store:
            figures = measure_requests(store, options.rounds) if options.only == ["requests"] else [
                       _figure_of_case(store, case, options.rounds) for case in cases
                       if engine in case.get("engines", (engine,))]
        print(f"{engine}: {options.servers} servers, {options.deleted} deleted ones\n\n{table(figures)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
