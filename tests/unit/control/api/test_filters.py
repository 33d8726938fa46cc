# SPDX-License-Identifier: GPL-3.0-or-later
"""Lists of servers: what a database refuses, pages over deleted servers, and databases that sort otherwise."""

from itertools import product

import psycopg
import pytest
from sqlalchemy import text, update
from sqlalchemy.exc import DataError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from magnetar_control.api.nova.servers.server_fields import FIELDS
from magnetar_control.store.engine.database import Database, is_database_unreachable
from magnetar_control.store.engine.tables import servers
from magnetar_control.store.servers import server_list
from magnetar_control.store.servers.deleted_servers import purge_deleted_servers
from tests.unit.control.conftest import tables
from tools import postgres

from .compute import Compute, emptied
from .conftest import NAMES


def test_what_a_database_refuses_is_not_a_cell_that_is_away(compute, monkeypatch):
    """Neither an empty list nor servers of status UNKNOWN: It is a bad value, or a failure."""
    compute.server()
    monkeypatch.setattr(server_list, "_conditions", lambda _wanted, kind: [text(
        "1 = CAST('x' AS INTEGER)" if kind == "postgresql" else "json_extract('{', 'x')")])
    reply = compute.rita.get("/servers?name=web", "2.100")
    assert reply.status == (400 if compute.api.kind == "postgresql" else 500), reply


def test_what_says_that_a_database_is_away():
    for error in (OperationalError("", {}, Exception()), PoolTimeout()):
        assert is_database_unreachable(error)
    for error in (DataError("", {}, Exception()), ProgrammingError("", {}, Exception())):
        assert not is_database_unreachable(error)


def test_pages_go_on_after_a_server_that_was_deleted(compute):
    """Between two pages, and in lists that show deleted ones too; not after one of another project."""
    made = [compute.server(name=f"s{at}", created_at=f"2026-01-0{at + 1}T00:00:00.000000") for at in range(4)]
    first = compute.rita.get("/servers?limit=2&sort_key=created_at&sort_dir=asc").json
    assert [one["id"] for one in first["servers"]] == made[:2]
    with compute.cell.write() as connection:
        connection.execute(update(servers).where(servers.c.id.in_(made[1:3])).values(
            deleted_at="2026-02-01T00:00:00.000000", vm_state="deleted"))
    follow = first["servers_links"][0]["href"].partition("/v2.1")[2]
    assert [one["id"] for one in compute.rita.get(follow).json["servers"]] == made[3:]
    seen, path = [], "/servers?changes-since=2020-01-01T00:00:00Z&limit=1"
    while path:
        reply = compute.rita.get(path)
        assert reply.status == 200, reply
        seen += [one["id"] for one in reply.json["servers"]]
        path = (reply.json.get("servers_links") or [{"href": ""}])[0]["href"].partition("/v2.1")[2]
    assert seen == made[::-1]
    for marker in (compute.server(project="blue", deleted_at="2026-02-01T00:00:00.000000"), "0" * 36):
        assert compute.rita.get(f"/servers?marker={marker}").status == 400


SORT_KEYS = sorted(FIELDS.sorts)


def test_pages_have_each_server_once_where_all_values_are_equal(compute):
    """In the order of each key, also where no server has a value."""
    made = {compute.server(created_at="2026-01-01T00:00:00.000000") for _time in range(5)}
    assert {"created_at", "host", "task_state", "uuid"} <= set(SORT_KEYS)
    for key, direction in product(SORT_KEYS, ("asc", "desc")):
        seen, path = [], f"/servers?all_tenants=1&sort_key={key}&sort_dir={direction}&limit=2"
        while path:
            reply = compute.admin.get(path, "2.100")
            assert reply.status == 200, reply
            seen += [server["id"] for server in reply.json["servers"]]
            path = (reply.json.get("servers_links") or [{"href": ""}])[0]["href"].partition("/v2.1")[2]
        assert len(seen) == 5 and set(seen) == made, (key, direction)


@pytest.fixture(params=["sqlite_three", "postgres_three"])
def limited(request, tmp_path):
    """The Compute API with lists of at most three servers."""
    databases = request.getfixturevalue(request.param)
    yield Compute(databases, tmp_path, max_limit=3)
    emptied(databases)


