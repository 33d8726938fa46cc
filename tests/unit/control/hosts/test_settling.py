# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts that look down mean nothing until a conductor has had the time to hear them, from its first attempt on."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from magnetar_control.conductor.hosts import host_watch
from magnetar_control.conductor.worker import conductor as conductors
from magnetar_control.store.engine.tables import host_states
from tests.support.control.watching import FollowedHost
from tests.support.waiting import eventually
from tests.unit.control.api.compute import Compute

HOST = "kvm1"
#: Seconds from the conductor's construction to its first attempt, more than ``host_down_after``.
BUSY = 100.0


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The conductors' clock."""
    clock = Clock()
    monkeypatch.setattr(conductors, "time", clock)
    return clock


@pytest.fixture
def conductor(sqlite: Any, tmp_path: Any, clock: Clock) -> Any:
    """A conductor of a cell with one host, constructed long ago on a busy machine."""
    compute = Compute(dict.fromkeys(("api", "cell0", "cell1"), sqlite), tmp_path)
    compute.host(HOST)
    cloud = compute.cloud
    made = conductors.Conductor(cloud.settings, cloud.store, cloud.services, cloud.agents, "cell1", None)
    made.read_hosts()
    made.states.up(HOST, up=False)
    clock.now += BUSY
    return made


def test_the_time_begins_with_the_first_attempt(conductor: Any, clock: Clock) -> None:
    assert conductor.settling()
    conductor.begin_settling()
    clock.now += conductor.settings.host_down_after - 1
    conductor.begin_settling()
    assert conductor.settling()
    clock.now += 2
    assert not conductor.settling()


def test_it_ends_when_all_hosts_are_up(conductor: Any) -> None:
    conductor.begin_settling()
    conductor.states.up(HOST, up=True)
    assert not conductor.settling()


def test_hosts_of_another_conductor_are_read(conductor: Any, clock: Clock) -> None:
    with conductor.database.write() as connection:
        connection.execute(update(host_states).values(watcher="other", lease_until="9999", seen_at="0000"))
    host_watch.HostWatch(conductor)._round()
    assert conductor.settling()
    clock.now += conductor.settings.host_down_after + 1
    assert not conductor.settling()


def test_the_loop_notes_its_first_attempt(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    followed = FollowedHost(f"unix:{tmp_path}/agent.sock", monkeypatch)
    eventually(lambda: followed.attempts)
    followed.loop.close()
