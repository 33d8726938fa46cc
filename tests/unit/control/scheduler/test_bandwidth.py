# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports that ask for bandwidth, and conductors and callers who know nothing of one another."""

import threading
from random import Random

import orjson
import pytest

from magnetar_control.scheduler.place import hold_ports, place_server
from magnetar_control.scheduler.request_spec import bandwidth_of_nics, isolates_nics, nics_of
from magnetar_control.store.claims import host_counters, inventories
from magnetar_control.store.claims.nic_bandwidth import bandwidth_placements, bandwidth_requests
from magnetar_control.store.hosts import hosts
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core import bandwidth
from tests.support.control.place import a_memory, fleet, race, raced
from tests.support.control.resource_classes import wish

__all__ = ["fleet"]
OUT = bandwidth.bandwidth_resource("egress", "physnet0")


@pytest.fixture
def wide(fleet):
    """The agent of kvm2 tells 3 Mbit/s of physnet0, and that of kvm3 1 Mbit/s."""
    with fleet.write() as connection:
        for name, total in (("kvm2", 3000), ("kvm3", 1000)):
            inventories.save_agent_inventories(connection, hosts.fetch_host_row(connection, name).id,
                                               bandwidth.bandwidth_inventories(
                bandwidth.parse_bandwidth_setting([f"physnet0:{total}:"])))
    return fleet


def used(database):
    with database.write() as connection:
        assert host_counters.audit_host_counters(connection) == []
        return {hosts.fetch_host_row(connection, host).name: classes[OUT].used
                for host, classes in inventories.fetch_inventory_rows(connection).items()}


def test_conductors_who_race_for_the_last_bandwidth(wide):
    wishes = [[wish(wide, f"s{at}-{number}", **{OUT: 1000}) for number in range(2)] for at in range(3)]
    placed, refused = raced(wide, wishes)
    assert sorted(placed) == ["kvm2", "kvm2", "kvm3"] and len(refused) == 3, "kvm2 has room for two servers"
    assert used(wide) == {"kvm2": 2000, "kvm3": 1000}


def test_ports_that_are_attached_at_once_are_counted_all_or_not_at_all(wide):
    """Each caller has its port first, and claims what the server's ports ask for then."""
    host = place_server(wide, a_memory(wide), wish(wide, "s1"), random=Random(1)).host_id
    with wide.write() as connection:
        inventories.save_agent_inventories(connection, host, bandwidth.bandwidth_inventories(
            {"physnet0": {"egress": 2500}}))
    ports, done, lock = [], [], threading.Lock()

    def attach(_at):
        with lock:
            ports.append({"resources": {OUT: 1000}})
        if hold_ports(wide, "s1", host, ({}, {}), lambda: list(ports)):
            done.append(1)
            return
        with lock:
            ports.pop()

    race(attach, 4)
    assert hold_ports(wide, "s1", host, ({}, {}), lambda: list(ports)), "as a conductor does before it plugs one in"
    assert len(ports) <= 2
    with wide.write() as connection:
        assert host_counters.audit_host_counters(connection) == []
        assert inventories.fetch_inventory_rows(connection)[host][OUT].used == 1000 * len(ports)
    assert not hold_ports(wide, "s2", host, ({}, {}), lambda: list(ports)), "who holds nothing there gets nothing"


def test_what_a_server_by_its_row_asks_for():
    nic, request = {"resources": {OUT: 1000}}, orjson.dumps({"networks": [{"resources": {OUT: 7}}, {}]}).decode()

    def asked(**row):
        return bandwidth_of_nics(nics_of(ServerRow.of_values({"request": request, **row})))

    assert asked(interfaces=orjson.dumps([nic, nic, {}]).decode()) == {OUT: 2000}
    assert asked(interfaces="[]") == {OUT: 7}
    assert asked(interfaces="[]", launched_at="2026-11-26") == {}, "all were detached"


def test_a_flavor_may_want_another_provider_for_each_port(wide):
    other = {"resources": {bandwidth.bandwidth_resource("egress", "physnet1"): 5}}
    same = {"resources": {OUT: 5}}
    isolate = {"extra_specs": {"group_policy": "isolate"}}
    left = {OUT: 99, bandwidth.bandwidth_resource("egress", "physnet1"): 99}

    def fits(flavor, *nics):
        return next(bandwidth_placements(bandwidth_requests(nics), left, isolates_nics(flavor)), None) is not None

    assert fits(isolate, same, other, {}) and not fits(isolate, same, same)
    assert fits({}, same, same) and fits({"extra_specs": {"group_policy": "none"}}, same, same)
