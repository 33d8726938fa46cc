# SPDX-License-Identifier: GPL-3.0-or-later
"""A hard reboot comes over other actions of the server: what waits is dropped, what has begun ends first, and the
reboot has the last word, whoever dies."""

import contextlib
import dataclasses
import time

import pytest
from sqlalchemy import select

from magnetar_control.conductor.flows.flows import CELL
from magnetar_control.store.actions import stopped_actions
from magnetar_control.store.engine.tables import actions
from magnetar_core.http.client import Client
from magnetar_core.power import HARD_REBOOT, SOFT_REBOOT

from .clouds import check, flavors, row
from .dying import Died, Fate, ask, take, turn
from .inside import Inside

#: Actions over which it comes, and what has to be done before, so that the server is in their state.
OVER = {"reboot-soft": (), "reboot-hard": (), "pause": (), "unpause": ("pause",), "suspend": (), "resume": ("suspend",)}
ARGS = {"reboot-soft": {"type": "soft"}, "reboot-hard": {"type": "hard"}}


@pytest.fixture(scope="module")
def cloud():
    """Agents in this process."""
    with Inside(hosts=1) as found:
        flavors(found)
        yield found


@pytest.fixture
def id(server):
    """Of a running server."""
    return server["id"]


def asked(cloud, id, key):
    return ask(cloud, id, key, **ARGS.get(key, {}))


def told(cloud, number):
    with cloud.parts.working.database.read() as connection:
        return connection.execute(select(actions).where(actions.c.id == number)).one()


def prepared(cloud, id, key):
    """The server is in the state for an action *key*, which is asked for."""
    for before in OVER[key]:
        assert turn(cloud, asked(cloud, id, before))
    return asked(cloud, id, key)


@pytest.mark.parametrize("key", OVER)
def test_what_has_begun_ends_first(cloud, id, key):
    first = prepared(cloud, id, key)
    work = take(cloud, first)
    second = asked(cloud, id, "reboot-hard")
    assert told(cloud, first).cancel
    CELL[key](work)
    assert told(cloud, first).state == "done", told(cloud, first)
    assert row(cloud, id).task_state == "rebooting_hard"
    assert turn(cloud, second)
    assert row(cloud, id).vm_state == "active" and check(cloud, id)["power_state"] == "running"


@pytest.mark.parametrize("key", OVER)
def test_what_only_waits_is_dropped(cloud, id, key):
    first = prepared(cloud, id, key)
    second = asked(cloud, id, "reboot-hard")
    dropped = told(cloud, first)
    assert (dropped.state, dropped.message) == ("failed", stopped_actions.OVERTAKEN)
    assert row(cloud, id).task_state == "rebooting_hard" and turn(cloud, second)
    assert row(cloud, id).vm_state == "active" and check(cloud, id)["power_state"] == "running"


@pytest.mark.parametrize("key", OVER)
def test_what_is_taken_over_does_not_begin_again(cloud, id, key):
    """Its conductor has died."""
    first = prepared(cloud, id, key)
    take(cloud, first)
    second = asked(cloud, id, "reboot-hard")
    assert turn(cloud, first) and told(cloud, first).state == "failed"
    assert row(cloud, id).task_state == "rebooting_hard" and turn(cloud, second)
    assert check(cloud, id)["power_state"] == "running"
    assert row(cloud, id).vm_state == "active" and row(cloud, id).fault is None


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("key", OVER)
def test_deaths(cloud, id, key, late):
    for number in range(1, 60):
        fate, numbers = Fate(number, late), [prepared(cloud, id, key)]
        work = take(cloud, numbers[0])
        numbers.append(asked(cloud, id, "reboot-hard"))
        with contextlib.suppress(Died), fate.looms():
            CELL[key](work)
        for one in numbers:
            for _at in range(20):
                if told(cloud, one).state in ("done", "failed"):
                    break
                with contextlib.suppress(Died), fate.looms():
                    turn(cloud, one)
        for thread in fate.working:
            thread.join(20)
        assert told(cloud, numbers[1]).state == "done", number
        assert row(cloud, id).vm_state == "active" and check(cloud, id)["power_state"] == "running", number
        if not fate.died:
            return
    raise AssertionError


@pytest.mark.parametrize("type, words", [("soft", SOFT_REBOOT), ("hard", HARD_REBOOT)])
def test_a_reboot_tells_how_far_it_is(cloud, id, monkeypatch, type, words):
    """Asked, in hand, and ordered of its host: what the host is asked, it is asked in the last of them."""
    seen, event = [], Client.event

    def watched(client, *asked, **given):
        seen.append(row(cloud, id).task_state)
        return event(client, *asked, **given)

    monkeypatch.setattr(Client, "event", watched)
    number = asked(cloud, id, f"reboot-{type}")
    seen.append(row(cloud, id).task_state)
    work = take(cloud, number)
    begin = work.begin
    monkeypatch.setattr(work, "begin", lambda: seen.append(row(cloud, id).task_state) or begin())
    CELL[f"reboot-{type}"](work)
    assert tuple(seen) == words and row(cloud, id).task_state is None


def test_a_hard_reboot_that_comes_over_another_is_not_forgotten(cloud, id, monkeypatch):
    """It is asked for while the host does the first."""
    event, second = Client.event, []

    def late(client, *told, **given):
        if not second:
            second.append(asked(cloud, id, "reboot-hard"))
        return event(client, *told, **given)

    monkeypatch.setattr(Client, "event", late)
    first = asked(cloud, id, "reboot-hard")
    assert turn(cloud, first) and row(cloud, id).task_state == "rebooting_hard"
    assert turn(cloud, second[0]) and row(cloud, id).task_state is None


def test_a_guest_that_does_not_hear_is_not_waited_for(cloud, id):
    """Both are asked of the API, and the conductor takes them."""
    kvm = cloud.kvm["kvm1"]
    usual = kvm.agent.host.settings
    kvm.agent.host.settings = dataclasses.replace(usual, shutdown_timeout=600)
    kvm.fake.deaf.add(id)
    try:
        assert cloud.admin.act(id, "reboot", {"type": "SOFT"}).status == 202
        until = time.monotonic() + 60
        while not (begun := [one for one in kvm.agent.host.operations.list() if one.status == "running"]):
            assert time.monotonic() < until
            time.sleep(0.01)
        assert cloud.admin.act(id, "reboot", {"type": "SOFT"}).status == 409
        assert cloud.admin.act(id, "reboot", {"type": "HARD"}).status == 202
        assert cloud.admin.settled(id)["status"] == "ACTIVE"
        assert [one.status for one in begun] == ["cancelled"]
    finally:
        kvm.fake.deaf.clear()
        kvm.agent.host.settings = usual
    found = cloud.admin.get(f"/v2.1/servers/{id}/os-instance-actions", "2.100").json["instanceActions"]
    assert [one["action"] for one in found] == ["reboot", "reboot", "create"]
    assert [one["message"] for one in found[:2]] == [None, "Error"]
    assert check(cloud, id)["power_state"] == "running"
