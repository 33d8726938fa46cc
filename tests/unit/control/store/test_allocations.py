# SPDX-License-Identifier: GPL-3.0-or-later
"""Claims never give away more of a host than its limits, whoever races; claims equal allocations at the end."""

import random
import threading
import time
import uuid

import pytest
from sqlalchemy import select, text, update

from magnetar_control.store.claims import allocations, host_counters
from magnetar_control.store.claims.allocations import Amounts, Group, Ratios
from magnetar_control.store.claims.nic_bandwidth import RequestedResources
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import hosts as table
from magnetar_control.store.engine.tables import server_group_members, server_groups, server_mappings
from magnetar_control.store.hosts import hosts
from tests.support.control.allocations import SMALL, a_cell, a_host, claim, race


@pytest.fixture
def cell(database):
    return a_cell(database)


def used(database, host):
    with database.read() as connection:
        row = connection.execute(select(table).where(table.c.id == host)).mappings().one()
        assert not [one for one in host_counters.audit_host_counters(connection) if one.host == row["name"]]
    return (row["vcpus_used"], row["memory_mb_used"], row["disk_gb_used"], row["servers"])


def test_a_claim_counts_once_however_often_it_is_made(database, cell):
    host = a_host(database)
    for _round in range(3):
        assert claim(database, "s1", host, project_id="p", cell_id=cell)
    assert used(database, host) == (1, 512, 2, 1)
    with database.read() as connection:
        assert [tuple(row[:3]) for row in connection.execute(select(server_mappings))] == [("s1", "cell", "p")]
        assert [(row.host, row.cell_id) for row in allocations.fetch_server_claims(connection, "s1")] == [
            ("kvm1", "cell")]


def test_all_are_claimed_or_none(database, cell):
    first, second = a_host(database), a_host(database, "kvm2")

    def all_of(*wanted):
        with database.write() as connection:
            done = allocations.claim_for_servers(connection, [allocations.Claim(id, "p", host, cell, amounts)
                                                              for id, host, amounts in wanted])
            if not done:
                connection.rollback()
            return done

    assert all_of(("s1", first, SMALL), ("s2", second, SMALL), ("s3", first, Amounts(3, 1, 1)))
    assert (used(database, first), used(database, second)) == ((4, 513, 3, 2), (1, 512, 2, 1))
    assert not all_of(("s4", second, SMALL), ("s5", first, SMALL)), "the first host is full"
    assert not all_of(("s4", second, SMALL), ("s2", second, SMALL)), "it holds something already"
    with database.write() as connection:
        connection.execute(update(table).where(table.c.id == second).values(disabled=True))
    assert not all_of(("s4", second, SMALL)), "the host takes no new ones"
    assert (used(database, first), used(database, second)) == ((4, 513, 3, 2), (1, 512, 2, 1))
    with database.read() as connection:
        assert {row.server_id for row in connection.execute(select(server_mappings))} == {"s1", "s2", "s3"}


@pytest.mark.parametrize("amounts", [Amounts(5, 1, 1), Amounts(1, 4097, 1), Amounts(1, 1, 101)])
def test_what_does_not_fit_is_refused_and_changes_nothing(database, cell, amounts):
    host = a_host(database)
    assert not claim(database, "s1", host, amounts, cell_id=cell)
    assert used(database, host) == (0, 0, 0, 0)
    with database.read() as connection:
        assert not allocations.fetch_server_claims(connection, "s1")
        assert not connection.execute(select(server_mappings)).all()


def test_a_host_that_is_gone_is_refused(database, cell):
    assert not claim(database, "s1", str(uuid.uuid4()))


def test_a_resource_that_is_not_asked_for_cannot_be_short(database, cell):
    host = a_host(database, disk_gb=2)
    assert claim(database, "s1", host)
    with database.write() as connection:
        connection.execute(update(table).values(disk_gb_limit=1))
    assert claim(database, "s2", host, Amounts(1, 512, 0))
    assert not claim(database, "s3", host, Amounts(1, 512, 1))


def test_a_second_claim_with_other_amounts_resizes(database, cell):
    host = a_host(database)
    assert claim(database, "s1", host)
    assert claim(database, "s1", host, Amounts(4, 1024, 2))
    assert used(database, host) == (4, 1024, 2, 1)
    assert not claim(database, "s1", host, Amounts(5, 1024, 2))
    assert used(database, host) == (4, 1024, 2, 1)
    assert claim(database, "s1", host, Amounts(2, 256, 1))
    assert used(database, host) == (2, 256, 1, 1)