def test_a_limit_beyond_all_bounds_is_a_page(limited):
    made = [limited.server(created_at=f"2026-01-0{at + 1}T00:00:00.000000") for at in range(5)]
    for path, query in product(("/servers", "/servers/detail"), ("limit=1000000000", "limit=1000000000&name=.")):
        reply = limited.rita.get(f"{path}?{query}")
        assert reply.status == 200 and reply.json["servers_links"], reply
        assert [server["id"] for server in reply.json["servers"]] == made[:1:-1]
    assert limited.rita.get("/servers?limit=99999999999999999999").status in (200, 400)


def test_words_of_filters_have_an_end(compute):
    """Each is a condition, and databases take no expression of any depth."""
    mine, tags = compute.server(tags='["t3"]', vm_state="active"), [f"t{number}" for number in range(51)]
    assert [one["id"] for one in compute.rita.get(f"/servers?tags-any={','.join(tags[:50] * 30)}", "2.26").json[
        "servers"]] == [mine]
    for name in ("tags", "tags-any", "not-tags", "not-tags-any"):
        reply = compute.rita.get(f"/servers?{name}={','.join(tags)}", "2.26")
        assert reply.status == 400 and "50 tags at most" in str(reply.json), reply
    path = "/servers?" + "&".join(["status=ACTIVE", "status=active"] * 600)
    assert [one["id"] for one in compute.rita.get(path, "2.26").json["servers"]] == [mine]


def test_lists_of_deleted_servers_after_a_purge(compute):
    """They tell what is kept, and where a list was left off at a server that has gone since, it says so."""
    long_ago, lately = "2026-01-01T00:00:00.000000", "2026-11-01T00:00:00.000000"
    gone = [compute.server(vm_state="deleted", created_at=long_ago, deleted_at=long_ago) for _time in range(3)]
    kept, lives = compute.server(vm_state="deleted", deleted_at=lately), compute.server()

    def listed(query):
        reply = compute.admin.get(f"/servers?all_tenants=1&{query}")
        assert reply.status == 200, reply
        return {one["id"] for one in reply.json["servers"]}

    assert listed("deleted=true") == {*gone, kept}
    assert purge_deleted_servers(compute.store, compute.cell, "2026-06-01T00:00:00.000000") == 3
    assert listed("deleted=true") == listed("deleted=true&limit=1") == {kept}
    assert listed("changes-since=2020-01-01T00:00:00Z") == {kept, lives} and listed("") == {lives}
    assert compute.admin.get(f"/servers/{gone[0]}").status == 404
    assert compute.admin.get(f"/servers?all_tenants=1&deleted=true&marker={gone[0]}").status == 400


@pytest.fixture
def icu(cluster, tmp_path):
    """The Compute API on databases that sort as people do: a, B, c."""
    found = {}
    with psycopg.connect(host=str(cluster), user=postgres.USER, dbname="postgres", autocommit=True) as connection:
        for name in NAMES:
            connection.execute(f"CREATE DATABASE icu_{name} TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'")
            found[name] = Database(postgres.postgres_url(cluster, f"icu_{name}"), name)
            tables(found[name])
        yield Compute(found, tmp_path)
        for name, database in found.items():
            database.close()
            connection.execute(f"DROP DATABASE icu_{name} WITH (FORCE)")


def test_pages_of_databases_that_sort_as_people_do(icu):
    """What cells tell is merged, so they have to sort alike, whatever their locale; none is left out."""
    made = ("a", "B", "D", "c", "E", "_x", "\u00e4")
    for at, name in enumerate(made):
        icu.server(name=name, hostname=name, cell=("cell1", "cell0")[at % 2])
    for sort, direction, limit in product(("display_name", "hostname"), ("asc", "desc"), (1, 2, 10)):
        seen, path = [], f"/servers?sort_key={sort}&sort_dir={direction}&limit={limit}"
        while path:
            found = icu.rita.get(path, "2.96").json
            seen += [one["name"] for one in found["servers"]]
            path = (found.get("servers_links") or [{"href": ""}])[0]["href"].partition("/v2.1")[2]
        assert seen == sorted(made, reverse=direction == "desc"), (sort, limit)
