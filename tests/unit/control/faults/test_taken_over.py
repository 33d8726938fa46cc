# SPDX-License-Identifier: GPL-3.0-or-later
"""A conductor stands still with an action and a watch in hand; another of its cell has both in time, by real clocks."""

from __future__ import annotations

import signal
import time

import pytest
from sqlalchemy import select

from magnetar_control.store.actions.actions import LEASE
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.tables import actions, host_states
from tests.support.control.spread import Spread
from tests.support.ports import free_port

#: Seconds that docs/reference/faults.md promises for actions, and those of a watch on a machine that is busy.
PROMISED, WATCHED = 15.0, 25.0


@pytest.fixture
def spread(cluster):
    with Spread(cluster, {"cell1": ("kvm1", "kvm2")}) as made:
        yield made


def conduct(spread, name):
    """Start one more conductor of the cell, which sees one host at least: the other's agent may be stopped."""
    spread.health[name] = free_port()
    spread.start(name, "conductor", cell="cell1", conductor_name=name, hosts=spread.hosts,
                 image_url=f"http://127.0.0.1:{spread.port}/image",
                 health_listen=f"127.0.0.1:{spread.health[name]}")
    spread._until(lambda: spread.healthz(spread.health[name]).get("conductor", {}).get("sees_hosts", 0) > 0, "it works")


def waited(read, ready, limit):
    deadline = time.monotonic() + limit
    while not ready(found := read()):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def test_what_a_conductor_has_in_hand_is_taken_over(spread):
    database = Database(spread.url("cell1"))

    def action():
        with database.read() as connection:
            return connection.execute(select(actions).where(actions.c.action == "os-stop")).one_or_none()

    def watch():
        with database.read() as connection:
            return connection.execute(select(host_states).where(host_states.c.host == "kvm2")).one()

    id = spread.admin.boot("held", networks="none", availability_zone="nova:kvm1")["id"]
    first = spread.processes["cell1"]
    try:
        spread.agents["kvm1"].send_signal(signal.SIGSTOP)  # so that the action stays in hand
        assert spread.admin.act(id, "os-stop").status == 202
        held = waited(action, lambda row: row and row.state == "running", 120).holder
        since = time.monotonic()
        conduct(spread, "second")
        seen, until = {watch().seen_at}, time.monotonic() + 60
        while len(seen) < 6 or time.monotonic() < since + LEASE + 1.0:  # two conductors, one watch
            row = watch()
            assert row.watcher == held and time.monotonic() < until
            seen.add(row.seen_at)
            time.sleep(0.1)
        assert action().holder == held and action().state == "running"  # for longer than a lease, by its heartbeats
        first.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        taken = waited(action, lambda row: row.holder != held, PROMISED)
        assert taken.holder.startswith("second:") and taken.attempts == 2
        after = waited(watch, lambda row: row.watcher != held, WATCHED - (time.monotonic() - began))
        assert after.watcher == taken.holder
        spread.agents["kvm1"].send_signal(signal.SIGCONT)
        assert spread.admin.settled(id)["status"] == "SHUTOFF"
        first.send_signal(signal.SIGCONT)  # it sees that the action is another's
        ended = waited(action, lambda row: row.state == "done", 120)
        seen, until = set(), time.monotonic() + 120
        while len(seen) < 4:
            row = watch()
            assert row.watcher == taken.holder and time.monotonic() < until
            seen.add(row.seen_at)
            time.sleep(0.1)
        assert action() == ended and spread.admin.server(id)["status"] == "SHUTOFF"
    finally:
        for process in (first, spread.agents["kvm1"]):
            process.send_signal(signal.SIGCONT)
        database.close()