def test_release_gives_everything_back_once(database, cell):
    first, second = a_host(database), a_host(database, "kvm2")
    assert claim(database, "s1", first)
    assert claim(database, "s1", second)
    with database.write() as connection:
        assert allocations.release_consumer_claims(connection, "s1", first) == 1
    assert used(database, first) == (0, 0, 0, 0)
    assert used(database, second) == (1, 512, 2, 1)
    for ended in (1, 0):
        with database.write() as connection:
            assert allocations.release_consumer_claims(connection, "s1") == ended
    assert used(database, second) == (0, 0, 0, 0)


@pytest.mark.parametrize("target", ["kvm2", "kvm1"])
def test_a_migration_holds_the_source_and_either_end_of_it_can_be_repeated(database, cell, target):
    ids = {name: a_host(database, name) for name in ("kvm1", "kvm2")}
    source, target = ids["kvm1"], ids[target]
    big = Amounts(2, 1024, 4)

    def start():
        with database.write() as connection:
            assert allocations.move_claims_to_migration(connection, "s1", "m1", source)
        assert claim(database, "s1", target, big)

    assert claim(database, "s1", source)
    start()
    start()
    with database.read() as connection:
        assert {(row.consumer_id, row.host_id, row.vcpus)
                for row in allocations.fetch_server_claims(connection, "s1")} == {
            ("m1", source, 1), ("s1", target, 2)}
    for done in (True, False):
        with database.write() as connection:
            assert allocations.revert_claims_to_server(connection, "s1", "m1") is done
        assert used(database, source) == (1, 512, 2, 1)
    start()
    for ended in (1, 0):
        with database.write() as connection:
            assert allocations.release_consumer_claims(connection, "m1") == ended
    assert used(database, target) == (2, 1024, 4, 1)


def test_a_server_that_holds_nothing_has_nothing_to_move(database, cell):
    with database.write() as connection:
        assert not allocations.move_claims_to_migration(connection, "s1", "m1", "nowhere")


def test_of_many_who_race_for_the_last_places_as_many_win_as_there_are(database, cell):
    host = a_host(database, vcpus=5)
    won = race(database, [lambda at=at: claim(database, f"s{at}", host, cell_id=cell) for at in range(16)])
    assert won.count(True) == 5
    assert used(database, host) == (5, 5 * 512, 10, 5)


def test_dedicated_cpus_are_never_promised_twice(database, cell):
    host = a_host(database, pcpus=3)
    with database.write() as connection:
        hosts.update_host_row(connection, "kvm1", Ratios(16.0, 16.0, 16.0), vcpus_ratio=8.0)
        assert hosts.fetch_host_row(connection, "kvm1").pcpus_limit == 3
    won = race(database, [lambda at=at: claim(database, f"s{at}", host, Amounts(0, 1, 0, 2)) for at in range(4)])
    assert won.count(True) == 1
    assert not claim(database, "more", host, Amounts(1, 1, 0, 2)) and claim(database, "one", host, Amounts(1, 1, 0, 1))


# PCI devices ----------------------------------------------------------------------------------------------------------
def with_devices(database, *pools, name="kvm1"):
    """A host with room for many, and devices: (aliases, how many)."""
    info = {"vcpus": 64, "memory_mb": 65536, "disk_gb": 1000, "pci_devices": {
        alias: {"total": 1, "free": 1} for names, _count in pools for alias in names.split()}, "pci_pools": [
        {"aliases": names.split(), "numa_node": -1, "total": count, "free": count} for names, count in pools]}
    id = a_host(database, name)
    with database.write() as connection:
        hosts.save_host_inventory(connection, name, info, Ratios(1.0, 1.0, 1.0))
    return id


def test_devices_are_never_promised_twice(database, cell):
    host = with_devices(database, ("gpu", 3))
    won = race(database, [lambda at=at: claim(database, f"s{at}", host, devices={"gpu": 1 + at % 2})
                          for at in range(8)])
    with database.read() as connection:
        held = [one.devices["gpu"] for one in allocations.fetch_host_claims(connection, host)]
    assert sum(held) in (2, 3) and len(held) == won.count(True) and used(database, host)[3] == len(held)
    if sum(held) == 2:
        assert claim(database, "more", host, devices={"gpu": 1})
    assert not claim(database, "last", host, devices={"gpu": 1}) and claim(database, "plain", host)


def test_many_at_once_get_devices_all_or_none(database, cell):
    host = with_devices(database, ("gpu", 2))

    def all_of(*names):
        try:
            with database.write() as connection:
                if not allocations.claim_for_servers(connection, [
                        allocations.Claim(name, "p", host, "cell", SMALL, {"gpu": 1}) for name in names]):
                    raise KeyError
        except KeyError:
            return False
        return True
    assert not all_of("a", "b", "c") and used(database, host)[3] == 0
    assert race(database, [lambda: all_of("a", "b"), lambda: all_of("c", "d")]).count(True) == 1


