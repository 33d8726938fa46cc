# SPDX-License-Identifier: GPL-3.0-or-later
"""``bench/schedule`` on a few hosts: its hosts are such as the scheduler and the store have."""

from __future__ import annotations

import importlib
import sys
from itertools import islice
from pathlib import Path
from random import Random
from xml.etree import ElementTree as ET

import pytest
from sqlalchemy import insert

from magnetar_control.scheduler.place import place_server
from magnetar_control.store.engine.database import Database, utc_now
from magnetar_control.store.engine.schema import create_tables
from magnetar_control.store.engine.tables import API, cells
from magnetar_control.store.engine.tables import hosts as host_table
from magnetar_control.store.hosts import hosts

BENCH = Path(__file__).parents[3] / "bench"


@pytest.fixture
def scheduler(monkeypatch):
    """The module."""
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    return importlib.import_module("scheduler")


def test_choices_are_measured(scheduler):
    found = list(scheduler.choices(40, 5))
    assert [one.name for one in found] == [
        f"choice among 40 hosts, {name}" for name in (*scheduler.FLEETS, scheduler.WITH_CELLS)]
    assert all(one.value and one.floor for one in found)


def test_hosts_with_cells_take_mixed_servers_and_no_more_than_they_have(scheduler, tmp_path):
    chance, database = Random(1), Database(f"sqlite:///{tmp_path}/api")
    rows = scheduler.give_cells(chance, scheduler.fleet(chance, 40, 0.5))
    with database.write() as connection:
        create_tables(connection, API)
        connection.execute(insert(cells), [{"id": name, "name": name, "database_url": "", "disabled": False,
                                            "created_at": utc_now()} for name in ("cell0", "cell1")])
        connection.execute(insert(host_table), rows)
    states = scheduler.states_of(rows)
    placed = [(place_server(database, states, wish, random=chance).host, wish.numa)
              for wish in islice(scheduler.mixed(chance), 30)]
    assert len({asked for _host, asked in placed}) > 4 and scheduler.refused(rows, placed) == 0
    with database.read() as connection:
        assert scheduler.too_many_devices(connection, rows) == []
        there = hosts.fetch_host_rows(connection)
    assert all(used <= limit for row in there for used, limit in zip(row.used, row.limits, strict=True))
    assert scheduler.refused(rows, placed * 100) > 0
    database.close()


@pytest.fixture
def figures(monkeypatch):
    """The module."""
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    return importlib.import_module("figures")


def test_a_subject_that_fails_leaves_the_others_their_figures(figures, capsys):
    """Also one that ends with a message. A signal ends the run."""
    def refuse():
        raise SystemExit("Servers cannot be made: no room")

    def end():
        raise SystemExit(143)

    failures = []
    one = figures.measured("list", lambda: [figures.Figure("list", 1.0)], failures)
    assert [each.name for each in one] == ["list"] and not failures and not figures.failed(failures)
    assert figures.measured("migration", lambda: {}["base"], failures) == []
    assert figures.measured("fleet", refuse, failures) == []
    assert figures.failed(failures) == ("\nNot measured: migration: KeyError: 'base'"
                                        "\nNot measured: fleet: Servers cannot be made: no room")
    assert "KeyError" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        figures.measured("links", end, failures)


def test_the_twin_of_a_migrated_guest_stands_on_no_file(monkeypatch):
    """``virsh migrate --copy-storage-all`` gives the target the chain of the definition, and its disk stands alone."""
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    migration = importlib.import_module("migration")
    xml = (BENCH.parent / "tests/cases/xml/rescue.xml").read_text()
    assert "<metadata>" in xml and "<backingStore" in xml and "/srv/servers/web1/disk" in xml
    root = ET.fromstring(migration.twin_xml(xml, "/srv/servers/web1"))
    assert root.findtext("name") == "bench-raw" and root.findtext("uuid") != ET.fromstring(xml).findtext("uuid")
    assert root.find("metadata") is None and not root.findall(".//backingStore")
    assert f"{migration.RAW}/disk" in {source.get("file") for source in root.iterfind("devices/disk/source")}


def test_requests_among_many_rows_are_measured(monkeypatch):
    """The small form of ``bench/scale --only requests``: its cloud has the columns that the tables need."""
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    scale, requests = importlib.import_module("scale"), importlib.import_module("scale_requests")
    monkeypatch.setattr(requests, "HOSTS", 20)
    with scale.filled_store("sqlite", 1200, 0, 20) as store:
        figures = requests.measure_requests(store, 2)
    assert len(figures) > 10 and all(figure.value for figure in figures)
