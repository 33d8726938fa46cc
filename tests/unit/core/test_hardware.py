# SPDX-License-Identifier: GPL-3.0-or-later
"""Specs of flavors and properties of images: what acts, what asks for what there is anyway, and what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from magnetar_core.errors import InvalidField
from magnetar_core.hardware import AGENT, EVERYWHERE
from magnetar_core.hardware.flavor_specs import FLAVOR_SPECS
from magnetar_core.hardware.image_properties import IMAGE_PROPERTIES

CASES = yaml.safe_load((Path(__file__).parents[2] / "cases/hardware/without_effect.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_what_would_do_nothing_is_named(case):
    parts = {AGENT} if case.get("host") else EVERYWHERE
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
    assert [row.name for row in FLAVOR_SPECS.rows if not (row.acts or row.lacks or row.row)] == []
    assert [row.name for row in (*FLAVOR_SPECS.rows, *IMAGE_PROPERTIES.rows) if row.acts - EVERYWHERE] == []
