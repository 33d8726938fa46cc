# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters of lists: the same on both engines, and what is no filter is refused by its name."""

import json
from itertools import product
from urllib.parse import quote

import psycopg
import pytest
from sqlalchemy import text, update
from sqlalchemy.exc import DataError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from magnetar_control.store import server_list
from magnetar_control.store.database import Database, away
from magnetar_control.store.tables import servers
from tests.unit.control.conftest import tables
from tools import postgres

from .compute import Compute
from .conftest import NAMES as NAMES_OF_DATABASES

LATE, EARLY = "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00%2B23:59"
NAMES = ("web1", "web2", "my-web", "db", "mail", "a.b", "a" * 24 + "!")


@pytest.fixture
def cloud(compute):
    compute.ids = {name: compute.server(name=name) for name in NAMES}
    return compute


def names(reply):
    assert reply.status == 200, reply
    return {one["name"] for one in reply.json["servers"]}


@pytest.mark.parametrize(("pattern", "found"), [
    ("web", {"web1", "web2", "my-web"}), ("^web", {"web1", "web2"}), ("web$", {"my-web"}), (".*", set(NAMES)),
    ("[0-9]+", {"web1", "web2"}), ("db|mail", {"db", "mail"}), ("^(db|web[12])$", {"db", "web1", "web2"}),
    (r"a\.b", {"a.b"}), ("a.b", {"a.b"}), ("nothing", set()), ("", set(NAMES)), (r"\d", {"web1", "web2"}),
    ("(a+)+$", set()), ("(a|a)*!$", {NAMES[-1]})])
def test_names(cloud, pattern, found):
    assert names(cloud.rita.get(f"/servers?name={quote(pattern)}")) == found


@pytest.mark.parametrize("pattern", ["(", "*", "[a", "(?P<x>a)", "(?=a)", r"(a)\1", "a{1,300}", "a" * 256, r"\bweb"])
@pytest.mark.parametrize("name", ["name", "ip"])
def test_a_bad_expression_is_refused_by_the_name_of_its_filter(cloud, name, pattern):
    reply = cloud.rita.get(f"/servers?{name}={quote(pattern)}")
    assert reply.status == 400 and reply.message.startswith(f"{name}: must be a regular expression"), reply


def test_names_of_flavors(compute):
    reply = compute.rita.get("/flavors?name=a{1,300}", "2.102")
    assert reply.status == 400 and reply.message.startswith("name:"), reply


@pytest.mark.parametrize("name", ["launch_index", "power_state", "progress"])
@pytest.mark.parametrize("value", ["%C2%B2", "9" * 23, "1" + "0" * 11, "-" + "9" * 23, "--1", "%D9%A1", "x", ""])
def test_a_bad_number_is_refused_by_the_name_of_its_filter(cloud, name, value):
    reply = cloud.admin.get(f"/servers/detail?{name}={value}&all_tenants=1", "2.100")
    assert reply.status == 400 and reply.message.startswith(f"{name}: must be"), reply


def test_numbers(cloud):
    assert names(cloud.admin.get("/servers?power_state=1&all_tenants=1", "2.100")) == set(NAMES)
    assert names(cloud.admin.get("/servers?power_state=4&all_tenants=1", "2.100")) == set()
    assert names(cloud.admin.get("/servers?power_state=None&all_tenants=1", "2.100")) == set()


@pytest.mark.parametrize("moment", [LATE, EARLY])
@pytest.mark.parametrize("name", ["changes-since", "changes-before"])
def test_moments_beyond_the_calendar(cloud, name, moment):
    for path in ("/servers", f"/servers/{cloud.ids['db']}/os-instance-actions", "/os-migrations"):
        reply = cloud.admin.get(f"{path}?{name}={moment}", "2.100")
        assert reply.status == 400 and reply.message.startswith(f"{name}: must be a moment"), reply


@pytest.mark.parametrize("wanted", ['{"a\\"b": "x"}', '{"a": "\\u0000"}', '{"": "x"}', '{"\\u0000": "x"}', "[]", "{"])
def test_bad_metadata_is_refused_by_the_name_of_its_filter(cloud, wanted):
    reply = cloud.admin.get(f"/servers?metadata={quote(wanted)}", "2.100")
    assert reply.status == 400 and "metadata" in reply.message, reply


def test_metadata(cloud):
    cloud.server(name="told", metadata='{"my key": "1"}')
    wanted = quote('{"my key": 1}')
    assert names(cloud.admin.get(f"/servers?all_tenants=1&metadata={wanted}", "2.100")) == {"told"}


def test_what_a_database_refuses_is_not_a_cell_that_is_away(compute, monkeypatch):
    """Neither an empty list nor servers of status UNKNOWN: It is a bad value, or a failure."""
    compute.server()
    monkeypatch.setattr(server_list, "matching", lambda _column, _pattern: lambda kind: text(
        "1 = CAST('x' AS INTEGER)" if kind == "postgresql" else "json_extract('{', 'x')"))
    reply = compute.rita.get("/servers?name=web", "2.100")
    assert reply.status == (400 if compute.api.kind == "postgresql" else 500), reply


def test_what_says_that_a_database_is_away():
    for error in (OperationalError("", {}, Exception()), PoolTimeout()):
        assert away(error)
    for error in (DataError("", {}, Exception()), ProgrammingError("", {}, Exception())):
        assert not away(error)


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


@pytest.fixture
def icu(cluster, tmp_path):
    """The Compute API on databases that sort as people do: a, B, c."""
    found = {}
    with psycopg.connect(host=str(cluster), user=postgres.USER, dbname="postgres", autocommit=True) as connection:
        for name in NAMES_OF_DATABASES:
            connection.execute(f"CREATE DATABASE icu_{name} TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'")
            found[name] = Database(postgres.url(cluster, f"icu_{name}"), name)
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


ADDRESSES = {
    "one": {"net10": [("10.0.0.5", 4), ("fd00::10", 6)]}, "two": {"b": [("192.168.10.7", 4)], "a": [("10.1.0.5", 4)]},
    "six": {"a": [("fd00::5", 6)]}, "none": {}, "empty": {"a": []}}


@pytest.mark.parametrize(("name", "pattern", "found"), [
    ("ip", r"^10\.", {"one", "two"}), ("ip", r"\.5$", {"one", "two"}), ("ip", r"^10\.0\.0\.5$", {"one"}),
    ("ip", "168", {"two"}), ("ip", "net10", set()), ("ip", "fd00", set()), ("ip", "version|addr|a$", set()),
    ("ip", ".", {"one", "two"}), ("ip", "", set(ADDRESSES)), ("ip6", "^fd00::5$", {"six"}), ("ip6", "5$", {"six"}),
    ("ip6", "10", {"one"}), ("ip6", "", set(ADDRESSES))])
def test_addresses(compute, name, pattern, found):
    """Each by itself, of the version that is asked for; not what else is known of them."""
    for server, networks in ADDRESSES.items():
        compute.server(name=server, addresses=json.dumps({network: [
            {"version": version, "addr": address, "OS-EXT-IPS-MAC:mac_addr": "52:54:00:10:05:aa"}
            for address, version in given] for network, given in networks.items()}))
    assert names(compute.rita.get(f"/servers?{name}={quote(pattern)}", "2.96")) == found
