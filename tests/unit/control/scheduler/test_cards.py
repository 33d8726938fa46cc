# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports that are virtual functions, and the bandwidth of the cards that these are of."""

from collections import Counter
from time import monotonic

import pytest

from magnetar_control.scheduler.choose import NoValidHost
from magnetar_control.scheduler.place import hold_ports, place_server
from magnetar_control.scheduler.request_spec import requested_resources, with_current_offers
from magnetar_control.store.claims import allocations, host_counters, inventories
from magnetar_control.store.claims.nic_bandwidth import STEPS, bandwidth_placements, bandwidth_requests
from magnetar_control.store.hosts import hosts
from magnetar_core import bandwidth
from tests.support.control.place import ONE, a_memory, fleet, raced

from .fleet import INFO, request

__all__ = ["fleet"]
FUNCTION = "type-VF:physnet0"
OUT = bandwidth.bandwidth_resource("egress", "physnet0")
FIRST, SECOND = (f"{OUT}/ens{at}" for at in (1, 2))


def port(id, amount, devices=FUNCTION):
    return {"port_id": id, "resources": {OUT: amount}, **({"devices": {devices: 1}} if devices else {})}


def tell(database, name, setting, free=None, **functions):
    """A host tells so much bandwidth, and so many virtual functions of its cards; *free*: of which so many are."""
    pools = [{"aliases": [FUNCTION, f"type-VF:physnet0/{card}"], "numa_node": -1, "total": count,
              "free": (free or functions)[card], "provider": f"0000:{card}", "resource_class": "SRIOV_NET_VF"}
             for card, count in functions.items()]
    devices = {one["aliases"][1]: {"total": one["total"], "free": one["free"]} for one in pools}
    every = {what: sum(one[what] for one in pools) for what in ("total", "free")}
    info = {**INFO, "vcpus": 16, "memory_mb": 65536, "disk_gb": 1000, "pci_pools": pools,
            "pci_devices": {FUNCTION: every, **devices}, "bandwidths": bandwidth.parse_bandwidth_setting(setting)}
    with database.write() as connection:
        hosts.save_host_inventory(connection, name, info)


@pytest.fixture
def cards(fleet):
    """kvm2 has two cards of 1000 kbit/s each, with two virtual functions each, and 500 kbit/s for other ports; kvm3 has
    800 for all ports, and two virtual functions."""
    tell(fleet, "kvm2", ["physnet0:500:", "physnet0/ens1:1000:", "physnet0/ens2:1000:"], ens1=2, ens2=2)
    tell(fleet, "kvm3", ["physnet0:800:"], ens1=2)
    return fleet


def wish(database, id, *nics, **more):
    wanted = requested_resources({"extra_specs": more.pop("extra_specs", {})}, {}, nics)
    return with_current_offers(database, request(server_id=id, amounts=ONE, **wanted._asdict(), **more))


def held(database, server):
    """Resources, devices and places that a server holds, by host."""
    with database.read() as connection:
        return {row.host: (row.resources, row.devices, row.places)
                for row in allocations.fetch_server_claims(connection, server)}


def used(database, host="kvm2"):
    with database.write() as connection:
        assert host_counters.audit_host_counters(connection) == []
        rows = inventories.fetch_inventory_rows(connection)[hosts.fetch_host_row(connection, host).id]
    return {name: row.used for name, row in rows.items() if row.used}


def test_a_port_has_its_bandwidth_of_the_card_that_it_is_of(cards):
    place_server(cards, a_memory(cards), wish(cards, "s1", port("a", 700), port("b", 600), port("c", 500, ""),
                                              host="kvm2"))
    assert held(cards, "s1") == {"kvm2": (
        {FIRST: 700, SECOND: 600, OUT: 500}, {f"{FUNCTION}/ens1": 1, f"{FUNCTION}/ens2": 1},
        {"a": "physnet0/ens1", "b": "physnet0/ens2", "c": "physnet0"})}
    assert used(cards) == {FIRST: 700, SECOND: 600, OUT: 500}
    with pytest.raises(NoValidHost) as told:
        place_server(cards, a_memory(cards), wish(cards, "s2", port("d", 500), host="kvm2"))
    assert "has 300 (ens1), 400 (ens2) kbit/s egress left on the cards of physnet0, and ports want 500" in (
        told.value.explanation)
    with cards.write() as connection:
        allocations.release_consumer_claims(connection, "s1")
    assert used(cards) == {}


