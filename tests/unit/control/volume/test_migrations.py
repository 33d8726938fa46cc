# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes migrate between pools and hosts, and get other types: done, refused, cancelled, and over hosts that are
away."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import update

from magnetar_control.api.volume.app import VolumeApplication
from magnetar_control.services.volume import migration_worker
from magnetar_control.services.volume.tables import volumes
from magnetar_control.store.engine.database import Database
from magnetar_core.errors import HypervisorError, NoSpace
from magnetar_core.http import client
from tests.support.control.serving import ADMIN, ALICE, READER, Asker, authenticate

from .two_hosts import (
    TwoHosts,
    act_on_volume,
    attach,
    migrate_volume_to,
    new_volume,
    retype_volume,
    two_hosts,
)

SERVER = str(uuid.uuid4())


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is away is not waited for."""
    monkeypatch.setattr(client, "RETRY_FOR", 0.2)


@pytest.fixture
def site(database: Database) -> Iterator[TwoHosts]:
    with two_hosts(database) as found:
        yield found


@pytest.fixture
def ask(site: TwoHosts) -> Asker:
    """Asks as a user, at the newest microversion."""
    return Asker(VolumeApplication(site.service, authenticate), headers={"openstack-api-version": "volume latest"})


@pytest.fixture
def volume(ask: Asker, site: TwoHosts) -> str:
    """The id of a volume on kvm1."""
    return new_volume(ask, site)


def seen(ask: Asker, id: str) -> tuple[str, str | None, str]:
    """Status, migration status and host that an administrator sees."""
    found = ask.as_(ADMIN)("GET", f"/v3/volumes/{id}")["volume"]
    assert found["os-vol-mig-status-attr:migstat"] == found["migration_status"]
    return found["status"], found["migration_status"], found["os-vol-host-attr:host"]


def test_to_another_host(ask: Asker, site: TwoHosts, volume: str) -> None:
    assert site.lies(volume) == ["kvm1/default"]
    migrate_volume_to(ask, volume, "kvm2@magnetar#default", force_host_copy=True, lock_volume=False)
    assert seen(ask, volume) == ("available", "starting", "kvm1@magnetar#default")
    assert site.removals() == {("kvm2", "volume", False), ("kvm1", "volume_export", False)}
    plain = ask("GET", f"/v3/volumes/{volume}")["volume"]
    assert "os-vol-mig-status-attr:migstat" not in plain and "migration_status" not in plain
    assert site.work() == 1
    assert seen(ask, volume) == ("available", "success", "kvm2@magnetar#default")
    assert site.lies(volume) == ["kvm2/default"] and site.removals() == set()
    assert site.row(volume)["pool_id"] and site.row(volume)["migration"] is None
    migrate_volume_to(ask, volume, "kvm1", lock_volume=True)
    assert seen(ask, volume)[0] == "maintenance"
    site.work()
    assert seen(ask, volume) == ("available", "success", "kvm1@magnetar#default")
    act_on_volume(ask, volume, "os-extend", {"new_size": 2})
    site.work()
    assert site.document("kvm1", volume).want["size"] == 2
    ask("DELETE", f"/v3/volumes/{volume}", status=202)
    site.work()
    assert site.lies(volume) == []


def test_an_encrypted_volume_keeps_its_key(ask: Asker, site: TwoHosts) -> None:
    kind = ask.as_(ADMIN)("POST", "/v3/types", {"volume_type": {"name": "hidden", "extra_specs": {
        "pool_name": "default"}}})["volume_type"]["id"]
    ask.as_(ADMIN)("POST", f"/v3/types/{kind}/encryption", {"encryption": {"provider": "luks"}})
    id = new_volume(ask, site, volume_type="hidden")
    migrate_volume_to(ask, id, "kvm2")
    site.work()
    assert site.lies(id) == ["kvm2/default"] and site.document("kvm2", id).want["format"] == "luks"
    assert "cannot change whether the volume is encrypted" in retype_volume(ask, id, "fast", 400)


def test_to_another_type(ask: Asker, site: TwoHosts, volume: str) -> None:
    """On its host where that has room in the type's pool, otherwise on another."""
    assert "Retype requires migration" in retype_volume(ask, volume, "fast", 400, "never")
    retype_volume(ask, volume, "fast")
    assert seen(ask, volume)[:2] == ("retyping", "starting")
    assert site.work() == 1
    assert seen(ask, volume) == ("available", "success", "kvm1@magnetar#fast")
    assert site.lies(volume) == ["kvm1/fast"] and site.row(volume)["volume_type"] == "fast"
    site.report("kvm1", default={"free_gb": 0})
    retype_volume(ask, volume, "default")
    site.work()
    assert site.lies(volume) == ["kvm2/default"] and site.row(volume)["volume_type"] == "default"
    site.report("kvm2", free=0)
    site.report("kvm1", free=0)
    assert "No valid backend was found" in retype_volume(ask, volume, "fast", 400)


