# SPDX-License-Identifier: GPL-3.0-or-later
"""Custom resource classes are claimed as CPUs and memory are: all of a server's or nothing, and never more than there
is, whoever races. What operators set of a host stays whatever its agent tells next."""

import orjson
import pytest
from sqlalchemy import insert, select, update

from magnetar_control.store.claims import allocations, host_counters, inventories
from magnetar_control.store.claims.allocations import Amounts, Ratios
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.engine.tables import allocations as held_table
from magnetar_control.store.engine.tables import cells
from magnetar_control.store.engine.tables import hosts as hosts_table
from magnetar_control.store.engine.tables import inventories as table
from magnetar_control.store.hosts import aggregates, hosts
from tests.support.control.allocations import race

SMALL, INFO = Amounts(1, 512, 2), {"vcpus": 8, "memory_mb": 8192, "disk_gb": 100}


@pytest.fixture
def ids(database):
    """Uuids of two hosts; kvm1 has four CUSTOM_GOLD by its agent, and an operator gives it two CUSTOM_TIN."""
    with database.write() as connection:
        connection.execute(insert(cells).values(id="cell", name="one", database_url="sqlite://", created_at=utc_now()))
        found = {name: hosts.upsert_host_row(connection, name, "cell", f"https://{name}") for name in ("kvm1", "kvm2")}
        hosts.save_host_inventory(connection, "kvm1", {**INFO, "resources": {"CUSTOM_GOLD": {"total": 4}}})
        hosts.save_host_inventory(connection, "kvm2", INFO)
        inventories.save_operator_inventory(connection, found["kvm1"], "CUSTOM_TIN",
                                            {"total": 2, "min_unit": 1, "max_unit": 1})
    return found


def test_an_agent_without_libvirt_has_what_it_told_before(database, ids):
    away = {"connected": False, "vcpus": None, "memory_mb": None, "disk_gb": 90, "resources": None, "traits": None}
    with database.write() as connection:
        hosts.save_host_inventory(connection, "kvm1", {**INFO, "traits": ["A"],
                                                       "resources": {"CUSTOM_GOLD": {"total": 4}}})
        assert hosts.save_host_inventory(connection, "kvm1", away)
        row = hosts.fetch_host_row(connection, "kvm1")
        assert (row.vcpus, row.disk_gb) == (8, 90) and row.info["traits"] == ["A"]
        assert [orjson.loads(one.told)["total"] for one in connection.execute(select(table).where(
            table.c.host_id == ids["kvm1"], table.c.resource_class == "CUSTOM_GOLD"))] == [4]
        hosts.upsert_host_row(connection, "new", "cell", "https://new")
        for odd in (away, {**away, "connected": True}, {**INFO, "connected": True, "disk_gb": None}):
            assert not hosts.save_host_inventory(connection, "new", odd)  # libvirt may go while an agent answers
        assert not hosts.save_host_inventory(connection, "kvm1", {**away, "connected": True})


def claim(database, consumer, host, amounts=SMALL, server=None, **resources):
    with database.write() as connection:
        return allocations.claim_host_resources(connection, consumer, server or consumer, host, amounts,
                                                resources=resources)


def used(database, host):
    """CPUs, servers, and what is claimed of each class; the counters are the sum of the claims."""
    with database.write() as connection:
        assert host_counters.audit_host_counters(connection) == []
        row, classes = hosts.fetch_host_row(connection, host), inventories.fetch_inventory_rows(connection,
                                                                                                [host]).get(host, {})
    return row.vcpus_used, row.servers, {name: one.used for name, one in classes.items() if one.used}


def test_all_classes_of_a_server_or_none(database, ids):
    host = ids["kvm1"]
    assert claim(database, "s1", host, CUSTOM_GOLD=3, CUSTOM_TIN=1)
    assert used(database, host) == (1, 1, {"CUSTOM_GOLD": 3, "CUSTOM_TIN": 1})
    for lacking in ({"CUSTOM_GOLD": 2, "CUSTOM_TIN": 1}, {"CUSTOM_GOLD": 1, "CUSTOM_TIN": 2}, {"CUSTOM_ZINC": 1}):
        assert not claim(database, "s2", host, **lacking)
    assert used(database, host) == (1, 1, {"CUSTOM_GOLD": 3, "CUSTOM_TIN": 1})
    assert not claim(database, "s2", ids["kvm2"], CUSTOM_GOLD=1)
    assert used(database, ids["kvm2"]) == (0, 0, {})


