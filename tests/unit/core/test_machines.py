# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of machine types: what stands for what, and what is later."""

from __future__ import annotations

import pytest

from magnetar_core.hardware.machines import (
    describe_machines,
    guest_machines,
    is_machine_upgrade,
    is_same_machine,
    is_versioned,
    machine_family,
)


@pytest.mark.parametrize(("machine", "alias", "versioned"), [
    ("q35", "q35", False), ("pc", "pc", False), ("pc-q35-7.2", "q35", True), ("pc-i440fx-2.12", "pc", True),
    ("pc-q35-rhel9.2.0", "q35", True), ("microvm", "", False), ("virt-7.2", "virt", True),
    ("virt", "virt", False), ("xenpv", "", False)])
def test_what_a_name_is(machine, alias, versioned):
    assert (machine_family(machine), is_versioned(machine)) == (alias, versioned)


@pytest.mark.parametrize(("machine", "recorded", "same"), [
    ("q35", "pc-q35-7.2", True), ("auto", "pc-i440fx-7.2", True), ("pc-q35-7.2", "pc-q35-7.2", True),
    ("pc", "pc-q35-7.2", False), ("pc-q35-7.1", "pc-q35-7.2", False), ("pc-q35-7.2", "q35", False),
    ("microvm", "microvm", True)])
def test_what_means_the_same(machine, recorded, same):
    assert is_same_machine(machine, recorded) is same


@pytest.mark.parametrize(("old", "new", "later"), [
    ("pc-q35-7.2", "pc-q35-8.0", True), ("pc-q35-7.2", "pc-q35-7.10", True), ("q35", "pc-q35-7.2", True),
    ("pc-q35-4.0", "pc-q35-4.0.1", True), ("pc-q35-7.2", "pc-q35-7.1", False), ("pc-q35-7.2", "pc-q35-7.2", False),
    ("pc-i440fx-7.2", "pc-q35-8.0", False), ("pc-q35-7.2", "q35", False), ("microvm", "microvm", False)])
def test_what_is_an_upgrade(old, new, later):
    assert is_machine_upgrade(old, new) is later


def test_of_qemus_only_what_servers_can_have_is_told():
    facts = {"architecture": "x86_64", "emulated_architectures": ["aarch64"], "machine_types": {
        "x86_64": {"q35": "pc-q35-7.2", "microvm": "microvm"}, "i686": {"q35": "pc-q35-7.2"},
        "aarch64": {"virt": "virt-7.2", "raspi3b": "raspi3b"}}}
    assert guest_machines(facts) == {"x86_64": ["q35"], "aarch64": ["virt"]}
    assert guest_machines({**facts, "emulated_architectures": []}) == {"x86_64": ["q35"]}


def test_the_newest_are_told_first():
    names = ["microvm", "q35", "pc", *(f"pc-q35-{one}" for one in ("7.9", "7.10")), "pc-i440fx-7.2"]
    assert describe_machines(names) == "q35, pc-q35-7.10, pc-q35-7.9, pc, pc-i440fx-7.2"
    assert describe_machines([f"pc-q35-7.{one}" for one in range(20)]).endswith("pc-q35-7.10, ...")
    assert describe_machines(["xenpv"]) == "none"