def test_a_host_without_such_cards_gives_it_of_the_network(cards):
    place_server(cards, a_memory(cards), wish(cards, "s1", port("a", 700), host="kvm3"))
    assert held(cards, "s1") == {"kvm3": ({OUT: 700}, {FUNCTION: 1}, {"a": "physnet0"})}
    with pytest.raises(NoValidHost) as told:
        place_server(cards, a_memory(cards), wish(cards, "s2", port("b", 700), host="kvm3"))
    assert f"has 100 of 700 {OUT} left" in told.value.explanation


def test_each_port_of_another_card(cards):
    """``group_policy``: spec row A9.4."""
    isolate = {"extra_specs": {"group_policy": "isolate"}, "host": "kvm2"}
    place_server(cards, a_memory(cards), wish(cards, "s1", port("a", 100), port("b", 100), **isolate))
    assert sorted(held(cards, "s1")["kvm2"][2].values()) == ["physnet0/ens1", "physnet0/ens2"]
    with pytest.raises(NoValidHost) as told:
        place_server(cards, a_memory(cards), wish(cards, "s2", *(port(id, 1) for id in "cde"), **isolate))
    assert "not one provider of bandwidth (a physical network, or a card) for each port" in told.value.explanation


def test_a_card_with_bandwidth_and_no_virtual_function_left(cards):
    memory = a_memory(cards)
    for id in ("a", "b"):
        place_server(cards, memory, wish(cards, f"s{id}", port(id, 10, FUNCTION), host="kvm2"))
    tell(cards, "kvm2", ["physnet0/ens1:1000:", "physnet0/ens2:9000:"], ens1=2, ens2=1)
    place_server(cards, a_memory(cards), wish(cards, "s1", port("c", 10), host="kvm2"))
    assert held(cards, "s1")["kvm2"][2] == {"c": "physnet0/ens1"}, "the other card has more left, and no function"
    with pytest.raises(NoValidHost):  # as the claim finds, while the agent has not told of all that is taken
        place_server(cards, a_memory(cards), wish(cards, "s2", port("d", 1500), host="kvm2"))
    tell(cards, "kvm2", ["physnet0/ens1:1000:", "physnet0/ens2:9000:"], ens1=2, ens2=1, free={"ens1": 1, "ens2": 0})
    with pytest.raises(NoValidHost) as told:
        place_server(cards, a_memory(cards), wish(cards, "s2", port("d", 1500), host="kvm2"))
    assert "lacks free virtual functions of the cards that have bandwidth enough left" in told.value.explanation


def test_what_is_claimed_again_stays_on_its_card(cards):
    found = place_server(cards, a_memory(cards), wish(cards, "s1", port("a", 300), host="kvm2"))
    assert held(cards, "s1")["kvm2"][2] == {"a": "physnet0/ens1"}
    tell(cards, "kvm2", ["physnet0/ens1:1000:", "physnet0/ens2:5000:"], ens1=2, ens2=2)
    first, second = port("a", 300), port("b", 200)
    for nics, places in (([first, second], {"a": "physnet0/ens1", "b": "physnet0/ens2"}),
                         ([first], {"a": "physnet0/ens1"}), ([], {}), ([first], {"a": "physnet0/ens2"}),
                         ([], {})):
        assert hold_ports(cards, "s1", found.host_id, ({}, {}), lambda nics=nics: nics)
        assert held(cards, "s1")["kvm2"][2] == places
    assert used(cards) == {}
    tell(cards, "kvm2", ["physnet0/ens1:1000:", "physnet0/ens2:100:"], ens1=2, ens2=2)
    assert hold_ports(cards, "s1", found.host_id, ({}, {}), lambda: [first])
    tell(cards, "kvm2", ["physnet0/ens1:600:", "physnet0/ens2:5000:"], ens1=2, ens2=2)
    with cards.write() as connection:  # the server comes back to where it was
        assert allocations.move_claims_to_migration(connection, "s1", "m1", found.host_id)
        asked = requested_resources({}, {}, [port("a", 300)])
        assert allocations.claim_host_resources(connection, "s1", "s1", found.host_id, ONE, resources=asked.resources,
                                                devices=asked.devices, nics=asked.nics)
        assert allocations.revert_claims_to_server(connection, "s1", "m1")
    assert used(cards) == {FIRST: 300}


