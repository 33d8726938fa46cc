# SPDX-License-Identifier: GPL-3.0-or-later
"""A conductor may die anywhere while a server takes its volumes of a shared pool along: nothing is lost or doubled."""

from __future__ import annotations

import json

import pytest

from magnetar_core.errors import HypervisorError
from tests.support.control.crashes import EVERY, until_none
from tests.support.waiting import eventually
from tests.unit.control.moves.clouds import claims, row
from tests.unit.control.moves.dying import Fate, through

from .evacuating import ENGINES
from .sharing import Fencing, sharing_cloud

pytestmark = [ENGINES, pytest.mark.slow]
HOSTS = ("kvm1", "kvm2")


@pytest.fixture(scope="module")
def cloud(databases):
    """Shared by the tests of a module."""
    with sharing_cloud(databases) as found:
        yield found


@pytest.fixture
def admin(cloud):
    """With servers and volumes that go with the test."""
    found = Fencing(cloud)
    yield found
    found.tidy()


@pytest.fixture
def booted(admin):
    """A server with a root disk and another volume in the pool: its uuid, and theirs."""
    id, root = admin.boot("kvm1")
    data = admin.volume(host="kvm1", volume_type="team")
    assert admin.attach(id, data).status == 200
    eventually(lambda: admin.state(data) == "in-use")
    return id, (root, data)


def evacuate(admin, id, fate, host=None):
    """With a death in it; returns the row."""
    return through(admin.cloud, id, "evacuate", fate, host=host, forced=False, stopped=False)


def other(host):
    return next(name for name in HOSTS if name != host)


@pytest.mark.parametrize("late", [False, True])
def test_an_evacuation_with_volumes_and_the_return_of_the_host(admin, booted, late):
    id, volumes = booted
    contents = {volume: (admin.cloud.team / volume).read_bytes() for volume in volumes}

    def there(fate):
        host = row(admin.cloud, id).host
        admin.dies(host)
        found = evacuate(admin, id, fate)
        assert (found.host, found.vm_state, found.fault) == (other(host), "active", None), fate.number
        assert {admin.where(volume) for volume in volumes} == {found.host}, fate.number
        assert {admin.state(volume) for volume in volumes} == {"in-use"}, fate.number
        assert {one["id"] for one in admin.has(found.host, id)["volumes_attached"]} == set(volumes), fate.number
        admin.returns(host)
        admin.clean(id, found.host)
        eventually(lambda: [admin.homes(volume) for volume in volumes] == [[found.host]] * 2)
        assert {volume: (admin.cloud.team / volume).read_bytes() for volume in volumes} == contents, fate.number
        assert [admin.on_host("volume_export", name) for name in HOSTS] == [[], []], fate.number

    until_none(admin.cloud, id, late, (there,))


@pytest.mark.parametrize("late", [False, True])
def test_a_host_that_refuses_gives_the_volumes_back(admin, booted, late):
    id, volumes = booted
    host = row(admin.cloud, id).host
    target = other(host)
    fake, before = admin.cloud.kvm[target].fake, claims(admin.cloud, id)
    define = fake.define

    def refuses(domain):
        raise HypervisorError(f"libvirt could not define {domain.uuid}")

    admin.dies(host)
    fake.define = refuses

    def there(fate):
        found = evacuate(admin, id, fate, host=target)
        assert (found.host, found.task_state) == (host, None), fate.number
        assert claims(admin.cloud, id) == before, fate.number
        assert {admin.where(volume) for volume in volumes} == {host}, fate.number
        eventually(lambda: [admin.homes(volume) for volume in volumes] == [[], []])

    try:
        until_none(admin.cloud, id, late, (there,))
    finally:
        fake.define = define
    admin.returns(host)
    admin.clean(id, host)
    eventually(lambda: admin.cloud.kvm[host].runs(id))
    assert [admin.homes(volume) for volume in volumes] == [[host]] * 2


@pytest.mark.parametrize("late", [False, True])
def test_a_detachment_from_a_volume_whose_host_is_dead(admin, late):
    """The volume changes its host meanwhile, and stays whole."""
    id, _volume = admin.with_volume("kvm2", "kvm2")
    for number in range(1, 60, EVERY):
        volume = admin.volume(host="kvm1", volume_type="team")
        assert admin.attach(id, volume).status == 200
        eventually(lambda volume=volume: admin.state(volume) == "in-use")
        admin.down("kvm1")
        attachment = next(one for one in json.loads(row(admin.cloud, id).volumes) if one["volume_id"] == volume)
        fate = Fate(number, late)
        found = through(admin.cloud, id, "detach_volume", fate, attachment_id=attachment["attachment_id"])
        assert volume not in {one["volume_id"] for one in json.loads(found.volumes)}, number
        assert (admin.state(volume), admin.where(volume)) == ("available", "kvm2"), number
        admin.up("kvm1")
        eventually(lambda volume=volume: admin.homes(volume) == ["kvm2"])
        assert (admin.cloud.team / volume).exists()
        if not fate.died:
            return
    raise AssertionError
