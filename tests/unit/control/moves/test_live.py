# SPDX-License-Identifier: GPL-3.0-or-later
"""Live migration: the guest runs on; what fails or is aborted leaves it where it is."""

from __future__ import annotations

import pytest

from magnetar_control.conductor.steps import migration
from magnetar_control.scheduler.choose import NoValidHost
from magnetar_core.errors import HypervisorError
from tests.support.agent.pair import Held

from .clouds import check, moves, row
from .inside import with_flavors  # noqa: F401 - the fixture cloud

ANY = {"host": None, "block_migration": "auto"}


def other(cloud, host):
    """The other host."""
    return next(name for name in cloud.hosts if name != host)


def way(cloud, id):
    """The path of the live migration that goes on."""
    found = cloud.admin.get(f"/v2.1/servers/{id}/migrations", "2.80").json["migrations"]
    return f"/v2.1/servers/{id}/migrations/{found[0]['id']}"


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_a_guest_goes_live(cloud, server, paused, named):
    id, host = server["id"], server["OS-EXT-SRV-ATTR:host"]
    if paused:
        cloud.admin.act(id, "pause")
        cloud.admin.settled(id)
    args = {**ANY, "host": other(cloud, host) if named else None}
    assert cloud.admin.act(id, "os-migrateLive", args, "2.30").status == 202
    server = cloud.admin.settled(id)
    assert (server["status"], server["OS-EXT-SRV-ATTR:host"]) == ("PAUSED" if paused else "ACTIVE", other(cloud, host))
    assert check(cloud, id)["power_state"] == ("paused" if paused else "running")
    assert [one.status for one in moves(cloud, id)] == ["completed"]
    assert cloud.admin.get(f"/v2.1/servers/{id}/migrations", "2.23").json == {"migrations": []}


def test_a_live_migration_is_seen_and_aborted(cloud, server):
    id, host = server["id"], server["OS-EXT-SRV-ATTR:host"]
    held = Held(cloud.kvm[host], "live", 4)
    try:
        cloud.admin.act(id, "os-migrateLive", ANY, "2.30")
        assert held.reached.wait(300)
        shown = cloud.admin.get(way(cloud, id), "2.80").json["migration"]
        assert [shown[name] for name in ("status", "source_compute", "dest_compute")] == [
            "running", host, other(cloud, host)]
        assert cloud.admin.server(id)["status"] == "MIGRATING"
        assert cloud.admin.delete(way(cloud, id), "2.24").status == 202
        server = cloud.admin.settled(id)
    finally:
        held.on.set()
        cloud.kvm[host].fake.migrate = held._whole
    assert (server["status"], server["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", host)
    assert check(cloud, id)["power_state"] == "running"
    assert [one.status for one in moves(cloud, id)] == ["cancelled"]
    done = cloud.admin.get(f"/v2.1/servers/{id}/os-instance-actions").json["instanceActions"]
    assert [one["action"] for one in done[:2]] == ["live_migration_cancel", "live-migration"]


def test_force_complete_lets_the_guest_stand_still_until_it_is_there(cloud, server):
    id, host = server["id"], server["OS-EXT-SRV-ATTR:host"]
    held = Held(cloud.kvm[host], "live", 4)
    try:
        cloud.admin.act(id, "os-migrateLive", ANY, "2.30")
        assert held.reached.wait(300)
        assert cloud.admin.post(f"{way(cloud, id)}/action", {"force_complete": None}, "2.22").status == 202
        for _at in range(12000):
            if cloud.kvm[host].fake.domain(id).state == "paused":
                break
            held.on.wait(0.01)
        assert cloud.kvm[host].fake.domain(id).state == "paused"
    finally:
        held.on.set()
        cloud.kvm[host].fake.migrate = held._whole
    server = cloud.admin.settled(id)
    assert (server["status"], server["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", other(cloud, host))
    assert check(cloud, id)["power_state"] == "running"


def test_a_failure_leaves_the_server_where_it_is(cloud, server):
    id, host = server["id"], server["OS-EXT-SRV-ATTR:host"]
    cloud.kvm[host].fake.fail_next("migrate", HypervisorError("libvirt could not migrate the domain: no."))
    cloud.admin.act(id, "os-migrateLive", ANY, "2.30")
    server = cloud.admin.settled(id)
    assert (server["status"], server["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", host)
    check(cloud, id)
    assert [one.status for one in moves(cloud, id)] == ["error"]
    assert "no." in row(cloud, id).fault


@pytest.mark.parametrize(("action", "args", "status"), [
    ("os-migrateLive", ANY, "ACTIVE"), ("migrate", None, "VERIFY_RESIZE")])
def test_a_move_waits_for_hosts_that_a_new_conductor_has_not_heard(cloud, server, monkeypatch, action, args, status):
    """After an upgrade all hosts look down until their agents are heard."""
    id, host, refusals, place = server["id"], server["OS-EXT-SRV-ATTR:host"], [], migration.place_server

    def place_server(*words, **more):
        if not refusals:
            refusals.append(id)
            raise NoValidHost(explanation="Of 2 hosts the filters refused: ComputeFilter 2.")
        return place(*words, **more)

    monkeypatch.setattr(migration, "place_server", place_server)
    monkeypatch.setattr(cloud.parts.working, "settling", lambda: True)
    assert cloud.admin.act(id, action, args, "2.56" if action == "migrate" else "2.30").status == 202
    server = cloud.admin.settled(id)
    assert (server["status"], server["OS-EXT-SRV-ATTR:host"]) == (status, other(cloud, host)) and refusals == [id]


def test_a_deletion_ends_a_live_migration(cloud):
    server = cloud.admin.boot(flavorRef="small")
    id, host = server["id"], server["OS-EXT-SRV-ATTR:host"]
    held = Held(cloud.kvm[host], "live", 4)
    try:
        cloud.admin.act(id, "os-migrateLive", ANY, "2.30")
        assert held.reached.wait(300)
        cloud.admin.delete(f"/v2.1/servers/{id}")
        assert cloud.admin.settled(id) is None
    finally:
        held.on.set()
        cloud.kvm[host].fake.migrate = held._whole
    assert not any(kvm.knows(id) or kvm.fake.domain(id) for kvm in cloud.kvm.values())


def test_what_cannot_be_asked(cloud, server):
    id, path = server["id"], f"/v2.1/servers/{server['id']}/migrations"
    assert cloud.admin.delete(f"{path}/1", "2.24").status == 409
    assert cloud.admin.get(f"{path}/999999", "2.23").status == 404
    assert cloud.admin.get(f"{path}/x", "2.23").status == 404
    assert cloud.admin.get(path, "2.22").status == 404
    assert cloud.admin.act(id, "os-migrateLive", {**ANY, "host": "nowhere"}, "2.30").status == 400
    user = cloud.caller("live-user", "live-project")
    assert user.get(path, "2.23").status == 404
