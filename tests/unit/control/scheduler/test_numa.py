# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts of NUMA cells: what is chosen fits, as far as agents have told and this process has placed."""

from dataclasses import replace
from random import Random

import pytest

from magnetar_control.scheduler import numa, pci
from magnetar_control.scheduler.choose import NoValidHost, choose_hosts
from magnetar_control.scheduler.host_state import DEVICES
from magnetar_control.scheduler.rules import Rules
from magnetar_control.scheduler.weighers import Multipliers
from magnetar_control.store.claims.allocations import Amounts
from magnetar_core.hardware.numa import numa_needs

from .fleet import plainly, request, row, states, told_cell

PINNED = {"cpu_policy": "dedicated"}


def asked(vcpus=4, ram=1024, **hardware):
    """A request for dedicated CPUs."""
    return request(amounts=Amounts(0, ram, 1, vcpus), numa=numa_needs({**PINNED, **hardware}, vcpus, ram))


def a_host(name, *free, **more):
    """A host of two cells with four dedicated CPUs each, of which those are *free*."""
    cells = [told_cell(at, text, left) for at, (text, left) in enumerate(zip(("4-7", "8-11"), free, strict=True))]
    return row(name, pcpus=8, info={"numa_cells": cells}, **more)


def test_only_hosts_that_fit_are_chosen():
    found = states(a_host("kvm1", "4-5", "8-9"), a_host("kvm2", "4-7", "8", memory_mb_used=60000),
                   a_host("kvm3", "", ""), row("kvm4"))
    assert [one.host for one in choose_hosts(found, asked(), 9)] == ["kvm2"]
    assert {one.host for one in choose_hosts(found, asked(numa_nodes=2), 9)} == {"kvm1"}
    with pytest.raises(NoValidHost) as told:
        choose_hosts(found, asked(6, 1024))
    assert told.value.refused == {"PcpuFilter": 1, "NUMATopologyFilter": 3}
    assert told.value.explanation == (
        "Of 4 hosts the filters refused: PcpuFilter 1, NUMATopologyFilter 3. PcpuFilter: the best of these, kvm4, has "
        "room for 0 of 6 dedicated CPUs. NUMATopologyFilter: the best of these, kvm1, does not fit: it needs 6 "
        "dedicated CPUs, and 4 are free.")


def test_what_was_placed_counts_until_the_host_tells_it():
    found = states(a_host("kvm1", "4-7", "8-11", memory_mb_used=60000))
    for _server in range(2):
        assert choose_hosts(found, asked())
        found.used("kvm1", Amounts(), numa=asked().numa)
    with pytest.raises(NoValidHost):
        choose_hosts(found, asked())
    found.changed(a_host("kvm1", "4-7", "", servers=2, memory_mb_used=60000))
    assert choose_hosts(found, asked())
    found.used("kvm1", Amounts(), numa=asked().numa)
    with pytest.raises(NoValidHost):
        choose_hosts(found, asked())


def test_what_was_placed_and_has_gone_before_the_host_told_it_counts_no_longer(monkeypatch):
    """The agent never tells other cells or devices: it had taken and freed them between two words."""
    clock = [100.0]
    for module in (numa, pci):
        monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    device = {"pci_devices": {"card": {"total": 1, "free": 1}}}
    found = states(a_host("kvm1", "4-7", ""))
    found.hosts["kvm1"].pci.save_report(device)
    found.used("kvm1", Amounts(), numa=asked().numa, devices={"card": 1})
    host = found.hosts["kvm1"]

    def lacks():
        return bool(host.numa.lacks(asked().numa)), bool(host.pci.lacks({"card": 1}, "", host.numa, None))

    assert lacks() == (True, True)
    clock[0] += numa.LATE
    assert lacks() == (False, False)


