# SPDX-License-Identifier: GPL-3.0-or-later
"""How live migrations are steered: what the settings mean, that agents are asked for it, force, and how many hosts are
asked."""

from __future__ import annotations

import dataclasses

import pytest

from magnetar_control.conductor.steps import migration
from magnetar_control.settings_file import make_settings
from magnetar_core.errors import InvalidSettings, TimedOut
from tests.support.agent.pair import Held

from .clouds import check, claims, disabled, flavors, moves, row
from .inside import Inside

ANY = {"block_migration": "auto", "host": None}
FLAVOR = {"vcpus": 1, "ram": 3000, "disk": 4, "ephemeral": 1, "swap": 512, "name": "m"}
DEFAULT = {"max_downtime": 500, "downtime_steps": 10, "downtime_delay": 675, "bandwidth": None, "post_copy": False,
           "auto_converge": True, "on_time_limit": "abort", "time_limit": 7200}


@pytest.mark.parametrize(("given", "expected"), [
    ({}, {}),
    ({"completion_timeout": 0}, {"time_limit": None}),
    ({"completion_timeout": 10**6}, {"time_limit": 604800}),
    ({"timeout_action": "force_complete"}, {"on_time_limit": "pause"}),
    ({"timeout_action": "force_complete", "permit_post_copy": True}, {"on_time_limit": "post_copy", "post_copy": True}),
    ({"permit_post_copy": True}, {"post_copy": True}),
    ({"bandwidth": 100, "permit_auto_converge": False}, {"bandwidth": 100, "auto_converge": False}),
    ({"downtime": 100, "downtime_steps": 3, "downtime_delay": 3},
     {"max_downtime": 100, "downtime_steps": 3, "downtime_delay": 27})])
def test_what_settings_mean_for_a_server_of_nine_gibibytes(given, expected):
    settings = make_settings({f"live_migration_{name}": value for name, value in given.items()})
    assert migration.live_migration_options(settings, FLAVOR, False, False) == {**DEFAULT, **expected}


def test_there_is_no_post_copy_with_volumes():
    settings = make_settings({"live_migration_permit_post_copy": True,
                              "live_migration_timeout_action": "force_complete"})
    found = migration.live_migration_options(settings, FLAVOR, True, True)
    assert (found["post_copy"], found["on_time_limit"]) == (False, "pause")
    assert found["time_limit"] == 800 * (3 + 1 + 1)  # a root disk that is a volume does not go along


def test_a_small_server_counts_as_two_gibibytes():
    assert migration.size_in_gib({**FLAVOR, "ram": 64, "disk": 0, "ephemeral": 0, "swap": 0}, False) == 2


def test_agents_are_waited_for_longer_than_it_may_take():
    settings = make_settings({"action_timeout": 60.0})
    assert migration.live_migration_patience(settings, {"time_limit": 7200}) > 7200
    assert migration.live_migration_patience(settings, {"time_limit": None}) > 86400


@pytest.mark.parametrize("given", [
    {"live_migration_downtime": 99}, {"live_migration_downtime_steps": 2}, {"live_migration_downtime_delay": 0},
    {"live_migration_timeout_action": "wait"}, {"live_migration_bandwidth": -1}, {"migrate_max_retries": -2},
    {"live_migration_completion_timeout": -1}])
def test_settings_that_mean_nothing_are_refused(given):
    (name,) = given
    with pytest.raises(InvalidSettings, match=name):
        make_settings(given)


# In a cloud ----------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def cloud():
    """Agents in this process."""
    with Inside(hosts=3, live_migration_permit_post_copy=True, live_migration_bandwidth=200) as found:
        flavors(found)
        yield found


@pytest.fixture
def settings(cloud):
    """Change the conductor's settings."""
    usual = cloud.parts.working.settings

    def change(**given):
        cloud.parts.working.settings = dataclasses.replace(usual, **given)

    yield change
    cloud.parts.working.settings = usual


def others(cloud, id):
    return [name for name in cloud.hosts if name != row(cloud, id).host]


def live(cloud, id, version="2.30", **args):
    assert cloud.admin.act(id, "os-migrateLive", {**ANY, **args}, version).status == 202
    return cloud.admin.settled(id)


