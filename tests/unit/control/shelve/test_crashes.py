# SPDX-License-Identifier: GPL-3.0-or-later
"""A conductor may die anywhere while it shelves, offloads or unshelves: another one brings it to its end, once."""

from __future__ import annotations

import contextlib
import copy
import uuid

import pytest

from magnetar_control.conductor.flows.flows import CELL
from magnetar_control.conductor.worker.work import LeaseLost
from magnetar_core.image_format import qcow2_header
from magnetar_core.power import OFFLOADED, SHELVED
from tests.support.control.build import block
from tests.support.control.crashes import until_none
from tests.support.control.specs import flavor
from tests.support.waiting import eventually
from tests.unit.control.moves.clouds import at, check, claims, flavors, row
from tests.unit.control.moves.dying import Fate, Stall, ask, take, through, turn
from tests.unit.control.moves.inside import Inside

from .shelving import ENGINES, settings

pytestmark = ENGINES


@pytest.fixture(scope="module")
def cloud(databases):
    """Agents in this process."""
    with Inside(databases=databases) as found:
        flavors(found)
        yield found


#: What an image of a shelved server is made with.
FIELDS = {"name": "web1-shelved", "disk_format": "qcow2", "container_format": "bare", "visibility": "private"}


def shelve(owner, id, fate):
    """Shelve with a death in it; returns the row."""
    image = str(uuid.uuid4())
    return through(owner.cloud, id, "shelve", fate, columns={"shelved_image_id": image}, image=image, fields=FIELDS)


def unshelve(owner, id, fate):
    """Unshelve with a death in it; the server runs then, as before, and its image is gone. Returns the row."""
    offloaded = row(owner.cloud, id).vm_state == OFFLOADED
    found = through(owner.cloud, id, "unshelve", fate, offloaded=offloaded, host=None)
    assert (found.vm_state, found.shelved_image_id, found.shelved_at) == ("active", None, None), (
        fate.number, found.fault)
    assert check(owner.cloud, id)["power_state"] == "running", fate.number
    assert owner.named("web1-shelved") == [], fate.number
    return found


@pytest.mark.parametrize("late", [False, True])
def test_a_server_that_leaves_its_host_at_once(owner, late):
    id = owner.server(networks="auto", flavorRef="small")["id"]
    volume = owner.volume(host="kvm2")
    assert owner.attach(id, volume).status == 200
    eventually(lambda: owner.state(volume) == "in-use")

    def there(fate):
        assert shelve(owner, id, fate).vm_state == OFFLOADED, (fate.number, row(owner.cloud, id).fault)
        owner.check_offloaded(id)
        [image] = owner.named("web1-shelved")
        assert image["status"] == "active", fate.number

    def back(fate):
        unshelve(owner, id, fate)
        assert [(host, state) for _address, host, state in owner.ports(id)] == [(owner.host_of(id), "ACTIVE")]
        assert [one["volumeId"] for one in owner.attached(id)] == [volume] and owner.state(volume) == "in-use"

    until_none(owner.cloud, id, late, (there, back))


@pytest.mark.parametrize("late", [False, True])
def test_a_server_with_encrypted_disks_keeps_its_key(owner, late):
    hidden = flavor(owner.cloud.admin, f"hidden-{late}", {"hw:ephemeral_encryption": "true"})
    id = owner.server(flavorRef=hidden)["id"]
    [key] = (owner.cloud.folder / "control/keys").iterdir()
    drawn = key.read_text()

    def there(fate):
        assert shelve(owner, id, fate).vm_state == OFFLOADED, (fate.number, row(owner.cloud, id).fault)
        [image] = owner.named("web1-shelved")
        assert image["status"] == "active", fate.number
        content = next(owner.cloud.folder.glob(f"control/**/{image['id']}"))
        assert qcow2_header(content.read_bytes()).encrypted, fate.number
        assert key.read_text() == drawn, fate.number

    def back(fate):
        unshelve(owner, id, fate)
        assert [one.read_text() for one in key.parent.iterdir()] == [drawn], fate.number

    until_none(owner.cloud, id, late, (there, back))
    through(owner.cloud, id, "delete", Fate(3, late))
    assert not list(key.parent.iterdir())