def test_what_has_gone_counts_until_the_host_has_told_it(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(numa, "monotonic", lambda: clock[0])
    found = states(a_host("kvm1", "", "", servers=2))
    with pytest.raises(NoValidHost):
        choose_hosts(found, asked())
    found.changed(a_host("kvm1", "", "", servers=1))
    assert choose_hosts(found, asked())
    found.changed(a_host("kvm1", "4", "", servers=1))  # from before it was gone, perhaps
    assert choose_hosts(found, asked())
    clock[0] += numa.LATE
    with pytest.raises(NoValidHost):
        choose_hosts(found, asked())


@pytest.mark.parametrize("seed", range(10))
def test_of_many_hosts_one_is_chosen_whenever_one_fits(seed):
    chance = Random(seed)
    frees = ("", "4", "4-5", "4-7"), ("", "8", "8-10", "8-11")
    found = states(*(a_host(f"kvm{at:03}", *map(chance.choice, frees), memory_mb_used=chance.randrange(0, 60000, 512))
                     for at in range(300)))
    for _round in range(10):
        wish = asked(chance.choice((1, 2, 4, 8)), 1024, **({"numa_nodes": 2} if chance.random() < 0.3 else {}))
        fits = {name for _weight, name in plainly(found, wish)} if any(
            not host.numa.lacks(wish.numa) for host in found.hosts.values()) else set()
        if not fits:
            with pytest.raises(NoValidHost):
                choose_hosts(found, wish)
            continue
        chosen = choose_hosts(found, wish, 5, random=chance)
        assert {one.host for one in chosen} <= fits and len(chosen) == min(5, len(fits))
        found.used(chosen[0].host, wish.amounts, numa=wish.numa)


def test_hosts_that_have_room_near_the_network_are_chosen():
    def near(name, *networks):
        cells = [{**told_cell(at, text), "networks": list(names)} for at, (text, names) in enumerate(networks)]
        return row(name, pcpus=8, info={"numa_cells": cells})

    found = states(near("kvm1", ("4-7", []), ("", ["net0"])), near("kvm2", ("", []), ("4-7", ["net0"])),
                   near("kvm3", ("", ["net0"]), ("4-7", [])))
    wish = asked()
    wish = replace(wish, numa=wish.numa._replace(networks=("net0",)))
    assert {one.host for one in choose_hosts(found, wish, 9)} == {"kvm2"}
    found = states(near("kvm1", ("4-7", []), ("", ["net0"])))
    with pytest.raises(NoValidHost) as told:
        choose_hosts(found, wish)
    assert "does not fit: it is to be near the networks net0" in told.value.explanation
    assert choose_hosts(states(near("kvm1", ("4-7", []), ("", []))), wish), "where the host says nothing of it"


# PCI devices ----------------------------------------------------------------------------------------------------------
def equipped(name, node=-1, free=1, policy="", **more):
    """A host of two cells, with GPUs at one of them."""
    cells = [{**told_cell(at, "", shared="0-3" if at == 0 else "4-7"), "sockets": [at // 2]} for at in range(3)]
    return row(name, info={"numa_cells": cells, "pci_devices": {
        "gpu": {"total": 2, "free": free, **({"numa_policy": policy} if policy else {})}}, "pci_pools": [
            {"aliases": ["gpu"], "numa_node": node, "total": 2, "free": free}]}, **more)


def gpus(count=1, nodes=1, **specs):
    """A request for GPUs by a guest with NUMA cells."""
    hardware = {"numa_nodes": nodes} if nodes else {}
    return request(numa=numa_needs(hardware, 2, 512), devices={"gpu": count}, extra_specs={
        "pci_passthrough:alias": f"gpu:{count}", **specs})


@pytest.mark.parametrize(("node", "policy", "own", "nodes", "fits"), [
    (0, "", "", 1, True), (-1, "", "", 1, True), (-1, "required", "", 1, False), (-1, "", "required", 1, False),
    (-1, "legacy", "required", 1, True), (-1, "socket", "", 1, False), (-1, "preferred", "", 1, True),
    (2, "required", "", 2, True), (-1, "required", "", 0, True)])
def test_devices_suit_the_cells_of_the_guest(node, policy, own, nodes, fits):
    found = states(equipped("kvm1", node, policy=own))
    asked = gpus(nodes=nodes, **({"hw:pci_numa_affinity_policy": policy} if policy else {}))
    if fits:
        assert choose_hosts(found, asked)
    else:
        with pytest.raises(NoValidHost) as told:
            choose_hosts(found, asked)
        assert told.value.refused == {"PciPassthroughFilter": 1}
        assert "that suit the NUMA cells of the server" in told.value.explanation


def test_what_a_server_has_already_is_not_in_its_way():
    found = states(equipped("kvm1", free=0))
    with pytest.raises(NoValidHost):
        choose_hosts(found, gpus(nodes=0))
    assert choose_hosts(found, replace(gpus(nodes=0), has_devices={"kvm1": {"gpu": 1}}))


def test_hosts_with_devices_are_for_those_who_ask():
    """Row WEI-07: the fewest free devices that do."""
    found = states(equipped("kvm1", free=2), equipped("kvm2", free=1), row("kvm3"))
    assert [one.host for one in choose_hosts(found, request(), 3)] == ["kvm3", "kvm2", "kvm1"]
    assert [one.host for one in choose_hosts(found, gpus(nodes=0), 3)] == ["kvm2", "kvm1"]
    assert [one.host for one in choose_hosts(found, gpus(2, 0), 3)] == ["kvm1"]
    found.used("kvm1", Amounts(), devices={"gpu": 2})
    assert found.hosts["kvm1"].numbers[DEVICES] == 0
    found.changed(equipped("kvm1", free=1, servers=1))
    assert found.hosts["kvm1"].numbers[DEVICES] == 1
    found.changed(row("kvm3", memory_mb_used=20480))
    found.rules = Rules(Multipliers(pci=0.0))
    assert choose_hosts(found, request())[0].host != "kvm3"
