# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host tells of a guest while an action of its server is in hand: looked at once, when the action has ended."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from magnetar_control.conductor.watch import Watch
from magnetar_control.store import servers
from magnetar_core.actions import POWER
from tests.unit.control.cloud import Cloud


@pytest.fixture(scope="module")
def cloud():
    with Cloud(hosts=1) as made:
        yield made


@pytest.fixture
def id(cloud):
    """Of a running server."""
    id = cloud.admin.boot("heard")["id"]
    yield id
    cloud.admin.delete(f"/v2.1/servers/{id}")
    assert cloud.admin.settled(id) is None


@pytest.fixture
def work(cloud, id):
    """An action of the server, in the conductor's hands."""
    conductor = cloud.parts.working
    held = SimpleNamespace(id=id, then=None, left={})
    conductor._held["cell1", -1] = held
    yield held
    conductor._held.pop(("cell1", -1), None)


def heard(cloud, id, *words):
    watch = Watch(cloud.parts.working)
    for word in words:
        watch._heard("kvm1", "server", {"id": id, "name": "heard", "power_state": word})


def state(cloud, id):
    with cloud.parts.working.database.read() as connection:
        row = servers.row(connection, id)
    return row.vm_state, row.power_state


def test_a_guest_that_powers_itself_off_is_shut_off(cloud, id):
    heard(cloud, id, "off")
    assert state(cloud, id) == ("stopped", POWER["off"])


def test_it_waits_for_what_is_in_hand(cloud, id, work):
    heard(cloud, id, "running", "off")
    assert state(cloud, id) == ("active", POWER["running"])
    work.then(work)  # it said nothing of the state
    assert state(cloud, id) == ("stopped", POWER["off"])


def test_nothing_is_asked_where_the_action_left_it_so(cloud, id, work, monkeypatch):
    monkeypatch.setattr(Watch, "follow", lambda *_given: pytest.fail("it is so already"))
    heard(cloud, id, "off", "running")
    work.left = {"vm_state": "active", "power_state": POWER["running"]}
    work.then(work)


def test_what_an_action_missed_is_seen_after_it(cloud, id, work):
    """The guest ended between the action's last look at it and its end."""
    heard(cloud, id, "running", "crashed")
    work.left = {"vm_state": "active", "power_state": POWER["running"]}
    work.then(work)
    assert state(cloud, id) == ("stopped", POWER["crashed"])
