# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers whose disks lie in a folder that hosts share: another host takes them over as they are."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path

import pytest

from magnetar_core.errors import HypervisorError
from tests.support.control.crashes import until_none
from tests.support.waiting import eventually
from tests.unit.control.moves.clouds import disabled, flavors, row
from tests.unit.control.moves.dying import through
from tests.unit.control.moves.inside import Inside

from .evacuating import ENGINES
from .sharing import Fencing

pytestmark = [ENGINES, pytest.mark.slow]
PATTERN = b"pattern" * 1000


class Sharing(Inside):
    """``kvm1`` and ``kvm2`` share the folder of their servers; ``kvm3`` has its own."""

    @property
    def shared(self) -> Path:
        return self.folder / "shared"

    def agent_of(self, name):
        self.shared.mkdir(exist_ok=True)
        return {} if name == "kvm3" else {"instances_path": self.shared}

    def folders(self):
        """The shared folder of each host, as the conductor knows it."""
        return {name: (row.info.get("disk_folder") or {}).get("id") for name, row in
                self.parts.working.states.rows.items()}


class SharedDisks(Fencing):
    """An administrator of such a cloud."""

    cloud: Sharing

    def made(self, host="kvm1", **more):
        """A server with a pattern on its disk."""
        id = self.server(flavorRef="small", host=host, version="2.74", **more)["id"]
        with (self.cloud.shared / id / "disk").open("ab") as disk:
            disk.write(PATTERN)
        return id

    def disk(self, id):
        """The content of the root disk, and its inode."""
        path = self.cloud.shared / id / "disk"
        return path.read_bytes(), path.stat().st_ino

    def owner(self, id):
        """The host that may use the disks."""
        return json.loads((self.cloud.shared / id / "owner.json").read_text())["host"]

    @contextmanager
    def dead(self, host):
        """A host without power, which is fenced; it returns at the end."""
        self.dies(host)
        yield
        self.returns(host)


@pytest.fixture(scope="module")
def cloud(databases):
    """Shared by the tests of a module."""
    with Sharing(hosts=3, databases=databases, host_down_after=600.0) as found:
        flavors(found)
        found.parts.working.settling = lambda: False
        eventually(lambda: len({*found.folders().values()}) == 2 and found.folders()["kvm1"])
        yield found


@pytest.fixture
def admin(cloud):
    """With servers that go with the test; all hosts are up afterwards."""
    found = SharedDisks(cloud)
    yield found
    found.tidy()
    assert [path.name for path in cloud.shared.iterdir()] == [".magnetar-disks"]


@pytest.mark.parametrize("before", [None, "os-stop"])
def test_the_disks_are_kept(admin, before):
    id = admin.made(config_drive=True)
    if before:
        assert admin.call.act(id, before).status == 202
        admin.call.settled(id)
    disk = admin.disk(id)
    with admin.dead("kvm1"):
        server = admin.evacuated(id)
        assert (server["OS-EXT-SRV-ATTR:host"], server.get("fault")) == ("kvm2", None)
        assert server["status"] == ("SHUTOFF" if before else "ACTIVE")
        assert admin.disk(id) == disk and admin.owner(id) == "kvm2"
    admin.clean(id, "kvm2")  # the old host has removed the server, and left its disks
    assert admin.disk(id) == disk and admin.owner(id) == "kvm2"
    with admin.dead("kvm2"):
        assert admin.evacuated(id)["OS-EXT-SRV-ATTR:host"] == "kvm1"
        assert admin.disk(id) == disk
    admin.clean(id, "kvm1")


def test_the_image_need_not_exist_any_more(admin):
    id, image = admin.made(), admin.call.image()
    with admin.dead("kvm1"), pytest.MonkeyPatch.context() as patch:
        def gone(*_args, **_more):
            raise AssertionError(image)

        patch.setattr("magnetar_control.conductor.steps.images.deliver_image", gone)
        assert admin.evacuated(id).get("fault") is None
        assert PATTERN in admin.disk(id)[0]


def test_a_server_that_is_deleted_takes_its_disks_along(admin):
    id = admin.made()
    with admin.dead("kvm1"):
        admin.evacuated(id)
        assert admin.call.delete(f"/v2.1/servers/{id}").status == 204
        eventually(lambda: not (admin.cloud.shared / id).exists())


