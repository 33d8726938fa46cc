# SPDX-License-Identifier: GPL-3.0-or-later
"""Pages of servers in many cells: each cell is asked for a part of the page first."""

from __future__ import annotations

from collections import Counter

import pytest
from sqlalchemy import select

from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.schema import upgrade_schema
from magnetar_control.store.engine.tables import API, CELL, servers
from magnetar_control.store.servers import server_list
from magnetar_control.store.servers.server_list import fetch_server_page
from magnetar_control.store.servers.server_list_request import NEWEST_FIRST, ServerListRequest
from magnetar_control.store.store import CELL0, Store
from tests.support.control.plans import new_database_url
from tools.filled import fill_servers

CELLS, LIVE = 5, 60


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def store(request):
    """Five cells with servers of the same times. By name, all servers of a cell come before those of the next one."""
    store = Store(Database(new_database_url(request, request.param, "pages_api")))
    upgrade_schema(store.api, API)
    for at in range(-1, CELLS):
        url = new_database_url(request, request.param, f"pages_cell{at + 1}")
        cell = store.add_cell(f"cell{at + 1}", url, CELL0 if at < 0 else None)
        upgrade_schema(store.cell(cell.id), CELL)
        if at >= 0:
            fill_servers(store.cell(cell.id), LIVE, 10, 2, first=at * 1000)
    yield store
    for _cell, database in store.databases():
        database.close()
    store.api.close()


def whole_list(store, sort, project):
    rows = []
    for _cell, database in store.databases():
        with database.read() as connection:
            rows += connection.execute(select(servers).where(
                servers.c.deleted_at.is_(None), servers.c.vm_state != "soft-delete",
                servers.c.project_id == project)).all()
    for name, descending in reversed(sort):
        rows.sort(key=lambda row, name=name: server_list._null(getattr(row, name)), reverse=descending)
    return [row.id for row in rows]


@pytest.fixture
def asked(monkeypatch):
    """How often each cell is asked for how many rows."""
    asked, rows, query = Counter(), server_list._rows, server_list.scatter_query

    def counting_rows(database, *, request, **more):
        asked[database.name, request.limit] += 1
        return rows(database, request=request, **more)

    def counting_query(cells, prepare, parameters, timeout):
        asked.update((database.name, parameters["most"]) for _cell, database in cells)
        return query(cells, prepare, parameters, timeout)

    monkeypatch.setattr(server_list, "_rows", counting_rows)
    monkeypatch.setattr(server_list, "scatter_query", counting_query)
    return asked


@pytest.mark.parametrize("sort", [
    NEWEST_FIRST, (("name", False), ("id", False)), (("vm_state", True), ("id", True)),
    (("task_state", True), ("config_drive", False), ("id", True))])
@pytest.mark.parametrize("limit", [1, 7, 50, 1000])
def test_pages_in_their_order_are_the_list(store, sort, limit):
    project, listed, marker = "project1", [], None
    while True:
        page = fetch_server_page(store, ServerListRequest(limit=limit, sort=sort, project=project), tuple(servers.c),
                                 60, marker)
        listed += [row.id for row in page.rows]
        if not page.more:
            break
        marker = tuple(getattr(page.rows[-1], name) for name, _descending in sort)
    assert listed == whole_list(store, sort, project)


def test_cells_are_asked_for_their_share(store, asked):
    request = ServerListRequest(limit=50, sort=NEWEST_FIRST, project="project1")
    fetch_server_page(store, request, tuple(servers.c), 60)
    assert {limit for _name, limit in asked} == {25} and asked.total() == CELLS + 1


def test_a_cell_whose_share_does_not_suffice_is_asked_again(store, asked):
    request = ServerListRequest(limit=50, sort=(("name", False), ("id", False)), project="project1")
    assert len(fetch_server_page(store, request, tuple(servers.c), 60).rows) == 50
    assert Counter(limit for _name, limit in asked.elements()) == {25: CELLS + 1, 50: 2}  # of two cells with 30 each


@pytest.mark.parametrize("fields", [{"statuses": ["ACTIVE"]}, {"statuses": ["RESIZE", "SHUTOFF"]},
                                    {"matching": [("name", "server-.*1$")]}, {"equal": {"host": "kvm0007"}}])
def test_pages_of_a_filter_are_the_servers_that_it_accepts(store, fields):
    """They are the same as in a list of each cell by itself."""
    request = ServerListRequest(limit=1000, sort=NEWEST_FIRST, project="project1", **fields)
    page = fetch_server_page(store, request, tuple(servers.c), 60)
    accepted = {row.id for _cell, database in store.databases() for row in server_list._rows(
        database, request=request, columns=tuple(servers.c), marker_values=None)}
    assert accepted
    assert {row.id for row in page.rows} == accepted
