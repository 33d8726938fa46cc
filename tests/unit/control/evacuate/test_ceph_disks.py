# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers whose own disks are images of a pool of Ceph: another host of the pool takes them over as they are, and a
host that returns loses the server, but removes none of its disks."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager

import pytest

from magnetar_control.conductor.hosts import host_return
from magnetar_core.errors import HypervisorError
from tests.support.agent.ceph import images_of, owner_of, share_ceph
from tests.support.control.crashes import EVERY, until_none
from tests.support.waiting import eventually
from tests.unit.control.moves.clouds import flavors, row
from tests.unit.control.moves.dying import Died, Fate, through
from tests.unit.control.moves.inside import Inside

from .evacuating import ENGINES
from .sharing import Fencing

pytestmark = [ENGINES, pytest.mark.slow]
PATTERN = b"pattern" * 1000


class OnCeph(Inside):
    """``kvm1`` and ``kvm2`` have one pool for the disks of their servers; ``kvm3`` has files."""

    def _link(self):
        super()._link()
        self.pool = share_ceph(self.folder, [self.kvm["kvm1"], self.kvm["kvm2"]])

    def pools(self):
        """The pool of each host, as the conductor knows it."""
        return {name: (row.info.get("disk_pool") or {}).get("id") for name, row in
                self.parts.working.states.rows.items()}

    def reasons(self):
        """Why a host cannot use the pool, as the conductor knows it."""
        return {name: (row.info.get("disk_pool") or {}).get("reason") for name, row in
                self.parts.working.states.rows.items()}


class CephDisks(Fencing):
    """An administrator of such a cloud."""

    cloud: OnCeph

    def made(self, host="kvm1", **more):
        """A server with an ephemeral disk, and a pattern on its root disk."""
        id = self.server(flavorRef="scratch", host=host, version="2.74", **more)["id"]
        root = min(images_of(self.cloud.pool, id))
        with (self.cloud.pool / root).open("r+b") as image:
            image.write(PATTERN)
        return id

    def disks(self, id):
        """The content of the images by file, whatever their marks."""
        found = images_of(self.cloud.pool, id)
        files = {name[46:]: content for name, content in found.items()}
        assert len(files) == len(found), found.keys()
        return files

    def owner(self, id):
        return owner_of(self.cloud.pool, id)

    @contextmanager
    def dead(self, host):
        """A host without power, which is fenced; it returns at the end."""
        self.dies(host)
        yield
        self.returns(host)

    def clean(self, id, host):
        """As ``Evacuating.clean``, with images of other hosts."""
        eventually(lambda: [one[3] for one in self.statuses(id)][-1:] != ["done"])
        assert self.host_of(id) == host
        eventually(lambda: [name for name, kvm in self.cloud.kvm.items() if kvm.knows(id)] == [host])


@pytest.fixture(scope="module")
def cloud(databases):
    """Shared by the tests of a module."""
    with OnCeph(hosts=3, databases=databases, host_down_after=600.0) as found:
        flavors(found)
        found.parts.working.settling = lambda: False
        eventually(lambda: found.pools()["kvm1"] and found.pools()["kvm1"] == found.pools()["kvm2"])
        assert found.pools()["kvm3"] is None
        yield found


@pytest.fixture
def admin(cloud):
    """With servers that go with the test; all hosts are up, and no disk is left afterwards."""
    found = CephDisks(cloud)
    yield found
    found.tidy()
    eventually(lambda: [path.name for path in cloud.pool.iterdir() if "_" in path.name] == [])


