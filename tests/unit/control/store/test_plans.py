# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans of lists on both engines: they use their indexes, and do the work of a page. Nothing is timed."""

from pathlib import Path

import pytest
import yaml
from sqlalchemy import select, true

from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.tables import servers
from magnetar_control.store.servers.server_list import fetch_server_page
from magnetar_control.store.servers.server_list_request import NEWEST_FIRST, ServerListRequest
from magnetar_control.store.store import Store
from tests.support.control.plans import many_rows_tables, new_database_url, plan_faults, recorded_plans
from tests.unit.control.conftest import tables
from tools.filled import analyze_database, fill_servers

CASES = yaml.safe_load((Path(__file__).parents[3] / "cases" / "statements" / "servers.yml").read_text())
pytestmark = pytest.mark.slow
LIVE, DELETED, PROJECTS, PAGE = 20000, 10000, 20, 50


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def store(request):
    """A store with one cell that is full of servers, in the database of the API."""
    database = Database(new_database_url(request, request.param, "plans"))
    tables(database)
    fill_servers(database, LIVE, DELETED, PROJECTS)
    analyze_database(database)
    store = Store(database)
    store.add_cell("cell1", database.url.render_as_string(hide_password=False))
    yield store
    store.close()


@pytest.fixture(scope="module")
def big_tables(store):
    return many_rows_tables(store.api)


def _marker(store, sort, condition):
    """The values that the page begins after: those of a server in the middle of the list."""
    columns = [servers.c[name] for name, _descending in sort]
    with store.api.read() as connection:
        rows = connection.execute(select(*columns).where(condition).order_by(servers.c.created_at)).all()
    return tuple(rows[len(rows) // 2])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_lists_of_servers_have_plans_of_a_page(store, big_tables, case):
    if store.api.kind not in case.get("engines", (store.api.kind,)):
        pytest.skip("a case of another engine")
    faults = faults_of_case(store, big_tables, case)
    assert not faults, "\n\n".join(faults)


#: Pages whose order is that of an index of live servers, which PostgreSQL uses without statistics. In the order of
#: uuids it expects so few live servers that it sorts them.
IN_ORDER = ("newest", "newest after a marker", "newest of all", "newest of all after a marker", "all by name",
            "all by last change")


def test_pages_are_read_in_order_without_statistics(store, big_tables):
    """PostgreSQL has none after a restore of a backup or an upgrade, until it has analyzed the tables."""
    if store.api.kind != "postgresql":
        pytest.skip("SQLite has none unless somebody runs ANALYZE")
    with store.api.write() as connection:
        connection.exec_driver_sql("DELETE FROM pg_statistic WHERE starelid = 'servers'::regclass")
    try:
        faults = [fault for case in CASES if case["name"] in IN_ORDER
                  for fault in faults_of_case(store, big_tables, case)]
    finally:
        analyze_database(store.api)
    assert not faults, "\n\n".join(faults)


def faults_of_case(store, big_tables, case):
    """The faults of the plans of a case."""
    fields = dict(case.get("request", {}))
    sort = fields["sort"] = [tuple(pair) for pair in fields.get("sort", NEWEST_FIRST)]
    everywhere = fields.get("all_projects", False)
    fields["project"] = None if everywhere else "project3"
    marker = None
    if case.get("after"):
        marker = _marker(store, sort, true() if everywhere else servers.c.project_id == "project3")
    databases = [database for _cell, database in store.databases()]
    with recorded_plans(*databases) as plans:
        page = fetch_server_page(store, ServerListRequest(limit=PAGE, **fields), tuple(servers.c), 60.0, marker)
    assert plans and len(page.rows) >= case.get("rows", 1)
    return [fault for plan in plans for fault in plan_faults(
        plan, big_tables, case["indexes"], sorts=case.get("sorts", False), work=case.get("work", {}).get(plan.kind))]
