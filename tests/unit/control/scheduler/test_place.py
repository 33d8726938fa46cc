# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory proposes, the database decides: conductors that know nothing of one another place servers together."""

from random import Random

import orjson
import pytest
from sqlalchemy import select

from magnetar_control.scheduler.choose import NoValidHost
from magnetar_control.scheduler.filters import USUAL, applied_filters
from magnetar_control.scheduler.host_state import DEVICES
from magnetar_control.scheduler.place import place_server, place_servers
from magnetar_control.scheduler.rules import Rules
from magnetar_control.store.claims import allocations, host_counters
from magnetar_control.store.claims.allocations import Amounts, Ratios
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import (
    aggregate_hosts,
    aggregates,
    server_group_members,
    server_groups,
    server_mappings,
)
from magnetar_control.store.hosts import aggregates as store_aggregates
from magnetar_control.store.hosts import hosts
from magnetar_core.hardware.numa import numa_needs
from tests.support.control.counting import counted
from tests.support.control.place import ONE, a_memory, fleet, race, raced  # noqa: F401

from .fleet import aggregate, request, row, told_cell


def filled(fleet, placed, refused):
    """All places of the fleet are taken, none twice, by half of those who asked."""
    assert sorted(placed) == ["kvm1", "kvm1", "kvm2", "kvm2", "kvm3", "kvm3"]
    assert len(refused) == 6
    with fleet.read() as connection:
        assert host_counters.audit_host_counters(connection) == []
        assert len(connection.execute(select(server_mappings)).all()) == 6


def test_memories_that_are_behind_still_fill_the_fleet_exactly(fleet):
    placed, refused = raced(fleet, [[request(server_id=f"s{at}-{number}", amounts=ONE) for number in range(4)]
                                    for at in range(3)])
    filled(fleet, placed, refused)
    assert all("CoreFilter 3" in error.explanation for error in refused)


def test_those_who_place_many_at_once_fill_the_fleet_exactly(fleet):
    memories, placed, refused = [a_memory(fleet) for _one in range(3)], [], []

    def conduct(at):
        requests = [request(server_id=f"s{at}-{number}", amounts=ONE) for number in range(4)]
        found = place_servers(fleet, memories[at], requests, random=Random(at))
        placed.extend(one.host for one in found.values())
        for one in requests:
            if one.server_id not in found:
                try:
                    placed.append(place_server(fleet, memories[at], one, random=Random(at)).host)
                except NoValidHost as error:
                    refused.append(error)

    race(conduct)
    filled(fleet, placed, refused)


def test_of_many_at_once_those_that_fit_are_placed(fleet):
    memory = a_memory(fleet)
    found = place_servers(fleet, memory, [
        request(server_id="big", amounts=Amounts(2, 100, 1)), request(server_id="huge", amounts=Amounts(3, 100, 1)),
        *(request(server_id=f"s{at}", amounts=ONE) for at in range(5))], random=Random(1))
    assert set(found) == {"big", "s0", "s1", "s2", "s3"}
    assert place_servers(fleet, memory, [request(server_id="more", amounts=ONE)]) == {}
    with fleet.read() as connection:
        assert {one.host for id, one in found.items() if id != "big"} == {"kvm1", "kvm2", "kvm3"} - {found["big"].host}
        assert host_counters.audit_host_counters(connection) == []
        for id, one in found.items():
            assert [(row.host, row.cell_id) for row in allocations.fetch_server_claims(connection, id)] == [(
                one.host, "cell")]


def test_a_memory_that_was_refused_looks_again(fleet):
    behind = a_memory(fleet)
    for at in range(5):
        place_server(fleet, a_memory(fleet), request(server_id=f"s{at}", amounts=ONE))
    wanted = [request(server_id=id, amounts=ONE) for id in ("a", "b", "c", "d")]
    assert place_servers(fleet, behind, wanted) == {}
    with fleet.read() as connection:
        assert not any(allocations.fetch_server_claims(connection, one.server_id) for one in wanted)
    assert sorted(behind.hosts[name].used.vcpus for name in ("kvm1", "kvm2", "kvm3")) == [1, 2, 2]
    assert list(place_servers(fleet, behind, wanted)) == ["a"]


