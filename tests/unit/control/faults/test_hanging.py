# SPDX-License-Identifier: GPL-3.0-or-later
"""A cell whose database hangs: it takes connections and never answers. Nobody else waits for it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import psycopg
import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import OperationalError

from magnetar_control.conductor.flows.flows import FLOWS
from magnetar_control.conductor.hosts.host_watch import HostWatch
from magnetar_control.conductor.worker.action_runner import ActionRunner
from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.health import Health
from magnetar_control.store.actions import actions
from magnetar_control.store.engine import tables, timeouts
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.tables import host_states
from magnetar_control.store.engine.timeouts import statement_timeout
from magnetar_control.store.servers import servers
from tests.support.waiting import eventually
from tests.unit.control.api.compute import Compute
from tools import postgres as server

from .swallowing import Swallowing

#: What a cell has, and how much longer anything may take on a machine that is busy.
TIMEOUT, BUSY = 2.0, 30.0


@pytest.fixture
def way(cluster):
    made = Swallowing(cluster)
    yield made
    made.close()


@pytest.fixture
def compute(cluster, way, tmp_path):
    """An API with two cells; the second's database is behind ``way``."""
    names = ("api", "cell0", "cell1", "cell2")
    with psycopg.connect(host=str(cluster), user=server.USER, dbname="postgres", autocommit=True) as connection:
        for name in names:
            connection.execute(f"CREATE DATABASE hanging_{name} TEMPLATE made")
        found = {name: Database((way.url if name == "cell2" else lambda name: server.postgres_url(cluster, name))(
            f"hanging_{name}"), name) for name in names}
        yield Compute(found, tmp_path, cell_timeout=TIMEOUT, max_limit=100)
        for name in names:
            found[name].close()
            connection.execute(f"DROP DATABASE hanging_{name} WITH (FORCE)")


def timed(function, *given):
    began = time.monotonic()
    found = function(*given)
    return found, time.monotonic() - began


def statuses(reply):
    assert reply.status == 200, reply
    return {one["id"]: one["status"] for one in reply.json["servers"]}


@contextlib.contextmanager
def stopped(database):
    """The processes of PostgreSQL that work for connections of *database* stand still; their kernel does not."""
    with database.read() as connection:
        pids = connection.execute(text(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
        )).scalars().all()
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


# One database -------------------------------------------------------------------------------------------------
def test_a_statement_ends_though_the_server_stands_still(postgres):
    with stopped(postgres):
        began = time.monotonic()
        with pytest.raises(OperationalError, match="no answer within 0.5 s"), statement_timeout(0.5), \
                postgres.read() as one:
            one.execute(text("SELECT 1"))
        assert time.monotonic() - began < 0.5 + BUSY
    with postgres.read() as one:
        assert one.execute(text("SELECT 1")).scalar_one() == 1
    assert not postgres.breaker.hangs


def test_the_server_ends_long_statements_itself(postgres):
    database = Database(postgres.url.render_as_string(hide_password=False), limit=0.3)
    try:
        with pytest.raises(OperationalError, match="statement timeout"), database.read() as connection:
            connection.execute(text("SELECT pg_sleep(30)"))
        assert not database.breaker.hangs  # it has said something
    finally:
        database.close()


def test_no_limit_is_no_limit(postgres):
    database = Database(postgres.url.render_as_string(hide_password=False), limit=0)
    try:
        with database.read() as connection:
            assert connection.execute(text("SHOW statement_timeout")).scalar_one() == "0"
    finally:
        database.close()


