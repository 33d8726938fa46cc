# SPDX-License-Identifier: GPL-3.0-or-later
"""A capability is used only when all processes know it, and then no process without it starts, whatever the order."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import delete, insert, select, update

from magnetar_control.store.engine.tables import api_processes, capability_marks, conductors
from magnetar_control.store.hosts import capability_marks as marks
from magnetar_control.store.hosts import conductors as conductor_rows
from magnetar_control.store.hosts import hosts, processes
from magnetar_control.store.hosts.capability_marks import KnownCapabilities
from magnetar_control.store.store import Store
from magnetar_core import capabilities
from magnetar_core.capabilities import Capability

NEW = Capability("new-form", ("api", "conductor"), "Reads the new form.")


@pytest.fixture(autouse=True)
def new_capability(monkeypatch):
    monkeypatch.setattr(marks, "CAPABILITIES", (*capabilities.CAPABILITIES, NEW))


@pytest.fixture
def store(database):
    """The cloud of one database with both kinds of tables, whose only cell is itself."""
    store = Store(database)
    store.add_cell("cell1", database.engine.url.render_as_string(hide_password=False))
    yield store
    store.close()


@pytest.fixture
def cell(store):
    return store.cell(store.find_cell("cell1").id)


def known(store):
    return KnownCapabilities(store, lambda: 60.0)


def stored_marks(store):
    with store.api.read() as connection:
        return [(mark.name, bool(mark.used_since)) for mark in marks.fetch_capability_marks(connection)]


def announce(store, cell, *names):
    processes.write_api_heartbeat(store.api, "api1:1", "api1", "0.2.0", names)
    conductor_rows.write_conductor_heartbeat(cell, "c1:1", "c1", "0.2.0", names)


def test_it_is_used_when_all_know_it_and_for_good(store, cell):
    announce(store, cell, "new-form")
    gate = known(store)
    assert gate.all_processes_know("new-form") and stored_marks(store) == [("new-form", True)]
    processes.write_api_heartbeat(store.api, "api2:1", "api2", "0.1.0", ())
    assert gate.all_processes_know("new-form") and known(store).all_processes_know("new-form")


def test_a_held_upgrade_uses_nothing_new_until_it_is_released(store, cell, monkeypatch):
    """Nova's upgrade_levels: the previous release can come back until the operator releases the upgrade by SIGHUP."""
    monkeypatch.setattr(marks, "FRESH", 0.0)
    announce(store, cell, "new-form")
    held = [True]
    gate = KnownCapabilities(store, lambda: 60.0, lambda: held[0])
    assert not gate.all_processes_know("new-form") and stored_marks(store) == []
    marks._write_mark(store.api, NEW)  # of a process that died before it was sure
    assert not gate.all_processes_know("new-form") and stored_marks(store) == []
    held[0] = False
    assert gate.all_processes_know("new-form") and stored_marks(store) == [("new-form", True)]
    held[0] = True
    assert gate.all_processes_know("new-form")  # what is used stays used
    assert KnownCapabilities(store, lambda: 60.0, lambda: True).all_processes_know("new-form")


@pytest.mark.parametrize("lacking", ["api", "conductor", "0.1.0"])
def test_it_waits_for_a_process_without_it(store, cell, lacking):
    announce(store, cell, "new-form")
    if lacking == "api":
        processes.write_api_heartbeat(store.api, "api2:1", "api2", "0.2.0", ("other",))
    else:
        conductor_rows.write_conductor_heartbeat(cell, "c2:1", "c2", *(("0.2.0", ()) if lacking != "0.1.0" else ()))
    assert not known(store).all_processes_know("new-form") and stored_marks(store) == []
    with cell.write() as connection:
        for table in (api_processes, conductors):
            connection.execute(delete(table).where(table.c.name.in_(("api2", "c2"))))
    assert known(store).all_processes_know("new-form")


def test_a_silent_process_counts_only_if_it_cannot_check_itself(store, cell):
    """An announcing process checks again when it returns. One of 0.1.0 does not."""
    announce(store, cell, "new-form")
    conductor_rows.write_conductor_heartbeat(cell, "c2:1", "c2", "0.2.0", ())
    with cell.write() as connection:
        connection.execute(update(conductors).where(conductors.c.name == "c2").values(seen_at=cell.clock(-100)))
    assert known(store).all_processes_know("new-form")
    with cell.write() as connection:
        connection.execute(delete(capability_marks))
        connection.execute(update(conductors).where(conductors.c.name == "c2").values(version=None))
    assert not known(store).all_processes_know("new-form")


