# SPDX-License-Identifier: GPL-3.0-or-later
"""A conductor may die anywhere while it soft-deletes, restores or reclaims: another one brings it to its end, once."""

from __future__ import annotations

import contextlib
import copy

import pytest
from sqlalchemy import select

from magnetar_control.conductor.flows import server_soft_delete
from magnetar_control.conductor.flows.flows import CELL
from magnetar_control.conductor.worker.work import LeaseLost
from magnetar_control.store.engine.tables import actions
from magnetar_core.power import SOFT_DELETED
from tests.support.control.crashes import until_none
from tests.unit.control.moves.clouds import at, check, claims, flavors, row
from tests.unit.control.moves.dying import Died, Stall, ask, take, through, turn
from tests.unit.control.moves.inside import Inside
from tests.unit.control.shelve.shelving import settings

from .keeping import ENGINES, HOUR

pytestmark = ENGINES


@pytest.fixture(scope="module")
def cloud(databases):
    """Agents in this process."""
    with Inside(databases=databases, reclaim_instance_interval=HOUR) as found:
        flavors(found)
        yield found


@pytest.mark.parametrize("late", [False, True])
def test_a_soft_deletion_and_the_way_back(owner, late):
    id = owner.server(networks="auto", flavorRef="small")["id"]
    held, ports = claims(owner.cloud, id), owner.ports(id)

    def there(fate):
        through(owner.cloud, id, "softDelete", fate)
        assert owner.state_of(id) == (SOFT_DELETED, None, True), fate.number
        assert check(owner.cloud, id)["power_state"] == "off", fate.number

    def back(fate):
        through(owner.cloud, id, "restore", fate)
        assert owner.state_of(id) == ("active", None, False), fate.number
        assert check(owner.cloud, id)["power_state"] == "running", fate.number
        assert (claims(owner.cloud, id), owner.ports(id)) == (held, ports), fate.number

    until_none(owner.cloud, id, late, (there, back))


@pytest.mark.parametrize("late", [False, True])
def test_a_soft_deletion_of_what_is_shelved(owner, late):
    id = owner.server(flavorRef="small", name="web3")["id"]

    def there(fate):
        with settings(owner.cloud, shelved_offload_time=-1):
            assert owner.act(id, "shelve")["status"] == "SHELVED"
        through(owner.cloud, id, "softDelete", fate)
        assert owner.state_of(id) == (SOFT_DELETED, None, True) and owner.named("web3-shelved") == [], fate.number
        assert owner.act(id, "restore")["status"] == "ACTIVE"

    until_none(owner.cloud, id, late, (there,))


def test_reclaiming(owner):
    cloud = owner.cloud

    def gone(fate):
        id = owner.server(flavorRef="small")["id"]
        owner.delete(id)
        owner.age(id, HOUR + 1)
        with contextlib.suppress(Died), fate.looms():
            server_soft_delete.reclaim_expired(cloud.parts.working)
        if fate.died:
            server_soft_delete.reclaim_expired(cloud.parts.working)
        owner.gone(id)
        assert claims(cloud, id) == {} and at(cloud, id) == {}
        with cloud.parts.working.database.read() as connection:
            asked = connection.execute(select(actions.c.action).where(actions.c.server_id == id)).scalars().all()
        assert sorted(asked) == ["create", "delete", "softDelete"], fate.number

    until_none(cloud, None, False, (gone,))


@pytest.mark.parametrize("late", [False, True])
def test_a_deletion_of_what_is_soft_deleted(owner, late):
    def gone(fate):
        id = owner.server(networks="auto", flavorRef="small")["id"]
        owner.delete(id)
        assert through(owner.cloud, id, "forceDelete", fate).deleted_at, fate.number
        assert claims(owner.cloud, id) == {} and owner.ports(id) == [] and at(owner.cloud, id) == {}

    until_none(owner.cloud, None, late, (gone,))


@pytest.mark.parametrize("key", ["softDelete", "restore"])
def test_a_conductor_that_stood_still_undoes_nothing(owner, key):
    """Another one has done its action, and the way back, when it goes on."""
    cloud, id = owner.cloud, owner.server(flavorRef="small")["id"]
    other = copy.copy(cloud.parts.working)
    other.holder = "another"
    for at_ in range(1, 40):
        if key == "restore":
            owner.delete(id)
        number = ask(cloud, id, key)

        def meanwhile(number=number):
            while not turn(cloud, number, other):
                pass
            if key == "softDelete":
                owner.act(id, "restore")
            else:
                owner.delete(id)

        fate, work = Stall(at_, meanwhile), take(cloud, number)
        with contextlib.suppress(LeaseLost), fate.looms():
            CELL[key](work)
        wanted = "active" if fate.died is (key == "softDelete") else SOFT_DELETED
        assert row(cloud, id).vm_state == wanted, at_
        assert check(cloud, id)["power_state"] == ("running" if wanted == "active" else "off"), at_
        if wanted == SOFT_DELETED:
            owner.act(id, "restore")
        if not fate.died:
            return
    raise AssertionError


def test_a_deletion_for_good_is_not_undone_by_a_soft_one(owner):
    """forceDelete is asked for while a soft deletion is under way: the task_state stays that of the former."""
    cloud, id = owner.cloud, owner.server(flavorRef="small")["id"]
    number = ask(cloud, id, "softDelete")

    def meanwhile():
        assert owner.call.act(id, "forceDelete").status == 202

    fate, work = Stall(1, meanwhile), take(cloud, number)
    with contextlib.suppress(LeaseLost), fate.looms():
        CELL["softDelete"](work)
    assert fate.died
    owner.gone(id)
    assert row(cloud, id).deleted_at


def test_what_is_done_meanwhile_ends_first_and_what_waits_is_dropped(owner):
    cloud, id = owner.cloud, owner.server(flavorRef="small")["id"]
    ask(cloud, id, "os-stop")
    owner.delete(id)
    owner.act(id, "restore")
    number = ask(cloud, id, "os-stop")
    work = take(cloud, number)
    assert owner.call.delete(f"/v2.1/servers/{id}").status == 204
    CELL["os-stop"](work)
    assert row(cloud, id).task_state in ("soft-deleting", None)
    found = owner.call.settled(id)
    assert found and found["status"] == "SOFT_DELETED"
    with cloud.parts.working.database.read() as connection:
        ended = connection.execute(select(actions.c.action, actions.c.state).where(
            actions.c.server_id == id).order_by(actions.c.id)).all()
    assert [tuple(one) for one in ended] == [("create", "done"), ("os-stop", "failed"), ("softDelete", "done"), (
        "restore", "done"), ("os-stop", "done"), ("softDelete", "done")]