def test_the_agent_is_asked_for_it(cloud, server):
    id, host = server["id"], row(cloud, server["id"]).host
    live(cloud, id)
    (half,) = [one for one in cloud.kvm[host].agent.host.documents.list("migration")
               if one.want["server"] == id and one.want["side"] == "source"]
    assert {name: half.want[name] for name in ("bandwidth", "post_copy", "time_limit", "max_downtime",
                                               "downtime_steps", "auto_converge")} == {
        "bandwidth": 200, "post_copy": True, "time_limit": 1600, "max_downtime": 500, "downtime_steps": 10,
        "auto_converge": True}
    assert row(cloud, id).host != host


def test_force_complete_is_post_copy_where_that_is_permitted(cloud, server):
    id, host = server["id"], server["OS-EXT-SRV-ATTR:host"]
    held = Held(cloud.kvm[host], "live", 4)
    try:
        cloud.admin.act(id, "os-migrateLive", ANY, "2.30")
        assert held.reached.wait(60)
        found = cloud.admin.get(f"/v2.1/servers/{id}/migrations", "2.80").json["migrations"]
        path = f"/v2.1/servers/{id}/migrations/{found[0]['id']}/action"
        assert cloud.admin.post(path, {"force_complete": None}, "2.22").status == 202
        for _at in range(6000):
            if cloud.kvm[host].fake.post_copied:
                break
            held.on.wait(0.01)
        assert cloud.kvm[host].fake.post_copied == [id] and cloud.kvm[host].fake.domain(id).state == "running"
    finally:
        held.on.set()
        cloud.kvm[host].fake.migrate = held._whole
    assert cloud.admin.settled(id)["status"] == "ACTIVE"
    check(cloud, id)


def test_one_that_takes_too_long_is_cancelled(cloud, server):
    """As in Nova; the fault says why."""
    id, host = server["id"], server["OS-EXT-SRV-ATTR:host"]
    cloud.kvm[host].fake.fail_next("migrate", TimedOut("The migration took longer than 1600 s and was aborted."))
    server = live(cloud, id)
    assert (server["status"], server["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", host)
    assert [one.status for one in moves(cloud, id)] == ["cancelled"]
    assert "1600 s" in row(cloud, id).fault and len(claims(cloud, id)) == 1
    check(cloud, id)


@pytest.mark.parametrize(("version", "force", "goes"), [
    ("2.25", None, True), ("2.30", None, False), ("2.30", False, False), ("2.30", True, True), ("2.67", True, True),
    ("2.68", None, False)])
def test_force_takes_a_host_that_the_scheduler_would_not(cloud, server, version, force, goes):
    id = server["id"]
    there = others(cloud, id)[0]
    with disabled(cloud, there):
        found = live(cloud, id, version, host=there, **({} if force is None else {"force": force}))
    assert (found["OS-EXT-SRV-ATTR:host"] == there) is goes
    check(cloud, id)
    assert {host for host, _amounts in claims(cloud, id).values()} == {found["OS-EXT-SRV-ATTR:host"]}


def test_force_needs_room_all_the_same(cloud, server):
    id = server["id"]
    there = others(cloud, id)[0]
    cloud.kvm[there].fake.alien_cpu = "<cpu>fake</cpu>"
    try:
        found = live(cloud, id, host=there, force=True)
    finally:
        cloud.kvm[there].fake.alien_cpu = None
    assert found["OS-EXT-SRV-ATTR:host"] != there and "CPU" in row(cloud, id).fault


def test_force_needs_a_host(cloud, server):
    reply = cloud.admin.act(server["id"], "os-migrateLive", {**ANY, "force": True}, "2.30")
    assert reply.status == 400
    assert reply.json["badRequest"]["message"] == "Can't force to a non-provided destination"
    assert not moves(cloud, server["id"])


@pytest.mark.parametrize(("retries", "goes"), [(-1, True), (1, True), (0, False)])
def test_the_next_host_is_asked_when_one_refuses(cloud, server, settings, retries, goes):
    settings(migrate_max_retries=retries, max_attempts=1)
    id, asked = server["id"], []
    refusing = others(cloud, id)

    def once(kvm):
        def lacks(cpu):
            asked.append(kvm.name)
            return "" if len(asked) > 1 else "fake: it lacks avx"
        return lacks

    for name in refusing:
        cloud.kvm[name].fake.cpu_lacks = once(cloud.kvm[name])
    try:
        found = live(cloud, id)
    finally:
        for name in refusing:
            del cloud.kvm[name].fake.cpu_lacks
    assert (found["OS-EXT-SRV-ATTR:host"] in refusing) is goes and len(set(asked)) == (2 if goes else 1)
    check(cloud, id)