def test_a_claim_is_repeated_and_changed(database, ids):
    host = ids["kvm1"]
    for _twice in range(2):
        assert claim(database, "s1", host, CUSTOM_GOLD=1)
    assert claim(database, "s1", host, CUSTOM_GOLD=4)
    assert not claim(database, "s1", host, CUSTOM_GOLD=5)
    assert used(database, host) == (1, 1, {"CUSTOM_GOLD": 4})
    assert claim(database, "s1", host, CUSTOM_TIN=1)
    assert used(database, host) == (1, 1, {"CUSTOM_TIN": 1})
    with database.read() as connection:
        assert [one.generation for one in allocations.fetch_consumer_claims(connection, "s1")] == [3]
    with database.write() as connection:
        assert allocations.release_consumer_claims(connection, "s1") == 1
    assert used(database, host) == (0, 0, {})


@pytest.mark.parametrize(("wanted", "fits"), [(2, True), (4, True), (1, False), (3, False), (8, False)])
def test_units_and_steps(database, ids, wanted, fits):
    with database.write() as connection:
        inventories.save_operator_inventory(connection, ids["kvm2"], "CUSTOM_LEAD", {
            "total": 8, "min_unit": 2, "max_unit": 6, "step_size": 2})
        offer = inventories.fetch_available_amounts(connection, {"CUSTOM_LEAD": wanted})
    assert (offer["kvm2"]["CUSTOM_LEAD"] >= wanted) is fits
    assert claim(database, "s1", ids["kvm2"], CUSTOM_LEAD=wanted) is fits


def test_of_many_who_race_for_the_last_ones_as_many_win_as_there_are(database, ids):
    host = ids["kvm1"]
    won = race(database, [lambda at=at: claim(database, f"s{at}", host, CUSTOM_GOLD=1, CUSTOM_TIN=at % 2)
                          for at in range(16)])
    vcpus, servers, classes = used(database, host)
    assert won.count(True) == vcpus == servers == classes["CUSTOM_GOLD"] == 4 and classes.get("CUSTOM_TIN", 0) <= 2


def test_racing_claims_in_turns_never_lock_one_another_out(database, ids):
    """Each claims both classes on both hosts, and gives them back."""
    with database.write() as connection:
        for name in ("CUSTOM_GOLD", "CUSTOM_TIN"):
            inventories.save_operator_inventory(connection, ids["kvm2"], name, {"total": 4})

    def work(at):
        def run():
            for host in (ids["kvm1"], ids["kvm2"])[::1 if at % 2 else -1] * 3:
                with database.write() as connection:
                    allocations.claim_host_resources(connection, f"s{at}", f"s{at}", host, SMALL,
                                                     resources={"CUSTOM_TIN": 1, "CUSTOM_GOLD": 1})
                with database.write() as connection:
                    allocations.release_consumer_claims(connection, f"s{at}")
            return True
        return run

    assert all(race(database, [work(at) for at in range(6)]))
    assert used(database, ids["kvm1"]) == used(database, ids["kvm2"]) == (0, 0, {})


def test_while_it_moves_a_server_holds_both_ends(database, ids):
    source, target = ids["kvm1"], ids["kvm2"]
    with database.write() as connection:
        inventories.save_operator_inventory(connection, target, "CUSTOM_GOLD", {"total": 3})
    assert claim(database, "s1", source, CUSTOM_GOLD=3)
    for done in (True, False):
        with database.write() as connection:
            assert allocations.move_claims_to_migration(connection, "s1", "m1", source) is True
        assert claim(database, "s1", target, CUSTOM_GOLD=3)
        assert used(database, source) == used(database, target) == (1, 1, {"CUSTOM_GOLD": 3})
        with database.write() as connection:
            assert allocations.revert_claims_to_server(
                connection, "s1", "m1") if done else allocations.release_consumer_claims(connection, "m1") == 1
        left, free = (source, target) if done else (target, source)
        assert used(database, left) == (1, 1, {"CUSTOM_GOLD": 3}) and used(database, free) == (0, 0, {})


def test_what_an_agent_tells_less_of_stays_claimed(database, ids):
    host = ids["kvm1"]
    assert claim(database, "s1", host, CUSTOM_GOLD=3)
    for resources in ({"CUSTOM_GOLD": {"total": 1}}, {}):
        with database.write() as connection:
            assert hosts.save_host_inventory(connection, "kvm1", {**INFO, "resources": resources})
        assert used(database, host) == (1, 1, {"CUSTOM_GOLD": 3})
        assert not claim(database, "s2", host, CUSTOM_GOLD=1)
    with database.write() as connection:
        assert inventories.fetch_provided_classes(connection, ["CUSTOM_GOLD", "CUSTOM_TIN"]) == {"CUSTOM_TIN"}
        assert not inventories.remove_resource_class(connection, "CUSTOM_GOLD")
        allocations.release_consumer_claims(connection, "s1")
        assert inventories.fetch_inventory_rows(connection, [host])[host].keys() == {"CUSTOM_TIN"}
        assert inventories.remove_resource_class(connection, "CUSTOM_GOLD")