def test_a_no_is_cached_for_a_while(store, cell, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(marks.time, "monotonic", lambda: now[0])
    announce(store, cell)
    gate = known(store)
    assert not gate.all_processes_know("new-form")
    announce(store, cell, "new-form")
    assert not gate.all_processes_know("new-form")
    now[0] += marks.FRESH
    assert gate.all_processes_know("new-form")


def test_a_cell_that_does_not_answer_may_have_old_conductors(store, cell, tmp_path):
    announce(store, cell, "new-form")
    store.add_cell("cell2", f"sqlite:///{tmp_path}/not-upgraded.db")
    assert not known(store).all_processes_know("new-form")
    assert processes.fetch_processes(store, 60.0).silent_cells == ["cell2"]


def test_an_unknown_name_is_an_error(store):
    with pytest.raises(LookupError, match="There is no capability nothing"):
        known(store).all_processes_know("nothing")


def test_a_process_that_starts_meanwhile_is_seen(store, cell, monkeypatch):
    """It announces itself after the first look, and before the mark: the second look sees it."""
    announce(store, cell, "new-form")
    write = marks._write_mark

    def slow(*given):
        processes.write_api_heartbeat(store.api, "api2:1", "api2", "0.2.0", ())
        return write(*given)

    monkeypatch.setattr(marks, "_write_mark", slow)
    assert not known(store).all_processes_know("new-form") and stored_marks(store) == []


@pytest.mark.parametrize("lacking", [False, True])
def test_a_mark_of_a_process_that_died_is_completed_or_withdrawn(store, cell, lacking):
    announce(store, cell, *(() if lacking else ("new-form",)))
    with store.api.write() as connection:
        connection.execute(insert(capability_marks).values(name="new-form", kinds="api", version="0.2.0",
                                                           marked_at="2026-11-30 10:00:00.000000"))
    assert known(store).all_processes_know("new-form") is not lacking
    assert stored_marks(store) == ([] if lacking else [("new-form", True)])


def test_a_mark_that_was_withdrawn_and_written_again_is_not_declared_used(store, cell):
    announce(store, cell, "new-form")
    mark = marks._write_mark(store.api, NEW)
    marks._withdraw_mark(store.api, mark)
    assert not marks._declare_used(store.api, mark)
    again = marks._write_mark(store.api, NEW)
    assert not marks._declare_used(store.api, mark) and stored_marks(store) == [("new-form", False)]
    assert marks._declare_used(store.api, again)
    marks._withdraw_mark(store.api, again)
    assert stored_marks(store) == [("new-form", True)]


def test_agents_count_also_when_they_are_down(store, cell, monkeypatch):
    of_agents = Capability("new-field", ("agent",), "Knows the field.")
    monkeypatch.setattr(marks, "CAPABILITIES", (of_agents,))
    with store.api.write() as connection:
        hosts.upsert_host_row(connection, "kvm1", store.find_cell("cell1").id, "unix:///run/kvm1.sock")
        hosts.save_host_inventory(connection, "kvm1", {"vcpus": 1, "memory_mb": 1, "disk_gb": 1,
                                                       "agent_version": "0.1.0"})
    assert not known(store).all_processes_know("new-field")
    with store.api.write() as connection:
        hosts.save_host_inventory(connection, "kvm1", {"vcpus": 1, "memory_mb": 1, "disk_gb": 1,
                                                       "agent_version": "0.2.0", "capabilities": ["new-field"]})
    assert known(store).all_processes_know("new-field")


def test_an_api_process_is_seen_until_it_ends_and_forgotten_when_silent(store):
    processes.write_api_heartbeat(store.api, "a:1", "a", "0.2.0", ("x",))
    processes.write_api_heartbeat(store.api, "a:2", "a", "0.2.0", ("x",))
    with store.api.write() as connection:
        connection.execute(update(api_processes).where(api_processes.c.holder == "a:1").values(
            seen_at=store.api.clock(-100)))
    processes.write_api_heartbeat(store.api, "a:2", "a", "0.2.0", ("x", "y"))
    with store.api.read() as connection:
        (row,) = connection.execute(select(api_processes)).all()
    assert row.holder == "a:2" and json.loads(row.capabilities) == ["x", "y"] and row.started_at < row.seen_at
    processes.remove_api_process(store.api, "a:2")
    assert processes.fetch_processes(store, 60.0).processes == []