@pytest.mark.parametrize("before", [None, "os-stop"])
def test_the_disks_are_kept(admin, before):
    id = admin.made(config_drive=True)
    if before:
        assert admin.call.act(id, before).status == 202
        admin.call.settled(id)
    disks = admin.disks(id)
    with admin.dead("kvm1"), pytest.MonkeyPatch.context() as patch:
        def downloads(*_args, **_more):
            raise AssertionError("the image is not needed")

        patch.setattr("magnetar_control.conductor.steps.images.deliver_image", downloads)
        server = admin.evacuated(id)
        assert (server["OS-EXT-SRV-ATTR:host"], server.get("fault")) == ("kvm2", None)
        assert server["status"] == ("SHUTOFF" if before else "ACTIVE")
        assert admin.disks(id) == disks and PATTERN in disks["disk"] and admin.owner(id) == "kvm2"
    admin.clean(id, "kvm2")  # the old host has removed the server, and not its disks
    assert admin.disks(id) == disks
    with admin.dead("kvm2"):
        assert admin.evacuated(id)["OS-EXT-SRV-ATTR:host"] == "kvm1"
        assert admin.disks(id) == disks
    admin.clean(id, "kvm1")
    assert admin.disks(id) == disks and admin.owner(id) == "kvm1"


def test_a_server_that_is_deleted_takes_its_disks_along(admin):
    id = admin.made()
    with admin.dead("kvm1"):
        admin.evacuated(id)
        assert admin.call.delete(f"/v2.1/servers/{id}").status == 204
        eventually(lambda: images_of(admin.cloud.pool, id) == {})


def test_only_the_host_that_is_known_to_be_off_gives_its_disks_away(admin):
    id = admin.made()
    disks = admin.disks(id)
    admin.down("kvm1")
    refused = admin.evacuate(id)
    assert refused.status == 409 and "magnetar host fence kvm1" in str(refused.json)
    assert admin.force_down("kvm1").status == 200
    assert admin.evacuated(id)["OS-EXT-SRV-ATTR:host"] == "kvm2"
    admin.boots("kvm1")
    admin.come_back("kvm1")
    eventually(lambda: [one[3] for one in admin.statuses(id)] == ["completed"])
    assert admin.force_down("kvm1", forced=False).status == 200
    admin.clean(id, "kvm2")
    assert admin.disks(id) == disks


def test_disks_go_back_when_no_host_can_take_the_server(admin):
    id = admin.made()
    images = images_of(admin.cloud.pool, id)
    with admin.dead("kvm1"):
        admin.cloud.kvm["kvm2"].fake.fail_next("start", HypervisorError("libvirt could not start the domain: memory."))
        server = admin.evacuated(id)
        assert server["OS-EXT-SRV-ATTR:host"] == "kvm1"  # kvm3 would have to make the disk anew
        assert images_of(admin.cloud.pool, id) == images and admin.owner(id) == "kvm1"
        assert not admin.cloud.kvm["kvm2"].knows(id)
    eventually(lambda: admin.cloud.kvm["kvm1"].runs(id))
    assert images_of(admin.cloud.pool, id) == images


def test_a_host_without_the_pool_makes_the_disks_anew_if_it_is_named(admin):
    id = admin.made()
    with admin.dead("kvm1"):
        assert admin.evacuated(id, host="kvm3")["OS-EXT-SRV-ATTR:host"] == "kvm3"
        assert PATTERN in admin.disks(id)["disk"]
    admin.clean(id, "kvm3")
    assert images_of(admin.cloud.pool, id) == {}  # its owner has returned


def test_old_microversions_say_where_the_disks_are(admin):
    id = admin.made()
    with admin.dead("kvm1"):
        for body in ({"onSharedStorage": False}, {"onSharedStorage": True, "host": "kvm3"}):
            refused = admin.evacuate(id, "2.13", **body)
            assert refused.status == 400 and "onSharedStorage" in str(refused.json)
        assert admin.evacuated(id, "2.13", onSharedStorage=True)["OS-EXT-SRV-ATTR:host"] == "kvm2"
        assert PATTERN in admin.disks(id)["disk"]


def test_a_pool_that_does_not_answer_is_remembered(admin):
    """The disks of a host are still there when it has lost its pool before it died."""
    id, folder = admin.made(), admin.cloud.kvm["kvm1"].fake._folder
    (folder / "pool-rbd0").rename(folder / "away")
    try:
        admin.cloud.kvm["kvm1"].restart()
        with admin.dead("kvm1"):
            (folder / "away").rename(folder / "pool-rbd0")
            assert admin.evacuated(id)["OS-EXT-SRV-ATTR:host"] == "kvm2"
            assert PATTERN in admin.disks(id)["disk"]
        admin.clean(id, "kvm2")
        assert PATTERN in admin.disks(id)["disk"]
    finally:
        if (folder / "away").exists():
            (folder / "away").rename(folder / "pool-rbd0")