def test_what_operators_set_stays_when_the_agent_tells_again(database, ids):
    host, gold = ids["kvm1"], {"CUSTOM_GOLD": {"total": 6}}
    with database.write() as connection:
        inventories.save_operator_inventory(connection, host, "CUSTOM_GOLD", {"reserved": 1, "allocation_ratio": 2.0})
        hosts.update_host_row(connection, "kvm1", vcpus_ratio=2.0, memory_mb_own_reserved=1000, memory_mb_reserved=1000)
        before = hosts.fetch_host_row(connection, "kvm1").generation
        assert hosts.save_host_inventory(connection, "kvm1", {**INFO, "vcpus": 4, "resources": gold},
                                         Ratios(16.0, 1.0, 1.0), {"vcpus_reserved": 0, "memory_mb_reserved": 5})
        row = hosts.fetch_host_row(connection, "kvm1")
        assert (row.vcpus_limit, row.memory_mb_limit, row.generation) == (8, 7192, before + 1)
        assert inventories.fetch_inventory_rows(connection, [host])[host]["CUSTOM_GOLD"].limit == 10
        assert not hosts.save_host_inventory(connection, "kvm1", {**INFO, "vcpus": 4, "resources": gold},
                                             Ratios(16.0, 1.0, 1.0))
        assert hosts.fetch_host_row(connection, "kvm1").generation == before + 1
        inventories.save_operator_inventory(connection, host, "CUSTOM_GOLD", None)
        assert inventories.fetch_inventory_rows(connection, [host])[host]["CUSTOM_GOLD"].limit == 6


def test_the_audit_finds_and_repairs_counters_of_classes(database, ids):
    host = ids["kvm1"]
    assert claim(database, "s1", host, CUSTOM_GOLD=2)
    with database.write() as connection:
        connection.execute(update(table).where(table.c.resource_class == "CUSTOM_GOLD").values(used=4))
        [found] = host_counters.audit_host_counters(connection)
        assert found.text == "host kvm1 counts (4,) of CUSTOM_GOLD, its claims are (2,)"
        host_counters.audit_host_counters(connection, repair=True)
    assert used(database, host) == (1, 1, {"CUSTOM_GOLD": 2})


def test_who_is_no_server_counts_as_none(database, ids):
    host, owner = ids["kvm1"], {"type": "BACKUP", "project_id": "p", "user_id": "u"}
    with database.write() as connection:
        assert allocations.claim_host_resources(connection, "c1", "c1", host, SMALL, resources={"CUSTOM_GOLD": 1},
                                                owner=owner)
        assert [one.consumer_id for one in allocations.fetch_project_claims(connection, "p")] == ["c1"]
    assert used(database, host) == (1, 0, {"CUSTOM_GOLD": 1})
    with database.write() as connection:
        assert allocations.release_consumer_claims(connection, "c1") == 1
    assert used(database, host) == (0, 0, {})


def test_a_host_that_goes_takes_its_inventories_along(database, ids):
    with database.write() as connection:
        aggregates.remove_aggregate_host_row(connection, None, "kvm1")
        connection.execute(hosts.hosts.delete().where(hosts.hosts.c.id == ids["kvm1"]))
        assert connection.execute(select(table)).all() == []
        assert connection.execute(select(held_table)).all() == []


def test_classes_of_devices_are_there_whoever_saved_them_first(database, ids):
    """A conductor of before saved what agents tell of devices without a look."""
    told = {**INFO, "providers": [{"name": "0000:10:00.0", "parent": "", "traits": [], "held": {}, "inventories": {
        "CUSTOM_PCI_10DE_1EB8": {"total": 1, "reserved": 0, "max_unit": 1}}}]}
    with database.write() as connection:
        connection.execute(update(hosts_table).where(hosts_table.c.name == "kvm2").values(
            info=orjson.dumps(told).decode()))
        hosts.save_host_inventory(connection, "kvm2", told)
        assert "CUSTOM_PCI_10DE_1EB8" in inventories.fetch_resource_classes(connection)