def test_only_the_host_that_is_known_to_be_off_gives_its_disks_away(admin):
    id = admin.made()
    admin.down("kvm1")
    refused = admin.evacuate(id)
    assert refused.status == 409 and "magnetar host fence kvm1" in str(refused.json)
    assert admin.force_down("kvm1").status == 200
    assert admin.evacuated(id)["OS-EXT-SRV-ATTR:host"] == "kvm2"
    assert PATTERN in admin.disk(id)[0]
    admin.boots("kvm1")
    admin.up("kvm1")
    eventually(lambda: [one[3] for one in admin.statuses(id)] == ["completed"])
    assert admin.force_down("kvm1", forced=False).status == 200
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
    assert admin.evacuated(id)["OS-EXT-SRV-ATTR:host"] == "kvm2"
    eventually(lambda: [one[3] for one in admin.statuses(id)][-1] == "completed")
    assert PATTERN in admin.disk(id)[0] and not admin.cloud.kvm["kvm1"].runs(id)
    assert admin.force_down("kvm1", forced=False).status == 200


def test_disks_go_back_when_no_host_can_take_the_server(admin):
    id = admin.made()
    disk = admin.disk(id)
    with admin.dead("kvm1"):
        admin.cloud.kvm["kvm2"].fake.fail_next("start", HypervisorError("libvirt could not start the domain: memory."))
        server = admin.evacuated(id)
        assert server["OS-EXT-SRV-ATTR:host"] == "kvm1"  # kvm3 would have to make the disk anew
        assert admin.disk(id) == disk and admin.owner(id) == "kvm1" and not admin.cloud.kvm["kvm2"].knows(id)
    eventually(lambda: admin.cloud.kvm["kvm1"].runs(id))
    assert admin.disk(id) == disk


def test_a_host_that_does_not_share_makes_the_disks_anew_if_it_is_named(admin):
    id = admin.made()
    with admin.dead("kvm1"):
        assert admin.evacuated(id, host="kvm3")["OS-EXT-SRV-ATTR:host"] == "kvm3"
        assert PATTERN in admin.disk(id)[0]
    admin.clean(id, "kvm3")
    assert not (admin.cloud.shared / id).exists()  # its owner has returned


def test_old_microversions_say_where_the_disks_are(admin):
    id = admin.made()
    with admin.dead("kvm1"):
        for body in ({"onSharedStorage": False}, {"onSharedStorage": True, "host": "kvm3"}):
            refused = admin.evacuate(id, "2.13", **body)
            assert refused.status == 400 and "onSharedStorage" in str(refused.json)
        assert admin.evacuated(id, "2.13", onSharedStorage=True)["OS-EXT-SRV-ATTR:host"] == "kvm2"
        assert PATTERN in admin.disk(id)[0]


@pytest.mark.parametrize("kind", ["os-migrateLive", "migrate", "resize"])
def test_moves_between_hosts_that_share_copy_nothing(admin, kind):
    id = admin.made()
    disk = admin.disk(id)
    body = {"os-migrateLive": {"host": "kvm2", "block_migration": "auto"}, "migrate": {"host": "kvm2"},
            "resize": {"flavorRef": "thin"}}[kind]
    with disabled(admin.cloud, "kvm3"):
        assert admin.call.act(id, kind, body, "2.56").status == 202
        admin.call.settled(id)
    assert admin.host_of(id) == "kvm2" and admin.owner(id) == "kvm2"
    assert admin.disk(id)[1] == disk[1] and PATTERN in admin.disk(id)[0]
    if kind != "os-migrateLive":
        assert admin.call.act(id, "revertResize").status == 202
        admin.call.settled(id)
        assert admin.host_of(id) == "kvm1" and admin.owner(id) == "kvm1" and PATTERN in admin.disk(id)[0]


@pytest.mark.parametrize("late", [False, True])
def test_a_conductor_that_dies_loses_no_disk(admin, late):
    """At each of its writes; another one brings the evacuation to its end, once."""
    id = admin.made()

    def there(fate):
        host = row(admin.cloud, id).host
        target = {"kvm1": "kvm2", "kvm2": "kvm1"}[host]
        admin.dies(host)
        found = through(admin.cloud, id, "evacuate", fate, host=None, forced=False, stopped=False)
        assert (found.host, found.vm_state, found.fault) == (target, "active", None), fate.number
        assert PATTERN in admin.disk(id)[0] and admin.owner(id) == target, fate.number
        admin.returns(host)
        admin.clean(id, target)
        assert PATTERN in admin.disk(id)[0] and admin.owner(id) == target, fate.number

    until_none(admin.cloud, id, late, (there,))
