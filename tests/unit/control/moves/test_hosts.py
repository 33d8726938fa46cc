# SPDX-License-Identifier: GPL-3.0-or-later
"""Which host a move takes, and what becomes of it when hosts refuse, have no room, or are down."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import select, update

from magnetar_control.conductor.flows import server_confirm_resize
from magnetar_control.conductor.worker import retry
from magnetar_control.store.engine import tables
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.hosts import hosts
from magnetar_core.errors import HypervisorError, Unreachable

from .clouds import at, check, claims, disabled, moves, row
from .inside import with_flavors  # noqa: F401 - the fixture cloud

LARGE, SMALL = (2, 512, 2, 0), (1, 128, 1, 0)


@pytest.fixture
def hasty(monkeypatch):
    """A conductor that does not wait for hosts that are down."""
    monkeypatch.setattr(retry, "TRIES", 0)
    monkeypatch.setattr("magnetar_core.http.client.RETRY_FOR", 0.2)


def host_of(cloud, id):
    """Its host, and the other."""
    host = row(cloud, id).host
    return host, next(name for name in cloud.hosts if name != host)


def down(cloud, name):
    """The agent of a host does not answer, and that is known, also to who looks at all hosts."""
    cloud.kvm[name].stop()
    with cloud.parts.working.database.write() as connection:
        connection.execute(update(tables.host_states).where(tables.host_states.c.host == name).values(
            seen_at="2026-01-01T00:00:00.000000"))
    cloud.parts.working.states.up(name, up=False)


def up(cloud, name):
    """It does again, and who watches it has heard it: until then each look at all hosts would find it down."""
    began, deadline = utc_now(), time.monotonic() + 60
    cloud.kvm[name].start()
    heard = select(tables.host_states.c.seen_at).where(tables.host_states.c.host == name)
    while True:
        with cloud.parts.working.database.read() as connection:
            if (connection.execute(heard).scalar() or "") > began:
                break
        assert time.monotonic() < deadline
        time.sleep(0.02)
    cloud.parts.working.states.up(name, up=True)


def act(cloud, id, action, args=None, version=None):
    """Do an action, and wait until nothing is done any more."""
    reply = cloud.admin.act(id, action, args, version)
    assert reply.status == 202, reply
    return cloud.admin.settled(id)


@pytest.fixture
def alone(cloud, server):
    """No other host takes the server."""
    with disabled(cloud, host_of(cloud, server["id"])[1]):
        yield server["id"]


def test_where_no_other_host_fits_a_resize_stays_on_its_own(cloud, alone):
    host, _other = host_of(cloud, alone)
    assert act(cloud, alone, "resize", {"flavorRef": "large"})["status"] == "VERIFY_RESIZE"
    assert check(cloud, alone, waits=True)["flavor"]["ram"] == 512
    assert claims(cloud, alone) == {"server": (host, LARGE), "migration": (host, SMALL)}
    server = act(cloud, alone, "revertResize")
    assert (server["status"], server["flavor"]["original_name"]) == ("ACTIVE", "small")
    assert check(cloud, alone)["flavor"]["ram"] == 128
    assert claims(cloud, alone) == {"server": (host, (1, 128, 2, 0))}


def test_a_host_that_refuses_the_new_size_has_the_old_one_again(cloud, alone):
    host, _other = host_of(cloud, alone)
    cloud.kvm[host].fake.fail_next("start", HypervisorError("libvirt could not start the domain: no memory."))
    server = act(cloud, alone, "resize", {"flavorRef": "large"})
    assert (server["status"], server["flavor"]["original_name"]) == ("ACTIVE", "small")
    assert check(cloud, alone)["power_state"] == "running"
    assert "no memory" in row(cloud, alone).fault


def test_a_migration_never_stays(cloud, alone):
    for action, args, version in (("migrate", None, "2.1"), ("os-migrateLive", {
            "host": None, "block_migration": "auto"}, "2.34")):
        assert act(cloud, alone, action, args, version)["status"] == "ACTIVE"
        check(cloud, alone)
        assert "No valid host" in row(cloud, alone).fault and "the filters refused" in row(cloud, alone).fault
    assert [one.status for one in moves(cloud, alone)] == ["error", "error"]


def test_a_disk_that_would_shrink_is_refused_before_anything_is_done(cloud):
    id = cloud.admin.boot(flavorRef="scratch")["id"]
    server = act(cloud, id, "resize", {"flavorRef": "thin"})
    assert (server["status"], server["flavor"]["original_name"]) == ("ACTIVE", "scratch")
    check(cloud, id)
    assert "do not shrink" in row(cloud, id).fault
    cloud.admin.delete(f"/v2.1/servers/{id}")


def test_a_failure_on_the_way_leaves_the_server_running_where_it_was(cloud, server, monkeypatch):
    id = server["id"]
    host, _other = host_of(cloud, id)
    monkeypatch.setattr("magnetar_agent.migrations.source.send_file_frames", broken)
    server = act(cloud, id, "resize", {"flavorRef": "large"})
    assert (server["status"], server["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", host)
    assert check(cloud, id)["power_state"] == "running"
    assert "the disk is broken" in row(cloud, id).fault


def broken(*_given):
    """A way that does not work."""
    raise HypervisorError("the disk is broken")


def test_a_server_that_does_not_start_there_is_in_error_and_whole(cloud, server):
    id = server["id"]
    _host, other = host_of(cloud, id)
    cloud.kvm[other].fake.fail_next("start", HypervisorError("libvirt could not start the domain: no."))
    server = act(cloud, id, "resize", {"flavorRef": "large"})
    assert (server["status"], server["OS-EXT-SRV-ATTR:host"]) == ("ERROR", other)
    assert claims(cloud, id) == {"server": (other, LARGE)}
    assert act(cloud, id, "reboot", {"type": "HARD"})["status"] == "ACTIVE"
    check(cloud, id)


def test_a_resize_is_taken_back_in_place_while_the_old_host_is_down(cloud, server):
    id = server["id"]
    host, other = host_of(cloud, id)
    assert act(cloud, id, "resize", {"flavorRef": "large"})["status"] == "VERIFY_RESIZE"
    down(cloud, host)
    try:
        server = act(cloud, id, "revertResize")
    finally:
        up(cloud, host)
    assert (server["status"], server["flavor"]["original_name"]) == ("ACTIVE", "small")
    assert server["OS-EXT-SRV-ATTR:host"] == other
    assert check(cloud, id)["flavor"]["ram"] == 128
    assert claims(cloud, id) == {"server": (other, (1, 128, 2, 0))}


def test_a_resize_is_taken_back_in_place_where_the_old_host_has_no_room_for_what_grew(cloud, server):
    id = server["id"]
    host, other = host_of(cloud, id)
    assert act(cloud, id, "resize", {"flavorRef": "large"})["status"] == "VERIFY_RESIZE"
    with cloud.parts.api_database.write() as connection:
        limit = hosts.fetch_host_row(connection, host).disk_gb_limit
        connection.execute(update(tables.hosts).where(tables.hosts.c.name == host).values(
            disk_gb_limit=tables.hosts.c.disk_gb_used))
    try:
        server = act(cloud, id, "revertResize")
    finally:
        with cloud.parts.api_database.write() as connection:
            connection.execute(update(tables.hosts).where(tables.hosts.c.name == host).values(disk_gb_limit=limit))
    assert (server["status"], server["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", other)
    check(cloud, id)


def test_a_host_that_is_down_keeps_no_resize_from_being_confirmed_or_deleted(cloud):
    id = cloud.admin.boot(flavorRef="small")["id"]
    _host, other = host_of(cloud, id)
    assert act(cloud, id, "resize", {"flavorRef": "large"})["status"] == "VERIFY_RESIZE"
    down(cloud, other)
    try:
        assert cloud.admin.act(id, "confirmResize").status == 204
        cloud.admin.delete(f"/v2.1/servers/{id}")
        assert cloud.admin.settled(id) is None
    finally:
        up(cloud, other)
    assert claims(cloud, id) == {}


def test_hosts_that_are_down_end_a_move_and_leave_the_server(cloud, server, hasty):
    id = server["id"]
    host, _other = host_of(cloud, id)
    cloud.kvm[host].stop()
    try:
        reply = cloud.admin.act(id, "resize", {"flavorRef": "large"})
        assert reply.status == 202
        server = cloud.admin.settled(id)
    finally:
        up(cloud, host)
    assert (server["status"], server["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", host)
    check(cloud, id)


def test_what_nobody_confirms_is_confirmed_after_the_window(cloud, server, monkeypatch):
    id, conductor = server["id"], cloud.parts.working
    assert act(cloud, id, "resize", {"flavorRef": "large"})["status"] == "VERIFY_RESIZE"
    assert server_confirm_resize.confirm_expired(conductor) == 0
    object.__setattr__(conductor.settings, "resize_confirm_window", 60)
    assert server_confirm_resize.confirm_expired(conductor) == 0
    with conductor.database.write() as connection:
        connection.execute(update(tables.migrations).values(updated_at="2026-01-01T00:00:00.000000"))
    assert server_confirm_resize.confirm_expired(conductor) == 1
    assert server_confirm_resize.confirm_expired(conductor) == 0
    object.__setattr__(conductor.settings, "resize_confirm_window", 0)
    for _at in range(6000):
        if cloud.admin.server(id)["status"] == "ACTIVE":
            break
        conductor.over.wait(0.02)
    check(cloud, id)
    assert claims(cloud, id).keys() == {"server"}


@pytest.mark.parametrize(("action", "status"), [("confirmResize", 409), ("revertResize", 409)])
def test_nothing_to_say_a_word_about(cloud, server, action, status):
    assert cloud.admin.act(server["id"], action).status == status


@pytest.fixture
def torn(cloud, hasty, monkeypatch):
    """A server between two hosts, of which the second is down."""
    id = cloud.admin.boot(flavorRef="small")["id"]
    (host, other), torn_down, deadline = host_of(cloud, id), [], time.monotonic() + 120

    def tear(*_given):
        down(cloud, other)
        torn_down.append(other)
        raise Unreachable("the target is gone")

    with monkeypatch.context() as patched:
        patched.setattr("magnetar_agent.migrations.source.send_file_frames", tear)
        while True:  # a slow machine may refuse the move before it begins, or take it back before the target is down
            assert cloud.admin.act(id, "migrate").status == 202
            if cloud.admin.settled(id)["status"] == "ERROR":
                break
            if torn_down:
                up(cloud, torn_down.pop())
            assert time.monotonic() < deadline
    assert {name for name, _amounts in claims(cloud, id).values()} == {host, other}
    return id, host, other


def test_a_server_between_two_hosts_is_moved_again(cloud, torn):
    id, host, other = torn
    up(cloud, other)
    assert cloud.admin.act(id, "os-resetState", {"state": "active"}).status == 202
    server = act(cloud, id, "migrate")
    assert (server["status"], server["OS-EXT-SRV-ATTR:host"]) == ("VERIFY_RESIZE", other), row(cloud, id).fault
    check(cloud, id, waits=True)
    assert act(cloud, id, "revertResize")["OS-EXT-SRV-ATTR:host"] == host
    assert check(cloud, id)["power_state"] == "running"
    cloud.admin.delete(f"/v2.1/servers/{id}")
    assert cloud.admin.settled(id) is None


def test_a_server_between_two_hosts_of_which_one_is_down_is_deleted_and_leaves_nothing(cloud, torn):
    id, host, other = torn
    try:
        assert cloud.admin.delete(f"/v2.1/servers/{id}").status == 204
        left = cloud.admin.settled(id)
        assert left is None, left
    finally:
        up(cloud, other)
    assert claims(cloud, id) == {}
    for _at in range(6000):
        if not at(cloud, id) and not any(kvm.fake.domain(id) for kvm in cloud.kvm.values()):
            break
        cloud.parts.working.over.wait(0.02)
    assert at(cloud, id) == {}
    assert not (cloud.kvm[host].agent.host.settings.state_dir / "servers" / id).exists()
