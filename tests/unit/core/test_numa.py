# SPDX-License-Identifier: GPL-3.0-or-later
"""The pure choice of CPUs, NUMA cells and pages, and what servers may ask of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as some

from magnetar_core.errors import InvalidField
from magnetar_core.hardware import numa
from magnetar_core.hardware.cpus import CpuMask, PageSize, cpu_set, cpu_text, masked_cpus
from magnetar_core.hardware.merge import requested_hardware
from magnetar_core.hardware.numa import HostCell, NoFit, lost_placement, numa_needs, place_guest, remaining_cells


def cell(id=0, dedicated="", shared="", memory_mb=4096, pages=None, cores=()):
    return HostCell(id, cpu_set(dedicated) if dedicated else frozenset(), cpu_set(shared) if shared else frozenset(),
                    memory_mb, pages or {}, tuple(map(cpu_set, cores)))


@pytest.mark.parametrize(("text", "found"), [("0-3,^2,8", {0, 1, 3, 8}), ("5", {5}), ("^1,0-2", {0, 2})])
def test_a_set_of_cpus(text, found):
    assert cpu_set(text) == found and cpu_set(cpu_text(found)) == found


@pytest.mark.parametrize("text", ["3-1", "0-99999", "a", "0--1", "1,", ""])
def test_what_is_no_set_of_cpus(text):
    with pytest.raises(InvalidField):
        cpu_set(text)


@pytest.mark.parametrize(("text", "kib"), [
    ("2048", "2048"), (2048, "2048"), ("2MB", "2048"), ("2MiB", "2048"), ("16Mbit", "2048"), ("1GB", "1048576"),
    ("1G", "1048576"), ("large", "large"), ("2097152B", "2048")])
def test_a_size_of_pages(text, kib):
    assert PageSize().check(text, "size") == kib


@pytest.mark.parametrize(("specs", "properties", "why"), [
    ({"hw:cpu_policy": "shared"}, {"hw_cpu_policy": "dedicated"}, "must not be dedicated where the flavor's"),
    ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0"}, {"hw_cpu_policy": "dedicated"}, "must not be dedicated"),
    ({"hw:cpu_policy": "mixed"}, {}, "must be set where cpu_policy is mixed"),
    ({"hw:cpu_policy": "dedicated", "hw:cpu_dedicated_mask": "0"}, {}, "must be set where cpu_policy is mixed"),
    ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0-4"}, {}, "must name some of the virtual CPUs 0 to 3"),
    ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0-3"}, {}, "and not all of them"),
    ({"hw:cpu_thread_policy": "require"}, {}, "needs cpu_policy dedicated or mixed"),
    ({"hw:emulator_threads_policy": "isolate"}, {}, "needs cpu_policy dedicated or mixed"),
    ({"hw:cpu_policy": "dedicated", "hw:cpu_thread_policy": "require"}, {"hw_cpu_thread_policy": "isolate"},
     "both must say the same"),
    ({"hw:numa_nodes": "3"}, {}, "must divide the 4 virtual CPUs"),
    ({"hw:numa_nodes": "5"}, {}, "no more than the 4 virtual CPUs"),
    ({"hw:numa_nodes": "2", "hw:numa_cpus.0": "0-3"}, {}, "together with numa_mem"),
    ({"hw:numa_cpus.0": "0-3"}, {}, "needs numa_nodes"),
    ({"hw:numa_nodes": "2", "hw:numa_cpus.0": "0", "hw:numa_cpus.1": "1-3", "hw:numa_mem.0": "1", "hw:numa_mem.1": "1"},
     {}, "must add up to the 1024 MiB of the server, and is 2"),
    ({"hw:numa_nodes": "2", "hw:numa_cpus.0": "0", "hw:numa_cpus.1": "0-3", "hw:numa_mem.0": "1", "hw:numa_mem.1": "1"},
     {}, "each of the virtual CPUs 0 to 3 once"),
    ({"hw:numa_nodes": "2", "hw:numa_cpus.0": "0", "hw:numa_cpus.1": "2-3", "hw:numa_mem.0": "1", "hw:numa_mem.1": "1"},
     {}, "missing: 1"),
    ({"hw:numa_nodes": "2", "hw:numa_cpus.0": "0", "hw:numa_cpus.2": "2-3", "hw:numa_mem.0": "1", "hw:numa_mem.1": "1"},
     {}, "one for each of the 2 cells"),
    ({"hw:numa_nodes": "1"}, {"hw_numa_nodes": "2"}, "must not be set together"),
    ({"hw:numa_nodes": "2"}, {"hw_numa_cpus.0": "0"}, "must not be set together"),
    ({"hw:mem_page_size": "small"}, {"hw_mem_page_size": "large"}, "only where the flavor's hw:mem_page_size is large"),
    ({"hw:mem_page_size": "2048"}, {"hw_mem_page_size": "2048"}, "only where the flavor's"),
    ({}, {"hw_mem_page_size": "2048"}, "only where the flavor's"),
    ({"hw:locked_memory": "true"}, {}, "needs mem_page_size"),
    ({"hw:locked_memory": "true", "hw:mem_page_size": "any"}, {"hw_locked_memory": "no"}, "both must say the same")],
    ids=str)
def test_what_does_not_go_together_is_refused(specs, properties, why):
    with pytest.raises(InvalidField) as refused:
        requested_hardware({"vcpus": 4, "ram": 1024, "extra_specs": specs}, {"properties": properties})
    assert why in refused.value.message


@pytest.mark.parametrize(("specs", "properties", "found"), [
    ({"hw:cpu_policy": "dedicated"}, {"hw_cpu_policy": "shared"}, {"cpu_policy": "dedicated"}),
    ({}, {"hw_cpu_policy": "dedicated"}, {"cpu_policy": "dedicated"}),
    ({"hw:mem_page_size": "large"}, {"hw_mem_page_size": "2MB"}, {"mem_page_size": "2048"}),
    ({"hw:mem_page_size": "any"}, {}, {"mem_page_size": "any"}),
    ({}, {"hw_numa_nodes": "2"}, {"numa_nodes": 2})], ids=str)
def test_flavor_and_image_are_one(specs, properties, found):
    asked = requested_hardware({"vcpus": 4, "ram": 1024, "extra_specs": specs}, {"properties": properties})
    assert asked == {"hardware": found}


REALTIME = yaml.safe_load((Path(__file__).parents[2] / "cases/hardware/realtime.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", REALTIME["masks"], ids=lambda one: repr(one["said"]))
def test_a_mask_of_cpus_in_real_time(case):
    if "error" in case:
        with pytest.raises(InvalidField, match=case["error"]):
            CpuMask().check(case["said"], "mask")
        return
    normal = CpuMask().check(case["said"], "mask")
    assert normal == case["normal"] == CpuMask().check(normal, "mask")
    assert sorted(masked_cpus(normal, case["vcpus"])) == case["cpus"]


@pytest.mark.parametrize("case", REALTIME["servers"], ids=lambda one: " ".join(map("=".join, one["specs"].items())))
def test_who_runs_in_real_time(case):
    flavor = {"vcpus": 4, "ram": 1024, "extra_specs": case["specs"]}
    image = {"properties": case.get("properties", {})}
    if "error" in case:
        with pytest.raises(InvalidField) as refused:
            requested_hardware(flavor, image)
        assert case["error"] in refused.value.message
        return
    found = requested_hardware(flavor, image).get("hardware", {})
    assert found == case["hardware"]
    assert (sorted(numa.realtime_cpus(found, 4)), numa.dedicated_cpu_count(found, 4)) == (case["fast"], case["own"])


TWO = [cell(0, "2-5", "0-1", pages={2048: 100, 1048576: 1}, cores=("2,4", "3,5", "0,1")),
       cell(1, "8-11", "6-7", pages={2048: 2000}, cores=("8,9", "10,11", "6,7"))]


@pytest.mark.parametrize(("hardware", "ram", "found"), [
    ({"cpu_policy": "dedicated"}, 1024, [(0, {"0": 2, "1": 4, "2": 3, "3": 5}, 4)]),
    ({"cpu_policy": "dedicated", "numa_nodes": 2}, 1024, [(0, {"0": 2, "1": 4}, 4), (1, {"2": 8, "3": 9}, 4)]),
    ({"cpu_policy": "mixed", "cpu_dedicated_mask": "1-3", "numa_nodes": 2}, 1024,
     [(0, {"1": 2}, 4), (1, {"2": 8, "3": 9}, 4)]),
    ({"mem_page_size": "large", "cpu_policy": "dedicated"}, 1024, [(0, {"0": 2, "1": 4, "2": 3, "3": 5}, 1048576)]),
    ({"mem_page_size": "2048", "cpu_policy": "dedicated"}, 1024, [(1, {"0": 8, "1": 9, "2": 10, "3": 11}, 2048)]),
    ({"mem_page_size": "any", "cpu_policy": "dedicated"}, 4096, [(0, {"0": 2, "1": 4, "2": 3, "3": 5}, 4)])], ids=str)
def test_what_a_server_gets(hardware, ram, found):
    placed = place_guest(TWO, numa_needs(hardware, 4, ram))
    assert [(one["host"], one["pins"], one["page"]) for one in placed["cells"]] == found
    assert json.loads(json.dumps(placed)) == placed


FOUR = [cell(at, "", "0-3")._replace(networks=frozenset(names)) for at, names in enumerate(("a", "ab", "b", "c"))]


@pytest.mark.parametrize(("networks", "nodes", "found"), [
    ("", 1, {0}), ("c", 1, {3}), ("ab", 1, {1}), ("ac", 2, {0, 3}), ("x", 1, {0}), ("bc", 2, {1, 3}),
    ("ac", 1, None), ("abc", 2, {1, 3}), ("abc", 4, {0, 1, 2, 3})])
def test_near_networks(networks, nodes, found):
    """Of each network one cell, as far as the host says near which it is."""
    wish = numa_needs({"numa_nodes": nodes}, nodes, nodes)._replace(networks=tuple(networks))
    if found is None:
        with pytest.raises(NoFit, match="it is to be near the networks a, c, and its cells fit nowhere so that one"):
            place_guest(FOUR, wish)
        return
    assert {one["host"] for one in place_guest(FOUR, wish)["cells"]} == found


def test_near_many_networks():
    """As many as a server has NICs, each with cards at two cells."""
    names = [str(at) for at in range(32)]
    there = [one._replace(networks=frozenset(names)) for one in FOUR[:2]]
    wish = numa_needs({"numa_nodes": 1}, 1, 1)._replace(networks=tuple(names))
    assert [one["host"] for one in place_guest(there, wish)["cells"]] == [0]


def test_the_emulator_has_a_cpu_of_its_own():
    placed = place_guest(TWO, numa_needs({"cpu_policy": "dedicated", "emulator_threads": "isolate"}, 3, 64))
    assert placed["emulator"] in TWO[0].dedicated and placed["emulator"] not in placed["cells"][0]["pins"].values()
    assert numa.dedicated_cpu_count({"cpu_policy": "dedicated", "emulator_threads": "isolate"}, 3) == 4


@pytest.mark.parametrize(("hardware", "vcpus", "ram", "why"), [
    ({"cpu_policy": "dedicated"}, 9, 64, "it needs 9 dedicated CPUs, and 8 are free"),
    ({"cpu_policy": "dedicated"}, 5, 64, "it needs 5 dedicated CPUs in a cell, and 4 are free there"),
    ({"numa_nodes": 3}, 3, 3, "it needs 3 NUMA cells, and the host has 2"),
    ({"numa_nodes": 1}, 3, 64, "it needs 3 shared CPUs, and the cell has 2"),
    ({"numa_nodes": 1}, 1, 4097, "it needs 4097 MiB of memory in a cell, and 4096 are free there"),
    ({"mem_page_size": "1048576"}, 1, 2048, "of mem_page_size 1048576 KiB, and free in the cell are: 2000"),
    ({"mem_page_size": "large"}, 1, 5000, "in pages of mem_page_size large"),
    ({"cpu_policy": "dedicated", "cpu_thread_policy": "isolate"}, 1, 64, "whose cores have one thread each"),
    ({"cpu_policy": "dedicated", "emulator_threads": "isolate"}, 4, 64, "a dedicated CPU for QEMU's own threads")],
    ids=str)
def test_what_a_host_lacks_is_told(hardware, vcpus, ram, why):
    with pytest.raises(NoFit) as refused:
        place_guest(TWO, numa_needs(hardware, vcpus, ram))
    assert why in str(refused.value)


def test_threads_of_the_same_cores_where_they_are_required():
    odd = [cell(0, "2,3,5", cores=("2,4", "3,5"))]
    asked = numa_needs({"cpu_policy": "dedicated", "cpu_thread_policy": "require"}, 2, 64)
    assert set(place_guest(odd, asked)["cells"][0]["pins"].values()) == {3, 5}
    with pytest.raises(NoFit, match="threads of the same cores, and 0 are free"):
        place_guest([cell(0, "2,3", cores=("2,4", "3,5"))], asked)


def test_whole_cores_are_kept_for_those_who_want_them():
    assert place_guest([cell(0, "2-5", cores=("2,4", "3", "5"))], numa_needs({"cpu_policy": "dedicated"}, 1, 64)
                       )["cells"][0]["pins"] == {"0": 3}


@pytest.mark.parametrize(("worth", "pack", "found"), [
    ({}, True, 1), ({}, False, 0), ({0: 1}, True, 0), ({1: 1}, False, 1), ({1: -1}, True, 0)])
def test_the_fullest_cells_or_the_emptiest_after_those_with_devices(worth, pack, found):
    """Row XCPU-03."""
    cells = [HostCell(at, frozenset(), frozenset(range(4 * at, 4 * at + 4)), 4096 // (at + 1)) for at in range(2)]
    assert place_guest(cells, numa_needs({"numa_nodes": 1}, 2, 512), worth, pack)["cells"][0]["host"] == found


def test_a_server_that_may_be_anywhere_needs_nothing():
    assert numa_needs({}, 4, 64) is None and numa.dedicated_cpu_count({}, 4) == 0


@some.composite
def servers(draw):
    vcpus, nodes = draw(some.integers(1, 4)), draw(some.sampled_from([1, 2]))
    hardware = {"cpu_policy": draw(some.sampled_from(["shared", "dedicated", "mixed"])),
                "numa_nodes": nodes, "mem_page_size": draw(some.sampled_from(["small", "large", "any", "2048"]))}
    if hardware["cpu_policy"] == "mixed":
        hardware["cpu_dedicated_mask"] = "0"
        vcpus += 1
    if hardware["cpu_policy"] != "shared":
        hardware["cpu_thread_policy"] = draw(some.sampled_from(["prefer", "require"]))
        if draw(some.booleans()):
            hardware["emulator_threads"] = "isolate"
    return hardware, vcpus * nodes, draw(some.integers(1, 600)) * nodes


@given(some.lists(servers(), max_size=20), some.randoms())
def test_no_two_servers_ever_get_the_same(asked, chance):
    """Servers come and go in any order; what is held never overlaps, and never is more than there is."""
    held = []
    for hardware, vcpus, ram in asked:
        numa.check_numa(hardware, vcpus, ram)
        wanted = numa_needs(hardware, vcpus, ram)
        if held and chance.random() < 0.3:
            held.pop(chance.randrange(len(held)))
        free = remaining_cells(TWO, [placed for placed, _wanted in held])
        try:
            placed = place_guest(free, wanted)
        except NoFit:
            continue
        assert lost_placement(free, placed, wanted) == ""
        assert sum(len(one["pins"]) for one in placed["cells"]) + ("emulator" in placed) == wanted.dedicated
        assert len({one["host"] for one in placed["cells"]}) == len(wanted.cells)
        held.append((placed, wanted))
        cpus = [cpu for one, _wanted in held for cpu in numa.held_cpus(one)]
        assert len(cpus) == len(set(cpus)) == sum(wanted.dedicated for _placed, wanted in held)
        for host in remaining_cells(TWO, [one for one, _wanted in held]):
            assert host.memory_mb >= 0 and min(host.pages.values(), default=0) >= 0
    assert list(numa.parse_cells(list(numa.report_cells(TWO, TWO)))) == [one._replace(cores=tuple(
        core for core in one.cores if len(core) > 1)) for one in TWO]