# A cell ---------------------------------------------------------------------------------------------------------
def test_lists_and_shows_while_a_cell_hangs(compute, way):
    for cell in ("cell1", "cell2"):
        compute.host(f"kvm-{cell}", cell=cell)
    well, lost = compute.server(host="kvm-cell1"), compute.server(host="kvm-cell2", cell="cell2")
    assert statuses(compute.alice.get("/servers/detail", "2.96")) == {well: "ACTIVE", lost: "ACTIVE"}
    with way.swallows():
        for _at in range(40):
            reply, took = timed(compute.alice.get, "/servers/detail", "2.96")
            assert statuses(reply) == {well: "ACTIVE", lost: "UNKNOWN"} and took < TIMEOUT + BUSY
        reply, took = timed(compute.alice.get, f"/servers/{well}", "2.96")
        assert reply.json["server"]["status"] == "ACTIVE" and took < BUSY
        reply, took = timed(compute.alice.get, f"/servers/{lost}", "2.96")
        assert reply.json["server"]["status"] == "UNKNOWN" and took < 2 * TIMEOUT + BUSY
        assert timed(compute.admin.get, "/os-services")[1] < TIMEOUT + BUSY
        assert timed(compute.admin.get, "/os-migrations", "2.80")[1] < TIMEOUT + BUSY
        assert timed(compute.alice.get, "/limits")[1] < TIMEOUT + BUSY
        hosts = compute.cloud.hosts.all(fresh=True)
        assert hosts["kvm-cell1"].up and not hosts["kvm-cell2"].up
    eventually(lambda: set(statuses(compute.alice.get("/servers/detail", "2.96")).values()) == {"ACTIVE"})
    eventually(lambda: compute.cloud.hosts.all(fresh=True)["kvm-cell2"].up)
    assert compute.alice.get(f"/servers/{lost}", "2.96").json["server"]["status"] == "ACTIVE"


def test_many_at_once_while_a_cell_hangs(compute, way):
    """More than there are threads: those of one cell are not those of another."""
    limit = 4 * TIMEOUT  # so that on a busy machine no cell that is well is late
    compute.cloud.settings = dataclasses.replace(compute.cloud.settings, cell_timeout=limit)
    compute.host("kvm-cell1")
    well, lost = compute.server(host="kvm-cell1"), compute.server(cell="cell2")
    assert len(statuses(compute.alice.get("/servers/detail", "2.96"))) == 2
    with way.swallows(), ThreadPoolExecutor(16) as threads:
        asked = [threads.submit(timed, compute.alice.get, "/servers/detail", "2.96") for _at in range(60)]
        asked += [threads.submit(timed, compute.alice.get, f"/servers/{one}", "2.96")
                  for _at in range(20) for one in (well, lost)]
        for future in asked[:60]:
            reply, took = future.result(60)
            assert statuses(reply) == {well: "ACTIVE", lost: "UNKNOWN"} and took < limit + 2 * BUSY
        for future in asked[60:]:
            reply, took = future.result(60)
            assert reply.status == 200 and took < 2 * limit + 2 * BUSY
    eventually(lambda: statuses(compute.alice.get("/servers/detail", "2.96")) == {well: "ACTIVE", lost: "ACTIVE"})


def test_many_who_have_time_do_not_wait_for_long(compute, way, monkeypatch):
    """Lists may wait for minutes: yet all threads of the API are not kept from others by a cell that says nothing."""
    compute.cloud.settings = dataclasses.replace(compute.cloud.settings, cell_timeout=120.0)
    monkeypatch.setattr(timeouts, "SILENT", 1.0)
    well, lost = compute.server(), compute.server(cell="cell2")
    paths = ["/servers/detail", f"/servers/{lost}"] * timeouts.MANY
    assert len(statuses(compute.alice.get("/servers/detail", "2.96"))) == 2
    with way.swallows(), ThreadPoolExecutor(len(paths)) as threads:
        for future in [threads.submit(timed, compute.alice.get, path, "2.96") for path in paths]:
            reply, took = future.result(100)
            assert reply.status == 200 and took < 30.0
        reply, took = timed(compute.alice.get, "/servers/detail", "2.96")
        assert statuses(reply) == {well: "ACTIVE", lost: "UNKNOWN"} and took < BUSY
    eventually(lambda: set(statuses(compute.alice.get("/servers/detail", "2.96")).values()) == {"ACTIVE"})


