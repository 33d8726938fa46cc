# SPDX-License-Identifier: GPL-3.0-or-later
"""Traits: what a host has, and what flavors and images ask for."""

from __future__ import annotations

from pathlib import Path

import os_resource_classes
import os_traits
import pytest
import yaml

from magnetar_core.hardware import AGENT, EVERYWHERE, standard, traits
from magnetar_core.hardware.flavor_specs import FLAVOR_SPECS
from magnetar_core.hardware.rows import BY_SPEC, parse_hardware_specs

CASES = yaml.safe_load((Path(__file__).parents[2] / "cases/scheduler/traits.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_host_has_the_traits_of_what_guests_get(case):
    found = traits.host_traits({"architecture": case["architecture"], "cpu_info": {"features": case["features"]},
                                **case.get("facts", {})},
                               case["kvm"], case["features"] if case["kvm"] else traits.EMULATED,
                               case.get("shares", False), case.get("custom", ()))
    assert set(case["has"]) <= set(found) and not set(case["lacks"]) & set(found)
    assert found == sorted(set(found)) and all(map(traits.is_known_trait, found))


def test_flavor_and_image_are_asked_together():
    asked = traits.requested_host_traits({"trait:CUSTOM_A": "required", "trait:CUSTOM_B": "forbidden",
                                          "hw:boot_menu": "true",
                                          "trait:CUSTOM_D": "wanted", "trait1:CUSTOM_F": "required",
                                          "trait_x:CUSTOM_G": "forbidden"},
                                         {"trait1:CUSTOM_H": "required", "trait:CUSTOM_C": "required",
                                          "trait:CUSTOM_E": "forbidden", "os_distro": "debian"})
    assert asked == ({"CUSTOM_A", "CUSTOM_C", "CUSTOM_F"}, {"CUSTOM_B", "CUSTOM_G"})
    assert asked.lacking(["CUSTOM_A", "CUSTOM_F", "CUSTOM_B"]) == ["lacks CUSTOM_C", "has CUSTOM_B"]
    assert asked.lacking(["CUSTOM_A", "CUSTOM_C", "CUSTOM_F"]) == []


@pytest.mark.parametrize("parts", [EVERYWHERE, (AGENT,)])
def test_every_trait_that_a_host_can_have_acts(parts):
    for name in (*traits.STANDARD, "CUSTOM_A"):
        assert not list(FLAVOR_SPECS.without_effect({f"trait:{name}": "required"}, parts)), name


@pytest.mark.parametrize(("names", "words"), [
    ([], ""), (["CUSTOM_A", "CUSTOM_B2"], ""), (["CUSTOM_A", "custom_b"], "'custom_b' must be CUSTOM_"),
    (["HW_CPU_X86_AVX2"], "'HW_CPU_X86_AVX2' must be CUSTOM_")])
def test_operators_make_custom_traits_only(names, words):
    found = traits.check_custom_traits(names)
    assert found.startswith(words) and bool(found) == bool(words)


@pytest.mark.parametrize(("names", "words"), [
    ([], ""), (["STORAGE_DISK_SSD", "HW_GPU_API_VULKAN", "CUSTOM_A"], ""),
    (["CUSTOM_A", "STORAGE_DISK_TAPE"], "'STORAGE_DISK_TAPE' must be a standard trait"),
    (["HW_CPU_X86_AVX2"], "'HW_CPU_X86_AVX2' must not be given: the agent itself finds out")])
def test_operators_give_hosts_what_agents_do_not_find(names, words):
    found = traits.check_operator_traits(names)
    assert found.startswith(words) and bool(found) == bool(words)


def test_all_standard_names_are_those_of_the_libraries():
    """Names that only a later release of Nova has are few, and listed here."""
    assert {*os_traits.get_traits()} == standard.TRAITS
    assert {
        "COMPUTE_CONFIG_DRIVE_ISO9660", "COMPUTE_CONFIG_DRIVE_VFAT",
        "HW_ARCH_RISCV64"} == traits.AGENT_TRAITS - standard.TRAITS
    assert list(standard.RESOURCE_CLASSES) == os_resource_classes.STANDARDS


@pytest.mark.parametrize(("threads", "there"), [(1, False), (2, True)])
def test_hosts_whose_cores_have_threads(threads, there):
    """Row A4.8."""
    found = traits.host_traits({"cpu_info": {"topology": {"threads": threads}}}, True, (), False)
    assert ("HW_CPU_HYPERTHREADING" in found) is there
    assert "HW_CPU_HYPERTHREADING" in traits.STANDARD


@pytest.mark.parametrize(("libvirt", "there"), [("7.8.0", False), ("7.9.0", True), ("10.0.0", True), (None, False)])
def test_hosts_that_tell_the_serial_numbers_of_cards(libvirt, there):
    """Row NET-02."""
    found = traits.host_traits({"libvirt_version": libvirt}, True, (), False)
    assert ("COMPUTE_REMOTE_MANAGED_PORTS" in found) is there
    assert "COMPUTE_REMOTE_MANAGED_PORTS" in traits.STANDARD


def test_a_virtual_gpu_is_asked_for_with_and_without_a_group():
    asked = parse_hardware_specs({"resources:VGPU": "0", "resources1:VGPU": "1", "trait1:CUSTOM_A": "required"},
                                 BY_SPEC)
    assert asked == {"vgpus": 1, "vgpu_trait": "CUSTOM_A"}
