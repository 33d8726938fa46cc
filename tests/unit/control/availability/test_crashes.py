# SPDX-License-Identifier: GPL-3.0-or-later
"""A conductor may die anywhere in its work on an incident: another look continues, fences once more at most, and
evacuates no server twice."""

from __future__ import annotations

import contextlib

import pytest

from magnetar_control.conductor.availability.incident_work import work_on_incidents
from magnetar_control.store.hosts import fencings
from tests.support.fence_agent import FakeFenceAgent
from tests.support.waiting import eventually
from tests.unit.control.moves.clouds import remove, row
from tests.unit.control.moves.dying import Died, Fate

from .dying_hosts import DyingHosts

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def no_waiting_for_the_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt of a conductor that died on the fence is over at once."""
    monkeypatch.setattr("magnetar_control.fencing.host_fencing.longest_fencing", lambda _device: 0.0)


def look(admin: DyingHosts, fate: Fate) -> bool:
    """Look at the incidents, with a death in it; whether the incident of kvm1 is done."""
    admin.stay_silent()
    with contextlib.suppress(Died), fate.looms():
        work_on_incidents(admin.cloud.parts.working)
    return bool(admin.incidents() and admin.incident("kvm1")["state"] == "done")


def test_an_incident(admin: DyingHosts, agent: FakeFenceAgent) -> None:
    number, cloud = 0, admin.cloud
    while True:
        number += 1
        first = admin.boot("kvm1", "first", metadata={"ha": "always", "ha_priority": "9"})
        second, stays = admin.boot("kvm1", "second"), admin.boot("kvm1", "stays", metadata={"ha": "never"})
        admin.dies("kvm1")
        fate = Fate(number)
        eventually(lambda fate=fate: look(admin, fate), pause=0.05)
        assert len(admin.incidents()) == 1, number
        for id in (first, second):
            assert admin.runs_elsewhere(id), number
        assert row(cloud, stays).host == "kvm1" and admin.evacuations(stays) == 0, number
        assert admin.incident("kvm1")["moved"] == 2 and agent.power("kvm1") == "off", number
        with cloud.parts.api_database.read() as connection:
            fencing = fencings.fetch_fencing_row(connection, "kvm1")
        assert fencing is not None and fencing.state == "fenced" and fencing.busy_until is None, number
        admin.forget()
        remove(cloud, [first, second, stays])
        if not fate.died:
            return