def test_to_a_type_of_the_same_pool(ask: Asker, site: TwoHosts, volume: str) -> None:
    ask.as_(ADMIN)("POST", "/v3/types", {"volume_type": {"name": "gold", "extra_specs": {"pool_name": "default"}}})
    retype_volume(ask, volume, "gold", policy=None)
    assert (site.row(volume)["volume_type"], site.row(volume)["status"], site.work()) == ("gold", "available", 0)
    assert "different than" in retype_volume(ask, volume, "gold", 400)
    assert "asks for the pool default" in migrate_volume_to(ask, volume, "kvm2@magnetar#fast", 400)
    ask.as_(ADMIN)("POST", "/v3/types", {"volume_type": {"name": "many", "extra_specs": {
        "multiattach": "<is> True", "pool_name": "default"}}})
    assert "several servers" in retype_volume(ask, volume, "many", 400)
    retype_volume(ask, volume, "nothing", 404)
    retype_volume(ask, volume, "fast", 403, who=READER)


@pytest.mark.parametrize(("host", "status", "why"), [
    ("kvm1@magnetar#default", 400, "must be different than the current ones"),
    ("kvm1", 400, "must be different than the current ones"),
    ("kvm3@magnetar#default", 400, "No available service named 'kvm3@magnetar#default'"),
    ("kvm2@lvmdriver#default", 400, "No available service named"), ("kvm2@magnetar#none", 400, "No available service"),
    ("", 400, "host: or cluster is required"), ("kvm2@magnetar#fast", 400, "asks for the pool default"),
])
def test_targets_that_are_refused(ask: Asker, site: TwoHosts, volume: str, host: str, status: int, why: str) -> None:
    assert why in migrate_volume_to(ask, volume, host, status)
    assert site.row(volume)["task"] is None and site.removals() == set()


def test_states_that_are_refused(ask: Asker, site: TwoHosts, volume: str) -> None:
    assert "role admin" in act_on_volume(ask, volume, "os-migrate_volume", {"host": "kvm2"}, 403, ALICE)
    assert "No available service" in act_on_volume(ask, volume, "os-migrate_volume", {"cluster": "kvm2"}, 400)
    migrate_volume_to(ask, str(uuid.uuid4()), "kvm2", 404)
    site.report("kvm2", free=0)
    assert "has 0 GiB free, and the volume has 1 GiB" in migrate_volume_to(ask, volume, "kvm2", 400)
    site.report("kvm2", default={"state": "down", "reason": "Nothing is mounted."})
    assert "No available service" in migrate_volume_to(ask, volume, "kvm2", 400)
    site.report("kvm2", default={"identity": "dir:kvm1:default", "shared": True})
    assert "which both hosts reach" in migrate_volume_to(ask, volume, "kvm2", 400)
    site.report("kvm2")
    site.down = {"kvm2"}
    assert "No available service" in migrate_volume_to(ask, volume, "kvm2", 400)
    site.down = set()
    ask("POST", "/v3/snapshots", {"snapshot": {"volume_id": volume}})
    site.work()
    assert "must not have snapshots" in migrate_volume_to(ask, volume, "kvm2", 400)
    assert "must not have snapshots" in retype_volume(ask, volume, "fast", 400)
    other = new_volume(ask, site)
    ask("POST", "/v3/volumes", {"volume": {"size": 1, "source_volid": other}})
    assert "is being copied" in migrate_volume_to(ask, other, "kvm2", 400)
    site.work()
    reserved = new_volume(ask, site)
    site.service.reserve(ADMIN, reserved, SERVER)
    assert "current status is: reserved" in migrate_volume_to(ask, reserved, "kvm2", 400)
    with site.database.write() as connection:
        connection.execute(update(volumes).where(volumes.c.id == other).values(task="extend"))
    assert "busy with other work" in migrate_volume_to(ask, other, "kvm2", 400)
    assert site.removals() == set()


