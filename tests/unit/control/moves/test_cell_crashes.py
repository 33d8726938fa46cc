# SPDX-License-Identifier: GPL-3.0-or-later
"""A conductor may die anywhere while a server goes into another cell and back: others bring it to its end, and nothing
is lost, doubled or left in either cell."""

from __future__ import annotations

import contextlib
import os

import pytest
from sqlalchemy import select

from magnetar_control.store.engine.tables import actions, migrations

from .clouds import at, claims, flavors
from .dying import Died, Fate, Stall
from .two_cells import TwoCells, check, run_action, taken

pytestmark = pytest.mark.slow  # it needs minutes

#: Deaths that are tried: each fifth one, or as the variable says; 1 is all of them.
EVERY = int(os.environ.get("MAGNETAR_EVERY_DEATH", "5"))
#: Who goes on after a death: whoever; or the other cell first, until it has nothing left to do, as when the first
#: cell's conductors are away.
FIRST = [None, "other"]


@pytest.fixture(scope="module")
def cloud():
    """Whatever happens is done by the thread of the test."""
    with TwoCells() as found:
        flavors(found)
        found.admin.image()
        yield found


@pytest.fixture(scope="module")
def ids(cloud):
    """Running servers on kvm1."""
    found = [cloud.admin.boot(name, flavorRef="small", availability_zone="nova:kvm1")["id"]
             for name in ("moves", "stays", *(f"goes{number}" for number in range(10 + 90 // EVERY)))]
    cloud.stop()
    return found


def asked(cloud, id, key, args=None):
    reply = cloud.admin.act(id, key, args, "2.60")
    assert reply.status in (202, 204), (key, reply)


def done(cloud, fate, first, other):
    """Have everything done, with a death."""
    cloud.drive(fate)
    if first:
        cloud.drive(only=other)
    cloud.drive()


def names(cloud, id):
    """The actions of a server, as it shows them."""
    return [one["action"] for one in cloud.admin.get(
        f"/v2.1/servers/{id}/os-instance-actions", "2.60").json["instanceActions"]]


def until_none(steps):
    """Each of *steps* with a death at its 1st, 2nd … act, until none of them has so many."""
    for number in range(1, 200, EVERY):
        fates = []
        for step in steps:
            fates.append(Fate(number))
            step(fates[-1])
        if not any(fate.died for fate in fates):
            return
    raise AssertionError


@pytest.mark.parametrize("first", FIRST)
def test_a_resize_and_the_way_back(cloud, ids, first):
    id, rounds = ids[0], len(names(cloud, ids[0]))

    def there(fate):
        asked(cloud, id, "resize", {"flavorRef": "large"})
        done(cloud, fate, first, "cell2")
        assert check(cloud, id, "kvm2", waits=True).vm_state == "resized", fate.number
        assert cloud.admin.server(id)["status"] == "VERIFY_RESIZE"

    def back(fate):
        asked(cloud, id, "revertResize")
        done(cloud, fate, first, "cell1")
        found = check(cloud, id, "kvm1")
        assert (found.vm_state, found.flavor_id) == ("active", "small"), fate.number

    until_none((there, back))
    history = names(cloud, id)[:-rounds]
    assert history == ["revertResize", "resize"] * (len(history) // 2)
    with cloud.conductors["cell1"].database.read() as connection:
        told = connection.execute(select(migrations.c.status).where(migrations.c.server_id == id)).scalars().all()
    assert set(told) == {"reverted"}


@pytest.mark.parametrize("first", FIRST)
def test_a_migration_and_its_confirmation(cloud, ids, first):
    id, places = ids[1], ["kvm2", "kvm1"]

    def there(fate):
        asked(cloud, id, "migrate", {"host": places[0]})
        done(cloud, fate, first, "cell2" if places[0] == "kvm2" else "cell1")
        assert check(cloud, id, places[0], waits=True).vm_state == "resized", fate.number

    def stays(fate):
        asked(cloud, id, "confirmResize")
        done(cloud, fate, None, None)
        assert check(cloud, id, places[0]).vm_state == "active", fate.number
        places.reverse()

    until_none((there, stays))


def test_a_conductor_that_stood_still_brings_nothing_back(cloud, ids):
    """Others have done its action, and taken it back, when it goes on: in either cell nothing comes again."""
    id = ids[0]
    for number in range(1, 200, EVERY):
        asked(cloud, id, "migrate", {"host": "kvm2"})

        def meanwhile():
            cloud.drive(holder="another")
            assert cloud.row(id).vm_state == "resized"
            asked(cloud, id, "revertResize")
            cloud.drive(holder="another")

        fate, conductor = Stall(number, meanwhile), cloud.conductors["cell1"]
        [action] = taken(conductor)
        with fate.looms():
            run_action(conductor, action)
        if not fate.died:
            cloud.drive()
            asked(cloud, id, "revertResize")
            cloud.drive()
        assert check(cloud, id, "kvm1").vm_state == "active", number
        if not fate.died:
            return
    raise AssertionError


def test_deletions_while_it_goes_and_after(cloud, ids):
    """A deletion comes after the death: 409 while nobody can tell where the server is, and done when asked again."""
    def gone(fate):
        id = ids.pop()
        asked(cloud, id, "migrate", {"host": "kvm2"})
        with_death(cloud, fate)
        reply = cloud.admin.delete(f"/v2.1/servers/{id}")
        assert reply.status == 204 or (reply.status == 409 and "goes to another cell" in reply.content.decode())
        cloud.drive()
        if reply.status == 409:
            assert cloud.admin.delete(f"/v2.1/servers/{id}").status == 204
            cloud.drive()
        assert cloud.admin.get(f"/v2.1/servers/{id}").status == 404
        assert (claims(cloud, id), at(cloud, id), len(cloud.place(id))) == ({}, {}, 1), fate.number

    until_none((gone,))


def with_death(cloud, fate):
    """One turn of one action of cell1, which may die."""
    conductor = cloud.conductors["cell1"]
    [action] = taken(conductor)
    with contextlib.suppress(Died), fate.looms():
        run_action(conductor, action)


def test_what_is_asked_while_it_leaves_is_not_lost(cloud, ids):
    """Each write of a change is either before the copy, or refused."""
    def changed(fate):
        id = ids.pop()
        asked(cloud, id, "migrate", {"host": "kvm2"})
        with_death(cloud, fate)
        key = f"death{fate.number}"
        reply = cloud.admin.put(f"/v2.1/servers/{id}/metadata/{key}", {"meta": {key: "here"}})
        assert reply.status in (200, 409), reply
        cloud.drive()
        found = check(cloud, id, "kvm2", waits=True)
        assert (key in found.metadata) is (reply.status == 200), fate.number
        with cloud.conductors["cell2"].database.read() as connection:
            states = connection.execute(select(actions.c.state).where(actions.c.server_id == id)).scalars().all()
        assert set(states) == {"done"}

    until_none((changed,))
