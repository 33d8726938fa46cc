# SPDX-License-Identifier: GPL-3.0-or-later
"""Which devices of a host are enough for whom."""

from __future__ import annotations

from itertools import combinations, permutations
from random import Random

import pytest

from magnetar_core.hardware.pci import (
    VGPU,
    Affinity,
    DevicePool,
    assign_candidates,
    assign_held_devices,
    device_pools,
    device_requests,
    normalize_resource_class,
    normalize_traits,
    pci_resource_class,
    pools_suffice,
    preferred_cells,
    reported_devices,
)


def best(units, room):
    """Whether there is an assignment, by trying all."""
    places = [one for one, count in room.items() for _each in range(count)]
    return any(all(place in unit for unit, place in zip(units, order, strict=False))
               for order in permutations(places, len(units))) if len(places) >= len(units) else False


@pytest.mark.parametrize("seed", range(60))
def test_what_can_be_assigned_is(seed):
    chance = Random(seed)
    room = {at: chance.randrange(3) for at in range(3)}
    units = [chance.sample(range(3), chance.randrange(1, 4)) for _unit in range(chance.randrange(1, 5))]
    found = assign_candidates(units, room)
    assert (found is not None) is best(units, room)
    if found is not None:
        assert all(place in unit for place, unit in zip(found, units, strict=True))
        assert all(found.count(one) <= room[one] for one in found)


@pytest.mark.parametrize("seed", range(60))
def test_what_is_held_and_fits_nowhere_is_in_nobodys_way(seed):
    """All new ones are assigned, beside as many of those that are held as can be."""
    chance = Random(seed)
    room = {at: chance.randrange(3) for at in range(3)}
    held, new = ([chance.sample(range(3), chance.randrange(4)) for _unit in range(chance.randrange(4))] for _of in "ab")
    most = max(len(some) for count in range(len(held) + 1) for some in combinations(held, count) if best(some, room))
    found = assign_candidates([*held, *new], room, len(held))
    assert (found is not None) is any(best([*some, *new], room) for some in combinations(held, most))
    if found is not None:
        assert len(held) - found.count(None) == most and None not in found[len(held):]


def test_first_ones_first():
    assert assign_candidates([["a", "b"], ["c", "a"]], {"a": 1, "b": 1, "c": 1}) == ["a", "c"]
    assert assign_candidates([["a", "b"], ["a"]], {"a": 1, "b": 1}) == ["b", "a"]


def test_what_hosts_tell():
    """Agents of before tell counts by alias only."""
    old = {"pci_devices": {"gpu": {"total": 2, "free": 1}}}
    assert device_pools(old) == [DevicePool(("gpu",), -1, 2, 1)] and reported_devices(
        old) == old["pci_devices"] and device_pools({}) == []
    new = {**old, "pci_pools": [{"aliases": ["gpu", "any"], "numa_node": 1, "total": 2, "free": 1}],
           "mdevs": [{"parent": "0000:81:00.0", "type": "a", "numa_node": at, "total": 2, "free": at} for at in (0, 1)]}
    assert device_pools(new) == [DevicePool((VGPU,), 0, 2, 0, "", "VGPU"), DevicePool((VGPU,), 1, 2, 1, "", "VGPU"),
                                 DevicePool(("gpu", "any"), 1, 2, 1)]
    assert reported_devices(new)[VGPU] == {"total": 4, "free": 1}
    assert device_requests({"pci_alias": "gpu:2", "vgpus": 1}) == {"gpu": 2, VGPU: 1} and device_requests({}) == {}


def test_virtual_gpus_may_be_anywhere():
    there = [DevicePool((VGPU,), 1, 1, 1), DevicePool(("gpu",), 1, 1, 1)]
    near = Affinity("required", frozenset([0]))
    assert pools_suffice(there, [1, 1], [{VGPU: 1}], near) and not pools_suffice(there, [1, 1], [{"gpu": 1}], near)
    assert pools_suffice(there, [1, 1], [{"gpu": 1}], Affinity("", frozenset([0])), {"gpu": "preferred"})


def test_cells_with_devices_are_for_those_who_ask():
    found = [(("gpu",), 0, 2), (("nic",), 1, 1), (("gpu",), -1, 5)]
    assert preferred_cells(found, {"gpu": 1}) == {0: 2, 1: 0} and preferred_cells(found, {}) == {0: -2, 1: -1}


# Which devices claims mean ------------------------------------------------------------------------------------------
GPUS = [DevicePool(("gpu", "any"), 0, 1, 1, "81", "A"), DevicePool(("gpu",), 0, 1, 1, "c1", "A"),
        DevicePool(("nic", "any"), 0, 2, 2, "31", "B")]


@pytest.mark.parametrize(("counted", "known", "found"), [
    ({}, {"a": {"81": 1}}, {}),
    ({"a": {"gpu": 1}}, {}, {"a": [("gpu", 0)]}),
    ({"a": {"gpu": 1}}, {"a": {"c1": 1}}, {"a": [("gpu", 1)]}),
    # What others have without a claim comes last.
    ({"a": {"gpu": 1}}, {"x": {"81": 1}}, {"a": [("gpu", 1)]}),
    ({"a": {"gpu": 1}, "b": {"gpu": 1}}, {"b": {"81": 1}}, {"a": [("gpu", 1)], "b": [("gpu", 0)]}),
    ({"a": {"any": 1, "gpu": 1}}, {"a": {"81": 1, "31": 1}}, {"a": [("any", 2), ("gpu", 0)]}),
    ({"a": {"nic": 2}, "b": {"any": 1}}, {}, {"a": [("nic", 2), ("nic", 2)], "b": [("any", 0)]}),
    # A device or an alias that is there no more.
    ({"a": {"gpu": 3}}, {"a": {"c1": 1}}, {"a": [("gpu", 0), ("gpu", 1), ("gpu", None)]}),
    ({"a": {"fpga": 1}}, {}, {"a": [("fpga", None)]})], ids=str)
def test_which_devices_are_whose(counted, known, found):
    assert {one: sorted(held, key=str) for one, held in assign_held_devices(GPUS, counted, known).items()} == found


def test_names_of_classes_and_traits():
    """Nova's rules (rows XPCI-08, XPCI-10)."""
    assert [normalize_resource_class(one) for one in ("gpu", "CUSTOM_GPU", "my gpu-2", "pgpu", " fpga ")] == [
        "CUSTOM_GPU", "CUSTOM_GPU", "CUSTOM_MY_GPU_2", "PGPU", "FPGA"]
    assert normalize_traits("big, nv--link,,CUSTOM_BIG,hw_gpu_api_vulkan") == [
        "CUSTOM_BIG", "CUSTOM_NV_LINK", "HW_GPU_API_VULKAN"]
    assert pci_resource_class("10de", "1eb8") == "CUSTOM_PCI_10DE_1EB8"