def test_a_device_of_two_names_is_one(database, cell):
    host = with_devices(database, ("gpu any", 1), ("nic any", 1))
    assert claim(database, "s1", host, devices={"any": 1}) and claim(database, "s2", host, devices={"gpu": 1})
    assert not claim(database, "s3", host, devices={"nic": 1}), "s1 has it, for s2 has the GPU"
    assert not claim(database, "s3", host, devices={"other": 1})


def test_what_a_server_has_before_and_after_counts_once(database, cell):
    host = with_devices(database, ("gpu", 2))
    assert claim(database, "s1", host, devices={"gpu": 1})
    with database.write() as connection:
        allocations.move_claims_to_migration(connection, "s1", "m1", host)
    assert claim(database, "s1", host, devices={"gpu": 2}) and not claim(database, "s2", host, devices={"gpu": 1})
    with database.write() as connection:
        allocations.revert_claims_to_server(connection, "s1", "m1")
    assert claim(database, "s2", host, devices={"gpu": 1}) and not claim(database, "s1", host, devices={"gpu": 2})
    assert claim(database, "s1", host), "it gives its device up, and keeps the rest"
    with database.write() as connection:
        allocations.release_consumer_claims(connection, "s2")
    assert claim(database, "s3", host, devices={"gpu": 2})


def test_who_has_devices_of_some_hosts(database, cell):
    here, there = with_devices(database, ("gpu", 1)), with_devices(database, ("gpu", 1), name="kvm2")
    assert claim(database, "s1", here, devices={"gpu": 1}) and claim(database, "s2", there, devices={"gpu": 1})
    with database.read() as connection:
        assert allocations.fetch_device_claims(connection).keys() == {here, there}
        assert [row.consumer_id for row in allocations.fetch_device_claims(connection, [there]).pop(there)] == ["s2"]
        assert allocations.fetch_device_claims(connection, [there]).keys() == {
            there} and not allocations.fetch_device_claims(connection, [])


def test_fewer_devices_than_are_held_are_given_to_nobody(database, cell):
    host = with_devices(database, ("gpu", 2))
    assert claim(database, "s1", host, devices={"gpu": 2})
    with_devices(database, ("gpu", 1), ("nic", 1))
    assert not claim(database, "s2", host, devices={"gpu": 1})
    assert claim(database, "s2", host) and not claim(database, "nowhere", "no host", devices={"gpu": 1})


def test_a_device_that_is_gone_is_in_nobodys_way(database, cell):
    host = with_devices(database, ("old", 1), ("gpu", 2), ("nic", 1))
    assert claim(database, "s1", host, devices={"old": 1, "gpu": 1}) and claim(database, "s2", host, devices={"gpu": 1})
    with_devices(database, ("new", 1), ("gpu", 1), ("nic", 1))
    assert claim(database, "s3", host, devices={"nic": 1}), "another alias"
    assert claim(database, "s1", host, Amounts(2, 512, 1), devices={"old": 1, "gpu": 1}), "its devices do not change"
    with database.write() as connection:
        assert allocations.move_claims_to_migration(connection, "s2", "m2", host)
    assert claim(database, "s2", host, devices={"gpu": 1}), "its migration holds it"
    assert not claim(database, "s4", host, devices={"gpu": 1}) and not claim(database, "s4", host, devices={"nic": 1})
    assert not claim(database, "s2", host, devices={"gpu": 2})
    with database.write() as connection:
        assert allocations.claim_for_servers(connection, [
            allocations.Claim("s5", "p", host, "cell", SMALL, {"new": 1})])


def test_racing_claims_of_one_server_count_once(database, cell):
    host = a_host(database, vcpus=1)
    assert all(race(database, [lambda: claim(database, "s1", host) for _one in range(8)]))
    assert used(database, host) == (1, 512, 2, 1)