def test_of_many_that_were_refused_nothing_is_coming(fleet):
    """Neither devices nor NUMA cells, else a host would lack them until its agent tells other numbers."""
    with fleet.write() as connection:
        hosts.save_host_inventory(connection, "kvm1", {
            "vcpus": 2, "memory_mb": 4096, "disk_gb": 100, "pci_devices": {"gpu": {"total": 2, "free": 2}},
            "numa_cells": [told_cell(0, "0-1")]}, Ratios(1.0, 1.0, 1.0))
    behind = a_memory(fleet)
    place_server(fleet, a_memory(fleet), request(server_id="there", amounts=ONE, host="kvm1"))
    pinned = numa_needs({"cpu_policy": "dedicated"}, 1, 100)
    wanted = [request(server_id=id, amounts=ONE, host="kvm1", numa=pinned, devices={"gpu": 1},
                      extra_specs={"pci_passthrough:alias": "gpu:1"}) for id in ("a", "b")]
    assert place_servers(fleet, behind, wanted) == {}
    found = behind.hosts["kvm1"]
    assert found.numa.coming == () and found.pci.free == found.numbers[DEVICES] == 2 and found.io_ops == 0
    assert list(place_servers(fleet, behind, wanted)) == ["a"]
    assert found.numa.coming == (pinned,) and found.pci.free == 1


def test_a_group_keeps_apart_though_the_memory_does_not_know(fleet):
    with fleet.write() as connection:
        connection.execute(server_groups.insert().values(
            id="g", name="g", project_id="p", user_id="u", policy="anti-affinity", rules="{}", created_at=utc_now()))
        connection.execute(server_group_members.insert(), [{"group_id": "g", "server_id": f"s{at}"} for at in range(4)])
    with fleet.read() as connection:
        group = hosts.fetch_scheduling_group(connection, "s0")  # nobody has a host yet, and nobody looks again
        assert hosts.fetch_scheduling_group(connection, "s9") is None
    placed = [place_server(fleet, a_memory(fleet), request(server_id=f"s{at}", amounts=ONE, group=group)).host
              for at in range(3)]
    assert sorted(placed) == ["kvm1", "kvm2", "kvm3"]
    with pytest.raises(NoValidHost, match="No valid host"):
        place_server(fleet, a_memory(fleet), request(server_id="s3", amounts=ONE, group=group))
    with fleet.read() as connection:
        assert hosts.fetch_scheduling_group(connection, "s0").hosts == dict.fromkeys(placed[1:], 1)
        project = connection.execute(select(server_mappings.c.project_id).limit(1)).scalar()
        assert hosts.fetch_hosts_of_servers(connection, project, ["s0", "s1", "s9"]) == {"s0": [placed[0]],
                                                                                         "s1": [placed[1]]}


def test_hints_find_servers_of_the_own_project(fleet):
    for server, project in (("s0", "p"), ("s1", "q")):
        place_server(fleet, a_memory(fleet), request(server_id=server, project_id=project, amounts=ONE))
    with fleet.read() as connection:
        assert list(hosts.fetch_hosts_of_servers(connection, "p", ["s0", "s1", "s9"])) == ["s0"]
        assert list(hosts.fetch_hosts_of_servers(connection, "q", ["s0", "s1", "s9"])) == ["s1"]


def test_a_host_that_was_deleted_is_forgotten(fleet):
    states = a_memory(fleet)
    with fleet.write() as connection:
        connection.exec_driver_sql("DELETE FROM hosts WHERE name <> 'kvm2'")
    assert place_server(fleet, states, request(amounts=ONE)).host == "kvm2"
    assert place_server(fleet, states, request(server_id="t", amounts=ONE)).host == "kvm2"


