# SPDX-License-Identifier: GPL-3.0-or-later
"""A conductor may die anywhere in a move: another one brings it to its end, and nothing is lost, doubled or left."""

from __future__ import annotations

import contextlib
import copy

import pytest
from sqlalchemy import select

from magnetar_control.conductor.flows.flows import CELL
from magnetar_control.conductor.worker.work import LeaseLost
from magnetar_control.store.engine.tables import action_events, actions
from tests.support.control.crashes import EVERY, until_none

from .clouds import at, check, claims, disabled, row
from .dying import Stall, ask, flavor, take, through, turn
from .inside import with_flavors  # noqa: F401 - the fixture cloud

pytestmark = pytest.mark.slow  # it needs minutes


@pytest.fixture
def id(server):
    """Of a running server."""
    return server["id"]


@pytest.mark.parametrize("late", [False, True])
def test_a_resize_and_the_way_back(cloud, id, late):
    def there(fate):
        found = through(cloud, id, "resize", fate, flavor=flavor("large"))
        assert found.vm_state == "resized", (fate.number, found.fault)
        assert check(cloud, id, waits=True)["power_state"] == "running", fate.number

    def back(fate):
        assert through(cloud, id, "revertResize", fate).vm_state == "active", fate.number
        assert check(cloud, id)["power_state"] == "running", fate.number

    until_none(cloud, id, late, (there, back))


@pytest.mark.parametrize("late", [False, True])
def test_a_cold_migration_and_its_confirmation(cloud, id, late):
    def there(fate):
        assert through(cloud, id, "migrate", fate).vm_state == "resized", fate.number
        check(cloud, id, waits=True)

    def stays(fate):
        assert through(cloud, id, "confirmResize", fate).vm_state == "active", fate.number
        assert check(cloud, id)["power_state"] == "running", fate.number

    until_none(cloud, id, late, (there, stays))


@pytest.mark.parametrize("late", [False, True])
def test_a_live_migration(cloud, id, late):
    def there(fate):
        assert through(cloud, id, "os-migrateLive", fate).vm_state == "active", fate.number
        assert check(cloud, id)["power_state"] == "running", fate.number

    until_none(cloud, id, late, (there,))


@pytest.mark.parametrize("late", [False, True])
def test_a_resize_on_the_only_host_and_the_way_back(cloud, id, late):
    other = next(name for name in cloud.hosts if name != row(cloud, id).host)
    with disabled(cloud, other):
        def there(fate):
            assert through(cloud, id, "resize", fate, flavor=flavor("large")).vm_state == "resized", fate.number
            assert check(cloud, id, waits=True)["power_state"] == "running", fate.number

        def back(fate):
            assert through(cloud, id, "revertResize", fate).vm_state == "active", fate.number
            assert check(cloud, id)["power_state"] == "running", fate.number

        until_none(cloud, id, late, (there, back))


@pytest.mark.parametrize("late", [False, True])
def test_a_deletion_of_what_waits(cloud, late):
    def gone(fate):
        found = cloud.admin.boot(flavorRef="small")["id"]
        cloud.admin.act(found, "resize", {"flavorRef": "large"})
        assert cloud.admin.settled(found)["status"] == "VERIFY_RESIZE"
        assert through(cloud, found, "delete", fate).deleted_at, fate.number
        assert claims(cloud, found) == {}
        assert at(cloud, found) == {}

    until_none(cloud, None, late, (gone,))


def begun_after_its_end(cloud, number):
    """Events that began when their action had ended: nobody would end them."""
    with cloud.parts.working.database.read() as connection:
        return connection.execute(select(action_events.c.event).join(actions).where(
            actions.c.id == number, action_events.c.start_time > actions.c.updated_at)).all()


@pytest.mark.parametrize(("key", "args", "then"), [
    ("resize", {"flavor": flavor("large")}, "revertResize"), ("os-migrateLive", {}, None),
    ("migrate", {}, "confirmResize")])
def test_a_conductor_that_stood_still_undoes_nothing(cloud, id, key, args, then):
    """Another one has done its action, and a further one, when it goes on."""
    other = copy.copy(cloud.parts.working)
    other.holder = "another"
    for number in range(1, 200, EVERY):
        asked = ask(cloud, id, key, **args)

        def meanwhile(asked=asked):
            assert turn(cloud, asked, other)
            if then:
                assert turn(cloud, ask(cloud, id, then), other)

        fate, work = Stall(number, meanwhile), take(cloud, asked)
        with contextlib.suppress(LeaseLost), fate.looms():
            CELL[key](work)
        assert begun_after_its_end(cloud, asked) == [], number
        assert row(cloud, id).vm_state == ("active" if fate.died or not then else "resized"), number
        assert check(cloud, id, waits=not fate.died and then is not None)["power_state"] == "running", number
        if not fate.died:
            return