def test_no_disk_is_made_anew_while_no_host_reaches_the_pool(admin):
    """The server waits in error, and is evacuated when another host of the pool has it back."""
    id, folder = admin.made(), admin.cloud.kvm["kvm2"].fake._folder
    with admin.dead("kvm1"):
        (folder / "pool-rbd0").rename(folder / "away")
        try:
            eventually(lambda: admin.cloud.reasons()["kvm2"], seconds=120)
            server = admin.evacuated(id)
            assert (server["OS-EXT-SRV-ATTR:host"], server["status"]) == ("kvm1", "ERROR")
        finally:
            (folder / "away").rename(folder / "pool-rbd0")
        eventually(lambda: not admin.cloud.reasons()["kvm2"], seconds=120)
        assert admin.evacuated(id)["OS-EXT-SRV-ATTR:host"] == "kvm2"
        assert PATTERN in admin.disks(id)["disk"]
    admin.clean(id, "kvm2")


def test_a_host_that_is_forced_down_and_does_not_stop_its_guest(admin, monkeypatch):
    id = admin.made()
    assert admin.force_down("kvm1").status == 200

    def refuses(*_given):
        raise HypervisorError("libvirt could not destroy the domain: no.")

    with monkeypatch.context() as patch:
        patch.setattr("magnetar_control.conductor.flows.server_evacuate.stop_guest", refuses)
        assert admin.evacuated(id)["OS-EXT-SRV-ATTR:host"] == "kvm1"
    assert "can still write to its disks" in json.loads(row(admin.cloud, id).fault)["message"]
    assert admin.owner(id) == "kvm1" and admin.cloud.kvm["kvm1"].runs(id)
    assert admin.force_down("kvm1", forced=False).status == 200


@pytest.mark.parametrize("late", [False, True])
def test_a_conductor_that_dies_loses_no_disk(admin, late):
    """At each of its writes; another one brings the evacuation to its end, once. The old host then returns."""
    id = admin.made()
    disks = admin.disks(id)

    def there(fate):
        host = row(admin.cloud, id).host
        target = {"kvm1": "kvm2", "kvm2": "kvm1"}[host]
        admin.dies(host)
        found = through(admin.cloud, id, "evacuate", fate, host=None, forced=False, stopped=False)
        assert (found.host, found.vm_state, found.fault) == (target, "active", None), fate.number
        assert admin.disks(id) == disks and admin.owner(id) == target, fate.number
        admin.returns(host)
        admin.clean(id, target)
        assert admin.disks(id) == disks and admin.owner(id) == target, fate.number

    until_none(admin.cloud, id, late, (there,))


def test_a_conductor_that_dies_while_the_host_returns(admin, monkeypatch):
    """Another one goes on. The host has its former disks removed at no point."""
    id = admin.made()
    disks = admin.disks(id)
    for number in range(1, 40, EVERY):
        host = row(admin.cloud, id).host
        admin.dies(host)
        there = through(admin.cloud, id, "evacuate", Fate(0), host=None, forced=False, stopped=False).host
        fate, complete = Fate(number), host_return.complete_evacuations

        def dying(*args, fate=fate, complete=complete):
            fate.thread = threading.current_thread()
            try:
                with (Fate(0) if fate.died else fate).looms():
                    return complete(*args)
            except Died:
                raise HypervisorError("the conductor died") from None

        with monkeypatch.context() as patch:
            patch.setattr(host_return, "complete_evacuations", dying)
            admin.returns(host)
        admin.clean(id, there)
        assert admin.disks(id) == disks and admin.owner(id) == there, number
        assert admin.cloud.kvm[there].runs(id), number
        if not fate.died:
            return
    raise AssertionError
