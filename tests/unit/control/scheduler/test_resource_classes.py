# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers that ask for custom resource classes, and conductors that know nothing of one another."""

from random import Random

import pytest

from magnetar_control.scheduler.choose import NoValidHost
from magnetar_control.scheduler.place import place_server, place_servers
from magnetar_control.scheduler.request_spec import claimed_amounts, resources_of
from magnetar_control.store.claims import allocations, host_counters, inventories
from magnetar_control.store.hosts import hosts
from magnetar_core.hardware import groups
from tests.support.control.counting import counted
from tests.support.control.place import a_memory, fleet, raced
from tests.support.control.resource_classes import wish

__all__ = ["fleet"]


@pytest.fixture
def gold(fleet):
    """kvm2 has three of CUSTOM_GOLD, and room for two servers; kvm3 has one."""
    with fleet.write() as connection:
        for name, total in (("kvm2", 3), ("kvm3", 1)):
            inventories.save_operator_inventory(connection, hosts.fetch_host_row(connection, name).id, "CUSTOM_GOLD",
                                                {"total": total})
    return fleet


def test_a_server_goes_where_the_class_is(gold):
    memory = a_memory(gold)
    assert place_server(gold, memory, wish(gold, "s1", CUSTOM_GOLD=2)).host == "kvm2"
    with pytest.raises(NoValidHost) as told:
        place_server(gold, memory, wish(gold, "s2", CUSTOM_GOLD=2))
    assert told.value.refused == {"ResourceClassFilter": 3}
    assert "has 1 of 2 CUSTOM_GOLD left for one server" in told.value.explanation
    assert place_servers(gold, memory, [wish(gold, "s3", CUSTOM_GOLD=1)]) == {}, "it is placed by itself"


def test_conductors_who_race_for_the_last_of_a_class(gold):
    wishes = [[wish(gold, f"s{at}-{number}", CUSTOM_GOLD=1) for number in range(3)] for at in range(3)]
    placed, refused = raced(gold, wishes)
    assert sorted(placed) == ["kvm2", "kvm2", "kvm3"] and len(refused) == 6, "kvm2 has room for two servers"
    with gold.write() as connection:
        assert host_counters.audit_host_counters(connection) == []
        used = {row.used for classes in inventories.fetch_inventory_rows(connection).values()
                for row in classes.values()}
    assert used == {2, 1}


def test_who_asks_for_no_class_asks_the_database_no_more(gold):
    """A plain server: its row of claims, the counters of its host, its cell."""
    memory = a_memory(gold)
    with counted(api=gold) as seen:
        place_server(gold, memory, wish(gold, "s1"), random=Random(1))
        assert len(seen) == (3 if gold.kind == "sqlite" else 1)
        place_servers(gold, memory, [wish(gold, "s2"), wish(gold, "s3")], random=Random(1))
    assert not [text for _name, text in seen if "inventories" in text]
    with gold.write() as connection, counted(api=gold) as seen:
        allocations.release_consumer_claims(connection, "s1")
    assert len(seen) == 2


def test_what_flavors_claim():
    flavor = {"vcpus": 2, "ram": 512, "disk": 1, "extra_specs": {
        "resources:CUSTOM_GOLD": "3", "resources:CUSTOM_TIN": "0", "resources:VCPU": "1"}}
    assert resources_of(flavor) == {"CUSTOM_GOLD": 3} and claimed_amounts(flavor).vcpus == 1
    assert resources_of({}) == {}
    flavor["extra_specs"] |= {
        "resources1:CUSTOM_GOLD": "2", "resources_x-y:CUSTOM_TIN": "1", "resources2:CUSTOM_LEAD": "0"}
    assert resources_of(flavor) == {"CUSTOM_GOLD": 5, "CUSTOM_TIN": 1}
    keys = {"resources:MEM_ENCRYPTION_CONTEXT": "1"}
    assert resources_of({"extra_specs": keys}) == {"MEM_ENCRYPTION_CONTEXT": 1}
    assert resources_of({"extra_specs": {**keys, "hw:mem_encryption": "true"}}) == {"MEM_ENCRYPTION_CONTEXT": 1}
    assert resources_of({"extra_specs": {"resources:MEM_ENCRYPTION_CONTEXT": "0"}}) == {}


@pytest.mark.parametrize(("specs", "why"), [
    ({}, ""), ({"resources1:CUSTOM_A": "1", "trait1:CUSTOM_FAST": "required"}, ""),
    ({"resources1:CUSTOM_A": "1", "group_policy": "isolate", "trait:CUSTOM_FAST": "required"}, ""),
    ({"resources1:CUSTOM_A": "1", "resources_b:CUSTOM_A": "1", "group_policy": "none"}, ""),
    ({"trait1:CUSTOM_FAST": "required"}, "trait1: asks for a trait of what gives the resources of that group"),
    ({"trait1:CUSTOM_FAST": "required", "resources1:CUSTOM_A": "0"}, "and there are none: say resources1:CUSTOM_"),
    ({"resources1:VGPU": "1", "trait1:CUSTOM_A": "required"}, ""),
    ({"resources1:VGPU": "1", "trait1:HW_GPU_API_DX12": "required"}, ""),
    ({"resources1:CUSTOM_A": "1", "trait1:HW_GPU_API_DX12": "required"}, "asks for a trait that devices have"),
    ({"resources1:VGPU": "1", "resources2:CUSTOM_A": "1", "group_policy": "isolate"}, ""),
    ({"resources1:VGPU": "1", "resources:VGPU": "1"}, "asks for 2 in all, and a server has one virtual GPU"),
    ({"resources1:VGPU": "1", "resources1:CUSTOM_A": "1"}, "no provider has both"),
    ({"resources1:VGPU": "1", "trait1:CUSTOM_A": "forbidden"}, "asks for CUSTOM_A=forbidden of its device"),
    ({"resources1:VGPU": "1", "trait1:CUSTOM_A": "required", "trait1:CUSTOM_B": "required"}, "can require one trait"),
    ({"resources1:CUSTOM_A": "1", "resources2:CUSTOM_A": "1"}, "group_policy, none or isolate, is missing"),
    ({"resources1:CUSTOM_A": "1", "resources2:CUSTOM_B": "1", "group_policy": "isolate"}, "are all of one")], ids=str)
def test_what_is_wrong_with_groups(specs, why):
    assert why in groups.check_request_groups(specs) and bool(groups.check_request_groups(specs)) == bool(why)
