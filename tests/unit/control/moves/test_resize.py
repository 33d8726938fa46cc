# SPDX-License-Identifier: GPL-3.0-or-later
"""Resize and cold migration: they wait for a word, and both words lead to a whole server."""

from __future__ import annotations

import pytest

from .clouds import check, claims, moves, row

LARGE, SMALL = (2, 512, 2, 0), (1, 128, 1, 0)


def ask(cloud, id, action, args=None, version=None):
    """Do an action, and wait until nothing is done any more."""
    reply = cloud.admin.act(id, action, args, version)
    assert reply.status in (202, 204), reply
    return cloud.admin.settled(id)


def test_a_resize_goes_to_another_host_and_waits(cloud):
    server = cloud.admin.boot(flavorRef="small")
    id, host = server["id"], server["OS-EXT-SRV-ATTR:host"]
    server = ask(cloud, id, "resize", {"flavorRef": "large"})
    assert (server["status"], server["flavor"]["original_name"]) == ("VERIFY_RESIZE", "large")
    assert server["OS-EXT-SRV-ATTR:host"] != host
    assert check(cloud, id, waits=True)["power_state"] == "running"
    assert claims(cloud, id)["migration"] == (host, SMALL)
    assert moves(cloud, id)[0].status == "finished"
    cloud.admin.delete(f"/v2.1/servers/{id}")
    assert cloud.admin.settled(id) is None
    assert claims(cloud, id) == {}


@pytest.mark.parametrize("off", [False, True])
def test_a_resize_is_confirmed(cloud, off):
    id = cloud.admin.boot(flavorRef="small")["id"]
    if off:
        ask(cloud, id, "os-stop")
    ask(cloud, id, "resize", {"flavorRef": "large"})
    assert cloud.admin.act(id, "confirmResize").status == 204
    server = confirmed(cloud, id)
    assert server["status"] == ("SHUTOFF" if off else "ACTIVE")
    assert check(cloud, id)["power_state"] == ("off" if off else "running")
    assert claims(cloud, id) == {"server": (row(cloud, id).host, LARGE)}
    assert moves(cloud, id)[0].status == "confirmed"
    cloud.admin.delete(f"/v2.1/servers/{id}")


def confirmed(cloud, id):
    """confirmResize has no task: wait for the status."""
    from time import sleep

    for _at in range(12000):
        server = cloud.admin.server(id)
        if server["status"] != "VERIFY_RESIZE":
            return server
        sleep(0.01)
    raise AssertionError


@pytest.mark.parametrize("off", [False, True])
def test_a_resize_is_taken_back_with_what_was_written_meanwhile(cloud, off):
    server = cloud.admin.boot(flavorRef="small")
    id, host = server["id"], server["OS-EXT-SRV-ATTR:host"]
    if off:
        ask(cloud, id, "os-stop")
    ask(cloud, id, "resize", {"flavorRef": "large"})
    server = ask(cloud, id, "revertResize")
    assert (server["status"], server["flavor"]["original_name"]) == ("SHUTOFF" if off else "ACTIVE", "small")
    assert (server["flavor"]["disk"], server["OS-EXT-SRV-ATTR:host"]) == (1, host)
    have = check(cloud, id)
    assert have["flavor"]["disk"] == 2, "disks never shrink"
    assert claims(cloud, id) == {"server": (host, (1, 128, 2, 0))}
    assert moves(cloud, id)[0].status == "reverted"
    cloud.admin.delete(f"/v2.1/servers/{id}")


@pytest.mark.parametrize("word", ["confirmResize", "revertResize"])
def test_a_cold_migration_changes_the_host_only(cloud, word):
    server = cloud.admin.boot(flavorRef="small")
    id, host = server["id"], server["OS-EXT-SRV-ATTR:host"]
    other = next(name for name in cloud.hosts if name != host)
    server = ask(cloud, id, "migrate", {"host": other}, "2.56")
    assert (server["status"], server["OS-EXT-SRV-ATTR:host"]) == ("VERIFY_RESIZE", other)
    check(cloud, id, waits=True)
    assert cloud.admin.act(id, word).status in (202, 204)
    server = confirmed(cloud, id) if word == "confirmResize" else cloud.admin.settled(id)
    assert (server["status"], server["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", other if word == "confirmResize" else host)
    check(cloud, id)
    cloud.admin.delete(f"/v2.1/servers/{id}")