def test_whatever_many_do_at_once_the_counters_equal_the_allocations(database, cell):
    ids = [a_host(database, f"kvm{at}", vcpus=3, pcpus=2) for at in range(3)]

    def work(seed):
        chance = random.Random(seed)

        def run():
            for _step in range(12):
                server, host = f"s{chance.randrange(8)}", chance.choice(ids)
                amounts = Amounts(chance.randrange(3), 256, 1, chance.randrange(3))
                verb = chance.randrange(4)
                with database.write() as connection:
                    if verb < 2:
                        allocations.claim_host_resources(connection, server, server, host, amounts, cell_id=cell)
                    elif verb == 2:
                        allocations.release_consumer_claims(connection, server)
                    elif not allocations.move_claims_to_migration(connection, server, f"m{server}", host):
                        allocations.revert_claims_to_server(connection, server, f"m{server}")
        return run

    race(database, [work(seed) for seed in range(6)])
    with database.write() as connection:
        assert host_counters.audit_host_counters(connection) == []
        for row in hosts.fetch_host_rows(connection):
            assert 0 <= row.vcpus_used <= row.vcpus_limit
            assert 0 <= row.memory_mb_used <= row.memory_mb_limit
            assert 0 <= row.pcpus_used <= row.pcpus_limit


@pytest.mark.parametrize(("policy", "most", "winners"), [("anti-affinity", 1, 2), ("anti-affinity", 2, 4),
                                                         ("affinity", 1, None)])
def test_a_groups_policy_holds_whoever_races(database, cell, policy, most, winners):
    ids = [a_host(database, name, vcpus=8) for name in ("kvm1", "kvm2")]
    with database.write() as connection:
        connection.execute(server_groups.insert().values(
            id="g", name="g", project_id="p", user_id="u", policy=policy, rules="{}", created_at=utc_now()))
        connection.execute(server_group_members.insert(), [{"group_id": "g", "server_id": f"s{at}"} for at in range(8)])
    group = Group("g", policy, most)
    won = race(database, [lambda at=at: claim(database, f"s{at}", ids[at % 2], group=group) for at in range(8)])
    servers = sorted(used(database, id)[3] for id in ids)
    if winners is None:
        assert servers[0] == 0 < servers[1] == won.count(True)
    else:
        assert servers == [most, most]
        assert won.count(True) == winners


def test_the_audit_finds_and_repairs_what_is_wrong(database, cell):
    host = a_host(database)
    assert claim(database, "s1", host)
    with database.write() as connection:
        connection.execute(update(table).values(vcpus_used=3, servers=2))
        assert [one[1:3] for one in host_counters.audit_host_counters(connection)] == [
            ((3, 512, 2, 0, 2), (1, 512, 2, 0, 1))]
        host_counters.audit_host_counters(connection, repair=True)
        assert host_counters.audit_host_counters(connection) == []


def test_limits_come_of_totals_reserved_and_ratios(database, cell):
    host = a_host(database, vcpus=4, memory_mb=4096, disk_gb=100)
    with database.write() as connection:
        assert hosts.update_host_row(connection, "kvm1", memory_mb_reserved=96, disk_gb_ratio=1.25)
        assert not hosts.update_host_row(connection, "kvm9", disabled=True)
        with pytest.raises(ValueError, match="a host has no vcpus_limit to set"):
            hosts.update_host_row(connection, "kvm1", vcpus_limit=3)
        row = hosts.fetch_host_row(connection, host)
    assert (row.vcpus_limit, row.memory_mb_limit, row.disk_gb_limit) == (64, 6000, 125)


def test_a_host_is_registered_once_with_a_number_of_its_own(database, cell):
    race(database, [lambda at=at: a_host(database, f"kvm{at % 3}") for at in range(6)])
    with database.read() as connection:
        rows = hosts.fetch_host_rows(connection)
    assert [row.name for row in rows] == ["kvm0", "kvm1", "kvm2"]
    assert sorted(row.number for row in rows) == [1, 2, 3]


def test_changes_of_what_one_server_has_wait_for_one_another(postgres):
    """Whoever changes it locks its row first, and the host's next: with the host's first, both waited for each other,
    and PostgreSQL failed one of them."""
    a_cell(postgres)
    host = with_devices(postgres, ("gpu", 2))
    assert claim(postgres, "s1", host, devices={"gpu": 1})
    ended, begun = [], threading.Event()

    def more():
        begun.wait(30)
        ended.append(claim(postgres, "s1", host, devices={"gpu": 2}))

    def wanted():  # its row is locked by now
        begun.set()
        deadline = time.monotonic() + 30
        with postgres.read() as connection:
            while not connection.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar():
                assert time.monotonic() < deadline
        return RequestedResources({}, {"gpu": 1})

    thread = threading.Thread(target=more)
    thread.start()
    with postgres.write() as connection:
        assert allocations.set_claimed_resources(connection, "s1", host, wanted)
    thread.join(60)
    assert ended == [True]
    with postgres.read() as connection:
        assert [row.stored.devices for row in allocations.fetch_consumer_claims(connection, "s1")] == ['{"gpu":2}']