def test_what_is_refused_while_it_migrates(ask: Asker, site: TwoHosts, volume: str) -> None:
    migrate_volume_to(ask, volume, "kvm2")
    assert "must not be migrating" in migrate_volume_to(ask, volume, "kvm2", 400)
    for action, body in (("os-extend", {"new_size": 2}), ("os-reserve", {}), ("os-attach", {"instance_uuid": SERVER}),
                         ("os-volume_upload_image", {"image_name": "i"})):
        assert "must not be migrating" in act_on_volume(ask, volume, action, body, 400), action
    for path, body in (("snapshots", {"snapshot": {"volume_id": volume}}),
                       ("volumes", {"volume": {"size": 1, "source_volid": volume}}),
                       ("volume-transfers", {"transfer": {"volume_id": volume}}),
                       ("attachments", {"attachment": {"volume_uuid": volume, "instance_uuid": SERVER}})):
        assert "must not be migrating" in ask("POST", f"/v3/{path}", body, status=400)["badRequest"]["message"], path
    assert "must not be migrating" in ask("DELETE", f"/v3/volumes/{volume}", status=400)["badRequest"]["message"]
    assert "active migration" in retype_volume(ask, volume, "fast", 400)
    site.work()
    assert site.lies(volume) == ["kvm2/default"]


@pytest.mark.parametrize("host", ["kvm1", "kvm2"])
def test_a_host_is_away_and_returns(ask: Asker, site: TwoHosts, volume: str, host: str) -> None:
    migrate_volume_to(ask, volume, "kvm2")
    site.hosts[host].stop()
    assert site.work(most=2) == 2 and seen(ask, volume)[1] == "migrating"
    site.hosts[host].start()
    site.work()
    assert seen(ask, volume) == ("available", "success", "kvm2@magnetar#default")
    assert site.lies(volume) == ["kvm2/default"] and site.removals() == set()