def test_a_host_that_was_enabled_a_moment_ago_is_seen(fleet):
    with fleet.write() as connection:
        for name in ("kvm1", "kvm2", "kvm3"):
            hosts.update_host_row(connection, name, disabled=True)
    states = a_memory(fleet)
    with pytest.raises(NoValidHost):
        place_server(fleet, states, request(amounts=ONE))
    with fleet.write() as connection:
        hosts.update_host_row(connection, "kvm2", disabled=False)
    assert place_server(fleet, states, request(amounts=ONE)).host == "kvm2"


def test_a_host_that_was_disabled_a_moment_ago_takes_nothing(fleet):
    states = a_memory(fleet)
    with fleet.write() as connection:
        hosts.update_host_row(connection, "kvm1", disabled=True)
        hosts.update_host_row(connection, "kvm3", forced_down=True)
    assert [place_server(fleet, states, request(server_id=name, amounts=ONE)).host for name in "st"] == ["kvm2", "kvm2"]
    with pytest.raises(NoValidHost):
        place_server(fleet, states, request(server_id="u", amounts=ONE))


def test_a_migration_leaves_the_mapping_alone(fleet):
    found = place_server(fleet, a_memory(fleet), request(amounts=ONE), map_cell=False)
    with fleet.read() as connection:
        assert [(row.consumer_id, row.host) for row in allocations.fetch_server_claims(connection, "s")] == [(
            "s", found.host)]
        assert connection.execute(select(server_mappings)).all() == []


def test_aggregates_are_read_with_their_hosts(fleet):
    with fleet.write() as connection:
        connection.execute(aggregates.insert(), [
            {"id": at, "uuid": f"u{at}", "name": f"a{at}", "metadata": '{"ssd":"true"}', "created_at": utc_now()}
            for at in (1, 2)])
        connection.execute(aggregate_hosts.insert(), [{"aggregate_id": 1, "host": name} for name in ("kvm1", "kvm3")])
    wish = request(amounts=ONE, extra_specs={"aggregate_instance_extra_specs:ssd": "true"})
    assert {place_server(fleet, a_memory(fleet), wish).host for _one in range(3)} <= {"kvm1", "kvm3"}
    with fleet.read() as connection:
        assert [(one.name, one.hosts) for one in store_aggregates.fetch_aggregate_rows(connection)] == [
            ("a1", ["kvm1", "kvm3"]), ("a2", [])]
        assert [row.name for row in hosts.fetch_host_rows(connection, "other")] == []
        assert hosts.fetch_host_row(connection, "kvm9") is None


def test_a_choice_among_ten_thousand_hosts_asks_the_database_no_more(fleet):
    """Traits, counts and aggregates are looked at in memory: a placement takes as many statements as among three."""
    asked = {}
    names = [f"far{at}" for at in range(10_000)]
    for known in ((), names):
        memory = a_memory(fleet)
        memory.rules = Rules(filters=applied_filters((*USUAL, "AggregateNumInstancesFilter", "AggregateIoOpsFilter")))
        with fleet.read() as connection:
            rows = [row.changed_columns(info=orjson.dumps({"traits": ["CUSTOM_A"]}).decode())
                    for row in hosts.fetch_host_rows(connection)]
        memory.refresh([*rows, *(row(name, info={"traits": ["CUSTOM_B"]}) for name in known)],
                       [aggregate(*known[::3], max_instances_per_host="5")])
        for name in known:
            memory.up(name, True)
        wish = request(server_id=f"s{len(known)}", amounts=ONE, extra_specs={
            "trait:CUSTOM_A": "required", "trait:CUSTOM_B": "forbidden"})
        with counted(api=fleet) as seen:
            assert place_server(fleet, memory, wish).host in ("kvm1", "kvm2", "kvm3")
        asked[len(known)] = len(seen)
    assert asked[10_000] == asked[0] > 0
