# SPDX-License-Identifier: GPL-3.0-or-later
"""What the control plane remembers has bounds; docs/reference/caches.md lists them."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from magnetar_control import agents, delivery
from magnetar_control.conductor.hosts.host_watch import HostWatch
from magnetar_control.scheduler.hosts import HostStates
from magnetar_control.store.engine import sqlite
from magnetar_control.store.engine.database import Database
from magnetar_control.store.hosts.cell_look import NOTHING
from magnetar_control.store.hosts.host_leases import Renewal
from magnetar_core.http import login
from tests.support.waiting import eventually
from tests.unit.control.scheduler.fleet import row


class FakeAgent:
    """A client that has every image."""

    def __init__(self) -> None:
        self.closed = 0

    def ensure(self, *_args: object) -> dict[str, object]:
        return {"resource": {"status": "active"}}

    def close(self) -> None:
        self.closed += 1


def test_deliveries(monkeypatch):
    monkeypatch.setattr(delivery, "REMEMBERED", 5)
    made = delivery.Delivery(SimpleNamespace(show_with_location=lambda *_args: ({}, "")), 1.0)
    for number in range(12):
        made.image(FakeAgent(), "kvm1", str(number))
        assert len(made.known) <= 5 and ("image", "kvm1", str(number)) in made.known
    gc.collect()
    assert not made._under_way


def test_clients_of_endpoints(monkeypatch):
    monkeypatch.setattr(agents, "ENDPOINTS", 3)
    made = agents.Agents()
    clients = []
    monkeypatch.setattr(made, "make", lambda _endpoint: clients.append(FakeAgent()) or clients[-1])
    for number in (1, 2, 1, 3, 4, 5):
        with made.client(f"unix:/{number}"):
            pass
    assert list(made._free) == ["unix:/3", "unix:/4", "unix:/5"]
    assert [one.closed for one in clients] == [1, 1, 0, 0, 0]  # that of 1 was used again, and went later
    with made.client("unix:/3"):  # meanwhile it is forgotten
        for number in (6, 7, 8):
            with made.client(f"unix:/{number}"):
                pass
    assert clients[2].closed == 1 and "unix:/3" not in made._free


def test_hosts_that_are_gone():
    states = HostStates()
    for number in range(10):
        states.refresh([row(f"kvm{number}")])
        states.up(f"kvm{number}", True)
    assert list(states._up) == list(states.hosts) == ["kvm9"]


def test_watches_of_hosts_that_are_gone(monkeypatch):
    states = HostStates()
    conductor = SimpleNamespace(
        cell=SimpleNamespace(id="cell"), read_hosts=lambda: None, states=states, database=None,
        settings=SimpleNamespace(host_down_after=1.0, heartbeat=1.0), store=SimpleNamespace(databases=list),
        delivery=delivery.Delivery(None, 1.0), holder="h", agents=agents.Agents(), begin_settling=lambda: None)
    watch = HostWatch(conductor)
    watch._changes = SimpleNamespace(may_have_changed=lambda: True)
    monkeypatch.setattr("magnetar_control.store.hosts.cell_look.read_cell_hosts", lambda *_args: NOTHING)
    monkeypatch.setattr("magnetar_control.store.hosts.host_leases.take_host_leases",
                        lambda _database, _holder, names: frozenset(names))
    monkeypatch.setattr("magnetar_control.conductor.hosts.heartbeats.renew_host_leases",
                        lambda *_args: Renewal(frozenset(), frozenset(), frozenset()))
    for number in range(10):
        states.refresh([row(f"kvm{number}")])
        watch._kept[f"kvm{number}"] = ()
        conductor.delivery.known.add(("image", f"kvm{number}", "i"))
        watch._round()
    eventually(lambda: list(watch._kept) == list(watch._loop.names) == list(watch._settings) == ["kvm9"])
    loop = watch._loop
    eventually(lambda: list(loop._followers) == list(loop.heartbeats._renewed) == ["kvm9"] and not loop.jobs._jobs)
    loop.close()
    assert conductor.delivery.known == {("image", "kvm9", "i")}


@pytest.mark.parametrize("package", ["psycopg", "cryptography"])
def test_packages_that_few_processes_use_are_loaded_on_use(package):
    """Each takes 10 MiB, and a tenth of a second."""
    subprocess.run([sys.executable, "-c", f"import sys, magnetar_control.serve; assert {package!r} not in sys.modules"],
                   check=True)


def test_sqlite(tmp_path):
    with contextlib.closing(Database(f"sqlite:///{tmp_path}/one.db")) as database, database.read() as connection:
        assert connection.exec_driver_sql("PRAGMA soft_heap_limit").scalar() == sqlite.SQLITE_MEMORY


def test_logins(monkeypatch):
    monkeypatch.setattr(login, "REMEMBERED", 5)
    monkeypatch.setattr(login, "_sessions", {})
    monkeypatch.setattr(login.Login, "_log_in", lambda self: (self.auth["username"], "https://cloud"))
    for number in range(12):
        cloud = login.Login({"auth": {"auth_url": "https://cloud", "username": str(number)}})
        assert cloud.token == str(number) and len(login._sessions) <= 5


def test_locks_of_deliveries_are_shared():
    """Who comes while an image is brought waits for it."""
    begun, go, count = threading.Event(), threading.Event(), []

    class Slow(FakeAgent):
        def ensure(self, *_args: object) -> dict[str, object]:
            count.append(1)
            begun.set()
            assert go.wait(60)
            return super().ensure()

    made = delivery.Delivery(SimpleNamespace(show_with_location=lambda *_args: ({}, "")), 1.0)
    threads = [threading.Thread(target=made.image, args=(Slow(), "kvm1", "one")) for _at in range(2)]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    go.set()
    for thread in threads:
        thread.join(60)
    assert len(count) == 1
