# SPDX-License-Identifier: GPL-3.0-or-later
"""Room for the loss of a host stays reserved: new claims are refused when afterwards it would lack."""

from __future__ import annotations

import time

import pytest

from magnetar_control.scheduler.choose import NoValidHost, choose_hosts
from magnetar_control.scheduler.options import Options
from magnetar_control.scheduler.reserve import room_by_zone
from magnetar_control.scheduler.rules import Rules, scheduler_rules
from magnetar_control.settings import Settings
from magnetar_control.store.claims.allocations import Amounts, Ratios
from tests.support.control.cloud import Cloud

from .fleet import aggregate, request, row, states

PLAIN = Ratios(1.0, 1.0, 1.0)


def a_zone(*used, memory=8192, **more):
    """Hosts of 8 GiB, of which *used* MiB are claimed, under the setting."""
    rows = [row(f"kvm{at}", memory_mb=memory, memory_mb_used=mib, ratios=PLAIN) for at, mib in enumerate(used)]
    found = states(*rows, **more)
    found.rules = Rules(options=Options(reserve_room_to_fail=True))
    return found


def asking(mib, **more):
    return request(amounts=Amounts(0, mib, 0), keeps_reserve=True, **more)


def test_a_claim_may_not_take_what_a_failed_host_needs():
    found = a_zone(4096, 0, 0)  # 20 GiB free, 8 GiB of them reserved
    assert choose_hosts(found, asking(8192))
    found.used("kvm1", Amounts(0, 8192, 0))
    assert choose_hosts(found, asking(4096))
    with pytest.raises(NoValidHost) as refused:
        choose_hosts(found, asking(5000))
    assert refused.value.refused == {"RamFilter": 2, "RoomToFailFilter": 1}
    assert ("kvm2, is in zone nova, where room for the loss of host kvm0 is reserved (reserve_room_to_fail): 4096 of "
            "5000 MiB of memory can be claimed.") in refused.value.explanation


@pytest.mark.parametrize("spec", [
    request(amounts=Amounts(0, 4096, 0)), asking(4096, forced=True), asking(4096, past_filters=True),
    asking(4096, held=Amounts(0, 4096, 0))])
def test_moves_and_forced_hosts_are_not_refused(spec):
    found = a_zone(4096, 0)
    with pytest.raises(NoValidHost):
        choose_hosts(found, asking(4097))
    assert choose_hosts(found, spec)


def test_a_resize_counts_what_it_adds():
    found = a_zone(4096, 0)
    assert choose_hosts(found, asking(8000, held=Amounts(0, 4000, 0)))
    with pytest.raises(NoValidHost):
        choose_hosts(found, asking(8000, held=Amounts(0, 3000, 0)))


def test_zones_keep_their_own_room():
    found = a_zone(0, 0, 0, aggregates=[aggregate("kvm2", availability_zone="alone")])
    assert choose_hosts(found, asking(1024, availability_zone="nova"))
    with pytest.raises(NoValidHost, match="No valid host"):
        choose_hosts(found, asking(1024, availability_zone="alone"))


def test_hosts_that_are_down_give_no_room():
    found = a_zone(2048, 0, 0, down=["kvm0", "kvm1"])
    with pytest.raises(NoValidHost) as refused:
        choose_hosts(found, asking(1))  # the only host that is up is the one that may fail
    assert "0 of 1 MiB" in refused.value.explanation


def test_it_is_off_by_default_and_cheap():
    assert not scheduler_rules(Settings()).options.reserve_room_to_fail
    found = a_zone(*range(100))
    began = time.perf_counter()
    for _round in range(50):
        room_by_zone(found.hosts.values())
    assert (time.perf_counter() - began) / 50 < 0.02


@pytest.mark.slow
def test_a_cloud_refuses_creates_and_resizes_but_no_moves():
    with Cloud(hosts=2, links=True, reserve_room_to_fail=True) as cloud:
        admin = cloud.admin
        (memory,) = {host["memory_mb"] for host in admin.get("/v2.1/os-hypervisors/detail").json["hypervisors"]}
        big = admin.flavor("big", ram=int(memory * 0.9))
        first = admin.boot("first", flavorRef=big)
        assert first["status"] == "ACTIVE"
        refused = admin.boot("second", flavorRef=big)
        assert refused["status"] == "ERROR" and "No valid host" in refused["fault"]["message"]
        assert "RoomToFailFilter" in str(admin.get(f"/v2.1/servers/{refused['id']}/os-instance-actions").json) \
            or "reserve_room_to_fail" in str(refused["fault"])
        small = admin.boot("small")
        assert small["status"] == "ACTIVE"
        reply = admin.post(f"/v2.1/servers/{small['id']}/action", {"resize": {"flavorRef": big}})
        if reply.status == 202:
            assert admin.settled(small["id"])["flavor"]["ram"] < memory * 0.5
        moved = admin.post(f"/v2.1/servers/{first['id']}/action", {"migrate": None}, "2.60")
        assert moved.status == 202, moved
        after = admin.settled(first["id"])
        assert after["status"] == "VERIFY_RESIZE" and after["OS-EXT-SRV-ATTR:host"] != first["OS-EXT-SRV-ATTR:host"]