def test_what_is_held_stays_where_a_host_tells_less(cards):
    """docs/reference/qos.md: servers keep what they have, and no more is given."""
    found = place_server(cards, a_memory(cards), wish(cards, "s1", port("a", 700), host="kvm2"))
    tell(cards, "kvm2", ["physnet0/ens1:100:", "physnet0/ens2:1000:"], ens1=2, ens2=2)
    first, second, third = port("a", 700), port("b", 300), port("c", 900)
    for nics, fits, places in (([first, second], True, {"a": "physnet0/ens1", "b": "physnet0/ens2"}),
                               ([first, second, third], False, {"a": "physnet0/ens1", "b": "physnet0/ens2"}),
                               ([first], True, {"a": "physnet0/ens1"})):
        assert hold_ports(cards, "s1", found.host_id, ({}, {}), lambda nics=nics: nics) is fits
        assert held(cards, "s1")["kvm2"][2] == places
    with cards.write() as connection:
        assert allocations.claim_host_resources(connection, "s1", "s1", found.host_id, ONE, resources={OUT: 700},
                                                devices={FUNCTION: 1}, nics=bandwidth_requests([first]))


def test_cards_without_functions_do_not_end_the_search(cards):
    """Three of four have most bandwidth left, and others have all of their functions."""
    names = ["e0", "e1", "e2", "e3"]
    tell(cards, "kvm2", [f"physnet0/{name}:{10000 + at}:" for at, name in enumerate(names)], **dict.fromkeys(names, 8))
    with cards.write() as connection:
        id = hosts.fetch_host_row(connection, "kvm2").id
        for name in names[1:]:
            assert allocations.claim_host_resources(connection, f"o{name}", f"o{name}", id, ONE,
                                                    devices={f"{FUNCTION}/{name}": 8})
    place_server(cards, a_memory(cards), wish(cards, "s1", *(port(f"p{at}", 100) for at in range(6)), host="kvm2"))
    assert {*held(cards, "s1")["kvm2"][2].values()} == {"physnet0/e0"}


def test_conductors_who_race_for_the_last_bandwidth_of_cards(cards):
    """Five may fit: of each card 1000, and of kvm3 800."""
    wishes = [[wish(cards, f"s{at}-{n}", port(f"p{at}-{n}", 400)) for n in range(2)] for at in range(4)]
    placed, refused = raced(cards, wishes)
    assert Counter(placed) == {"kvm2": 4, "kvm3": 2} and len(refused) == 2
    assert used(cards) == {FIRST: 800, SECOND: 800} and used(cards, "kvm3") == {OUT: 800}


def test_a_search_ends():
    left = {f"{OUT}/ens{at}": 1000 for at in range(8)}
    nics = bandwidth_requests([port(str(at), 510) for at in range(16)])
    began = monotonic()
    assert next(bandwidth_placements(nics, left), None) is None
    assert monotonic() - began < 5 and STEPS < 1000
    mixed = bandwidth_requests([port(str(at), amount) for at, amount in enumerate((600, 400, 300, 300, 200, 200))])
    assert next(bandwidth_placements(mixed, {f"{OUT}/ens1": 1000, f"{OUT}/ens2": 1000})), "all of both cards"