def test_the_watch_and_the_health_of_others_go_on(compute, way, monkeypatch):
    monkeypatch.setattr("magnetar_control.conductor.hosts.host_watch.POLL_INTERVAL", TIMEOUT)
    monkeypatch.setattr("magnetar_control.health.PATIENCE", TIMEOUT)
    for cell in ("cell1", "cell2"):
        compute.host(f"kvm-{cell}", cell=cell)
        with compute.databases[cell].write() as connection:  # another watches it
            connection.execute(update(host_states).values(watcher="other", lease_until="9999", seen_at="9999"))
    cloud = compute.cloud
    conductor = Conductor(cloud.settings, cloud.store, cloud.services, cloud.agents, "cell1", None)
    watch = HostWatch(conductor)
    watch._round()
    assert conductor.is_up("kvm-cell1") and conductor.is_up("kvm-cell2")
    with way.swallows():
        for _at in range(10):
            health = Health(compute.store, lambda: 15.0)
            _none, took = timed(watch._round)
            assert took < TIMEOUT + BUSY and conductor.is_up("kvm-cell1") and not conductor.is_up("kvm-cell2")
            look, took = timed(health.read)
            assert took < TIMEOUT + BUSY
            assert look.database and {cell.name: cell.up for cell in look.cells} == {
                "cell0": True, "cell1": True, "cell2": False}

    def well():
        watch._round()
        return conductor.is_up("kvm-cell2")

    eventually(well)


def test_leases_are_kept_while_the_other_database_of_a_conductor_hangs(compute, way, monkeypatch):
    monkeypatch.setattr(actions, "HEARTBEAT", 0.1)
    cloud = compute.cloud
    conductor = Conductor(cloud.settings, cloud.store, cloud.services, cloud.agents, "cell1", None)
    runner = ActionRunner(conductor, FLOWS)
    runner._served = [compute.databases["cell1"], compute.databases["cell2"]]
    for database in runner._served:
        with database.write() as connection:
            servers.insert_action_row(connection, "s", "os-stop", "req-1", "u", "p")
        (taken,) = actions.lease_next_actions(database, conductor.holder, 1, {}).rows
        conductor.running_actions.actions[database.name, taken.id] = SimpleNamespace(cancelled=threading.Event())

    def lease():
        with compute.cell.read() as connection:
            return connection.execute(select(tables.actions.c.lease_until)).scalar_one()

    try:
        with way.swallows():
            for database in runner._served:
                runner._thread("beat", partial(runner._beat, database))
            for _beat in range(5):
                before = lease()
                eventually(lambda before=before: lease() > before)
    finally:
        conductor.over.set()
        for thread in runner._threads:
            thread.join(30)


def test_a_database_that_hangs_is_asked_from_time_to_time_only(postgres, way, monkeypatch):
    """While many wait for it, those who would wait for long are refused at once; the first answer ends that."""
    monkeypatch.setattr(timeouts, "SILENT", 0.2)
    database = Database(way.url(postgres.url.database))

    def ask():
        with statement_timeout(30.0), database.read() as connection:
            return connection.execute(text("SELECT 1")).scalar_one()

    try:
        assert ask() == 1
        with ThreadPoolExecutor(2 * timeouts.MANY) as threads:
            with way.swallows():
                asked = [threads.submit(ask) for _at in range(timeouts.MANY)]
                eventually(lambda: database.breaker.hangs)
                refused = 0
                for _at in range(5):
                    future = threads.submit(ask)
                    with contextlib.suppress(TimeoutError):
                        assert isinstance(future.exception(1.0), OperationalError)
                        refused += 1
                assert refused >= 4  # one may have been let through
            results = [future.exception(30) for future in asked]
            assert None in results
        eventually(lambda: ask() == 1)
        assert not database.breaker.hangs
    finally:
        database.close()
