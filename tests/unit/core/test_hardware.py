# SPDX-License-Identifier: GPL-3.0-or-later
"""Specs of flavors and properties of images: what acts, what asks for what there is anyway, and what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from magnetar_core.errors import InvalidField
from magnetar_core.hardware import EVERYWHERE, HOST
from magnetar_core.hardware.flavor_specs import FLAVOR_SPECS
from magnetar_core.hardware.image_properties import IMAGE_PROPERTIES
from magnetar_core.hardware.server import elements, hardware

CASES = yaml.safe_load((Path(__file__).parents[2] / "cases/hardware/without_effect.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_what_would_do_nothing_is_named(case):
    parts = HOST if case.get("host") else EVERYWHERE
    table = FLAVOR_SPECS if "flavor" in case else IMAGE_PROPERTIES
    found = list(table.without_effect(case.get("flavor", case.get("image")), parts))
    assert len(found) == len(case["texts"]), found
    assert all(text in one for text, one in zip(case["texts"], found, strict=True)), found


@pytest.mark.parametrize(("name", "value"), [
    ("hw:numa_nodes", "2"), ("ours:colour", "red"), ("trait:CUSTOM_A", "required"), ("hw:mem_page_size", "2MB"),
    ("quota:cpu_shares", "512")])
def test_good_specs(name, value):
    FLAVOR_SPECS.validate(name, value)


@pytest.mark.parametrize(("name", "value"), [("hw:numa_nodes", "some"), ("hw:colour", "red"), ("group_policy", "all")])
def test_bad_specs_are_named(name, value):
    with pytest.raises(InvalidField, match=rf"extra_specs\.{name}: Validation failed"):
        FLAVOR_SPECS.validate(name, value)


def test_a_row_says_what_acts_or_what_is_missing():
    assert [row.name for row in FLAVOR_SPECS.rows if not (row.acts or row.lacks)] == []
    assert [row.name for row in (*FLAVOR_SPECS.rows, *IMAGE_PROPERTIES.rows) if row.acts - EVERYWHERE] == []


@pytest.mark.parametrize(("specs", "properties", "found"), [
    ({}, {}, {}), ({"hw:boot_menu": "false"}, {}, {}), ({"hw:boot_menu": "True"}, {}, {"hw:boot_menu": "True"}),
    ({"hw:numa_nodes": "2", "ours:a": "b"}, {"os_distro": "debian"}, {}),
    ({}, {"hw_boot_menu": "true"}, {"hw:boot_menu": "true"}),
    ({"hw:boot_menu": "true"}, {"hw_boot_menu": "true"}, {"hw:boot_menu": "true"})])
def test_what_reaches_the_host(specs, properties, found):
    assert hardware(specs, properties) == found


def test_flavor_and_image_must_agree():
    with pytest.raises(InvalidField, match="hw_boot_menu says true, and the flavor.s extra spec .* says false"):
        hardware({"hw:boot_menu": "false"}, {"hw_boot_menu": "true"})


def test_elements_of_the_domain():
    assert list(elements({"hw:boot_menu": "yes"})) == [("os/bootmenu", {"enable": "yes"})]
    assert list(elements({"ours:a": "b"})) == []


def test_a_row_with_elements_acts_on_the_host():
    assert [row.name for row in FLAVOR_SPECS.rows if bool(row.elements) != bool(row.acts & HOST)] == []
    assert [row.name for row in IMAGE_PROPERTIES.rows if row.like and FLAVOR_SPECS.find(row.like) is None] == []