@pytest.mark.parametrize("late", [False, True])
def test_a_server_that_stays_is_offloaded_later_and_comes_back(owner, late):
    id = owner.server(flavorRef="small")["id"]

    def there(fate):
        assert shelve(owner, id, fate).vm_state == SHELVED, fate.number
        assert check(owner.cloud, id)["power_state"] == "off", fate.number

    def away(fate):
        assert through(owner.cloud, id, "shelveOffload", fate).vm_state == OFFLOADED, fate.number
        owner.check_offloaded(id)

    with settings(owner.cloud, shelved_offload_time=-1):
        until_none(owner.cloud, id, late, (there, away, lambda fate: unshelve(owner, id, fate)))


def test_a_server_that_stays_is_started_again(owner):
    id = owner.server(flavorRef="small")["id"]
    with settings(owner.cloud, shelved_offload_time=-1):
        until_none(owner.cloud, id, False, (lambda fate: shelve(owner, id, Fate(0)),
                                            lambda fate: unshelve(owner, id, fate)))


@pytest.mark.parametrize("late", [False, True])
def test_a_server_on_a_volume(owner, late):
    blocks = [block("image", owner.call.image(), boot_index=0, volume_size=1, delete_on_termination=True)]
    id = owner.server(imageRef="", block_device_mapping_v2=blocks, flavorRef="small")["id"]
    [before] = owner.attached(id)

    def there(fate):
        assert through(owner.cloud, id, "shelve", fate, image=None).vm_state == OFFLOADED, fate.number
        owner.check_offloaded(id)

    def back(fate):
        assert through(owner.cloud, id, "unshelve", fate, offloaded=True, host=None).vm_state == "active", fate.number
        assert owner.attached(id) == [before] and owner.state(before["volumeId"]) == "in-use"
        assert at(owner.cloud, id)[owner.host_of(id)]["power_state"] == "running"

    until_none(owner.cloud, id, late, (there, back))


@pytest.mark.parametrize("late", [False, True])
def test_a_deletion_of_what_is_shelved(owner, late):
    def gone(fate):
        id = owner.server(networks="auto", flavorRef="small")["id"]
        owner.act(id, "shelve")
        assert through(owner.cloud, id, "delete", fate).deleted_at, fate.number
        assert claims(owner.cloud, id) == {} and owner.named("web1-shelved") == [] and owner.ports(id) == []

    until_none(owner.cloud, None, late, (gone,))


def asked(owner, id, key):
    """The number of a shelving, or of an unshelving of what was shelved before."""
    if key == "shelve":
        image = str(uuid.uuid4())
        return ask(owner.cloud, id, key, columns={"shelved_image_id": image}, image=image, fields=FIELDS)
    owner.act(id, "shelve")
    return ask(owner.cloud, id, key, offloaded=True, host=None)


def finish(cloud, number, conductor=None):
    """Take an action until it has ended."""
    while not turn(cloud, number, conductor):
        pass


@pytest.mark.parametrize("key", ["shelve", "unshelve"])
def test_a_conductor_that_stood_still_undoes_nothing(owner, key):
    """Another one has done its action, and the way back, when it goes on. While the first sends the content of the
    image, the other cannot: the server is not shelved, and runs on."""
    cloud, id = owner.cloud, owner.server(networks="auto", flavorRef="small")["id"]
    volume = owner.volume(host="kvm2")
    assert owner.attach(id, volume).status == 200
    eventually(lambda: owner.state(volume) == "in-use")
    other = copy.copy(cloud.parts.working)
    other.holder = "another"
    for at_ in range(1, 80, 2):
        number = asked(owner, id, key)

        def meanwhile(number=number):
            finish(cloud, number, other)
            if row(cloud, id).vm_state == ("active" if key == "unshelve" else OFFLOADED):
                owner.act(id, "shelve" if key == "unshelve" else "unshelve")

        fate, work = Stall(at_, meanwhile), take(cloud, number)
        with contextlib.suppress(LeaseLost), fate.looms():
            CELL[key](work)
        if not fate.died:
            finish(cloud, number)
        state = row(cloud, id).vm_state
        assert state == ("active" if fate.died is (key == "shelve") else OFFLOADED), at_
        if state == OFFLOADED:
            owner.check_offloaded(id)
            owner.act(id, "unshelve")
        assert check(cloud, id)["power_state"] == "running", at_
        assert owner.state(volume) == "in-use", at_
        assert [(host, state) for _address, host, state in owner.ports(id)] == [(owner.host_of(id), "ACTIVE")], at_
        if not fate.died:
            return
    raise AssertionError