def test_the_source_is_away_when_the_volume_has_arrived(ask: Asker, site: TwoHosts, volume: str,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """The old content goes when the host is back; until then the volume does not migrate there."""
    migrate_volume_to(ask, volume, "kvm2")
    monkeypatch.setattr(migration_worker, "_remove", lambda *_args: False)
    site.work()
    assert seen(ask, volume) == ("available", "success", "kvm2@magnetar#default")
    assert site.removals() == {("kvm1", "volume", True), ("kvm1", "volume_export", True)}
    assert "has not removed its content yet" in migrate_volume_to(ask, volume, "kvm1", 409)
    monkeypatch.undo()
    site.conduct()
    assert site.removals() == set() and site.lies(volume) == ["kvm2/default"]
    migrate_volume_to(ask, volume, "kvm1")
    site.work()
    assert site.lies(volume) == ["kvm1/default"]


@pytest.mark.parametrize(("error", "tasks"), [
    (NoSpace("The file system is full."), 2), (HypervisorError("qemu-img: Input/output error"), 7)], ids=["full", "io"])
def test_a_copy_that_fails_leaves_the_volume_as_it_was(ask: Asker, site: TwoHosts, volume: str,
                                                       monkeypatch: pytest.MonkeyPatch, error: Exception,
                                                       tasks: int) -> None:
    def fail(*_args: Any, **_more: Any) -> None:
        raise error

    monkeypatch.setattr(site.hosts["kvm2"].fake, "copy_disk", fail)
    migrate_volume_to(ask, volume, "kvm2", lock_volume=True)
    assert site.work() == tasks
    assert seen(ask, volume) == ("available", "error", "kvm1@magnetar#default")
    [message] = ask("GET", "/v3/messages")["messages"]
    assert message["resource_uuid"] == volume
    site.conduct()
    assert site.lies(volume) == ["kvm1/default"] and site.removals() == set()
    monkeypatch.undo()
    migrate_volume_to(ask, volume, "kvm2")
    site.work()
    assert site.lies(volume) == ["kvm2/default"] and seen(ask, volume)[1] == "success"


@pytest.mark.parametrize("body", [{"status": "available"}, {"migration_status": "none"}], ids=str)
@pytest.mark.parametrize("target", ["kvm2", "type"])
def test_an_administrator_ends_it(ask: Asker, site: TwoHosts, volume: str, body: dict[str, str], target: str) -> None:
    if target == "type":
        retype_volume(ask, volume, "fast")
    else:
        migrate_volume_to(ask, volume, "kvm2")
    site.service.worker._take(volumes, volume)
    act_on_volume(ask, volume, "os-reset_status", body)
    site.work()
    site.conduct()
    assert seen(ask, volume) == ("available", "error", "kvm1@magnetar#default")
    assert site.lies(volume) == ["kvm1/default"] and site.removals() == set()
    act_on_volume(ask, volume, "os-reset_status", {"migration_status": "none"})
    assert seen(ask, volume)[1] is None


def test_it_is_deleted_by_force_while_it_is_copied(ask: Asker, site: TwoHosts, volume: str,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    copy = site.hosts["kvm2"].fake.copy_disk

    def meanwhile(*args: Any, **more: Any) -> None:
        act_on_volume(ask, volume, "os-force_delete", {})
        copy(*args, **more)

    monkeypatch.setattr(site.hosts["kvm2"].fake, "copy_disk", meanwhile)
    migrate_volume_to(ask, volume, "kvm2")
    site.work()
    site.conduct()
    assert site.row(volume) is None and site.lies(volume) == [] and site.removals() == set()
    assert not site.hosts["kvm1"].agent.host.documents.list("volume_export")


def test_under_a_running_server(ask: Asker, site: TwoHosts, volume: str) -> None:
    """Within its host, as QEMU copies it; nowhere else."""
    server = attach(site, volume)
    assert "host does not reach" in migrate_volume_to(ask, volume, "kvm2@magnetar#default", 400)
    retype_volume(ask, volume, "fast")
    assert site.work(most=1) == 1 and seen(ask, volume)[:2] == ("retyping", "migrating")
    site.work()
    assert seen(ask, volume) == ("in-use", "success", "kvm1@magnetar#fast") and site.lies(volume) == ["kvm1/fast"]
    [disk] = [disk for disk in site.hosts["kvm1"].fake.running(server).disks if disk.path.name == volume]
    assert disk.path.parent.name == "kvm1-fast"


def test_under_a_server_of_another_host(ask: Asker, site: TwoHosts, volume: str) -> None:
    attachment = site.service.reserve(ADMIN, volume, SERVER)
    site.service.attached(attachment["id"], "kvm2", "/dev/vdb")
    for target in ("kvm2@magnetar#default", "kvm1@magnetar#fast"):
        assert migrate_volume_to(ask, volume, target, 400)
    assert "attached to a server of another host" in retype_volume(ask, volume, "fast", 400)


def test_a_pool_that_the_servers_host_reaches_too(ask: Asker, site: TwoHosts, volume: str) -> None:
    """The pool counts, and not the host that the request names."""
    for name in ("kvm1", "kvm2"):
        site.report(name, fast={"identity": "nfs:nas:/fast", "kind": "nfs", "shared": True})
    ask.as_(ADMIN)("POST", "/v3/types", {"volume_type": {"name": "any"}})
    retype_volume(ask, volume, "any", policy=None)
    attach(site, volume)
    migrate_volume_to(ask, volume, "kvm2@magnetar#fast")
    site.work()
    assert seen(ask, volume) == ("in-use", "success", "kvm1@magnetar#fast")


def test_the_server_goes_while_its_volume_moves(ask: Asker, site: TwoHosts, volume: str) -> None:
    server = attach(site, volume)
    retype_volume(ask, volume, "fast")
    site.work(most=1)
    site.hosts["kvm1"].side().client.delete("server", server)
    [attachment] = site.service.volumes.show(ADMIN, volume)["attachments"]
    site.service.detached(attachment["id"])
    site.work()
    assert seen(ask, volume) == ("available", "success", "kvm1@magnetar#fast") and site.lies(volume) == ["kvm1/fast"]
    retype_volume(ask, volume, "default")
    site.service.delete(ADMIN, volume)  # with its server
    site.work()
    assert site.row(volume) is None and site.lies(volume) == []
