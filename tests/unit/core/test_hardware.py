# SPDX-License-Identifier: GPL-3.0-or-later
"""Specs of flavors and properties of images: what acts, what asks for what there is anyway, and what is missing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from magnetar_core.errors import InvalidField
from magnetar_core.hardware import AGENT, EVERYWHERE
from magnetar_core.hardware.flavor_specs import FLAVOR_SPECS
from magnetar_core.hardware.image_properties import IMAGE_PROPERTIES
from magnetar_core.hardware.merge import requested_hardware
from magnetar_core.hardware.rows import ROWS, Row
from magnetar_core.values import Boolean, Choices, ListOf
from tools import hardware

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


#: Of those whose values are texts, or that stand in a list.
TEXTS = {"machine": ["q35", "pc", "pc-q35-7.2"], "pci_alias": ["gpu:1", "gpu:1,nic:2"],
         "cpu_dedicated_mask": ["0-1", "0,^2,3"], "numa_cpus": ["0-1"], "cpu_realtime_mask": ["1", "^0-1"],
         "numa_mem": ["512"],
         "mem_page_size": ["small", "large", "any", "4", "2MB", "1GiB"]}

#: Of those whose values are numbers that must not be 2.
NUMBERS = {"cpu_period": "1000", "cpu_quota": "1000", "maxphysaddr_bits": "40", "vgpus": "1"}


def words(row: Row) -> list[str]:
    """Texts that the row's spec or property can have here and that ask for something: all of them that are words."""
    if isinstance(row.value, Boolean):
        found = ["true", "false"]
    elif isinstance(row.value, Choices):
        found = [*row.words, *row.value.words()] if not row.words else [*row.words]
    elif row.field in TEXTS:
        found = TEXTS[row.field]
    else:
        found = [NUMBERS.get(row.field, "2")]
    return [one for one in found if row.parse(one) != row.usual]


def needs(row: Row, text: str, image: bool = False) -> dict[str, dict[str, str]]:
    """What the row's value needs beside it, as extra specs and properties."""
    specs, properties = {}, {}
    if row.field.endswith("_max"):
        specs[f"quota:{row.field[:-4]}"] = "1"
    if row.field.startswith("vif_"):
        specs[f"quota:{row.field.rpartition('_')[0]}_average"] = "1"
    if row.field == "secure_boot":
        properties["hw_firmware_type"] = "uefi"
    if row.field == "maxphysaddr_bits":
        specs["hw:maxphysaddr_mode"] = "emulate"
    if row.field == "maxphysaddr_mode" and text == "emulate":
        specs["hw:maxphysaddr_bits"] = "40"
    if row.field in ("tpm_model", "tpm_secret_security"):
        specs["hw:tpm_version"] = "2.0"
    if row.field == "rng_period":
        specs["hw_rng:rate_bytes"] = "1"
    if row.field == "video_ram":
        specs["hw_video:ram_max_mb"] = "8"
    if row.bounds == "video_ram":
        properties["hw_video_ram"] = "2"
    properties.update({"hw_emulation_architecture": "aarch64"} if text == "smmuv3" else {})
    _needs_placing(row, image, specs, properties)
    return {"extra_specs": specs, "properties": properties}


def _needs_placing(row: Row, image: bool, specs: dict[str, str], properties: dict[str, str]) -> None:
    if row.field == "cpu_dedicated_mask":
        specs["hw:cpu_policy"] = "mixed"
    if row.field in ("cpu_thread_policy", "emulator_threads"):
        specs["hw:cpu_policy"] = "dedicated"
    if row.field == "cpu_realtime":
        specs["hw:cpu_realtime_mask"] = "1"
    if row.field == "cpu_realtime_mask":
        specs.update({"hw:cpu_realtime": "true", "hw:emulator_threads_policy": "share"})
    if row.field == "pci_numa_affinity":
        specs["pci_passthrough:alias"] = "gpu:1"
    if row.field in ("numa_cpus", "numa_mem"):
        kind = properties if image else specs
        prefix = "hw_" if image else "hw:"
        kind.update({f"{prefix}numa_nodes": "2", f"{prefix}numa_mem.1": "512", f"{prefix}numa_cpus.1": "2-3",
                     f"{prefix}numa_mem.0": "512", f"{prefix}numa_cpus.0": "0-1"})
    if row.field == "mem_page_size" and image:
        specs["hw:mem_page_size"] = "large"
    if row.field.startswith("mem_encryption"):
        properties["hw_firmware_type"] = "uefi"
        specs.update({"hw:mem_encryption": "true"} if row.field != "mem_encryption" else {})
    if row.field == "locked_memory":
        specs["hw:mem_page_size"] = "small"


def test_traits_of_the_cpu_that_flavor_and_image_require_reach_the_server():
    flavor = {"vcpus": 1, "extra_specs": {"trait:HW_CPU_X86_VMX": "required", "trait:HW_CPU_X86_AVX": "forbidden",
                                          "trait:CUSTOM_A": "required"}}
    image = {"properties": {"trait:HW_CPU_X86_AVX2": "required", "trait:HW_CPU_X86_VMX": "required"}}
    assert requested_hardware(flavor, image) == {"hardware": {"cpu_traits": ["HW_CPU_X86_AVX2", "HW_CPU_X86_VMX"]}}
    assert requested_hardware({"vcpus": 1}, image) == requested_hardware(flavor, image)
    assert requested_hardware({**flavor, "extra_specs": {"trait:HW_CPU_X86_AVX": "forbidden"}}, {}) == {}


@pytest.mark.parametrize("row", [row for row in ROWS if row.spec or row.image], ids=lambda row: row.spec or row.image)
def test_what_a_row_says_reaches_the_server(row):
    """No spec or property of a row is set and ignored: each changes what the server's host is asked for."""
    for text in words(row):
        spec, image = (one.replace(".N", ".0") for one in (row.spec, row.image))
        for kind, name in (("extra_specs", spec), ("properties", image)):
            if not name:
                continue
            beside, ide = needs(row, text, kind == "properties"), {"hw_machine_type": "pc"} if text == "ide" else {}
            if row.field in ("cpu_dedicated_mask", "numa_cpus", "numa_mem"):  # it is needed, not something more
                beside[kind].pop(name, None)
            before = {"vcpus": 4, "ram": 1024, **beside, "properties": {**beside["properties"], **ide}}
            before[kind] = {key: value for key, value in before[kind].items() if key != name}
            after = {**before, kind: {**before[kind], name: text}}
            try:
                there = requested_hardware(before, before)
            except InvalidField:  # without the bound the image may not ask for so much
                there = None
            if row.field == "cpu_policy" and text == "mixed":
                after["extra_specs"] = {**after["extra_specs"], "hw:cpu_dedicated_mask": "0"}
            if row.field == "mem_page_size" and text == "large" and kind == "properties":
                continue  # the flavor says so
            if row.field == "tpm_secret_security" and text == "user":
                there = None  # a cloud takes it where nothing is said
            found = requested_hardware(after, after)
            assert found != there, (name, text)
            if row.field and row.field != "machine":
                value = found["hardware"][row.field]
                assert (value[0] if isinstance(row.value, ListOf) else value) == row.parse(text)
            table = FLAVOR_SPECS if kind == "extra_specs" else IMAGE_PROPERTIES
            assert list(table.without_effect({name: text})) == []


def test_the_page_is_as_printed():
    page = Path(__file__).parents[3] / "docs/reference/hardware.md"
    assert page.read_text(encoding="utf-8") == hardware.hardware_page(), "run: python -m tools.hardware >" + str(page)


def test_the_name_that_is_meant_is_told():
    with pytest.raises(InvalidField, match="Did you mean 'hw:watchdog_action'"):
        FLAVOR_SPECS.validate("hw:watchdog", "reset")


def texts(pattern: str) -> list[str]:
    """Texts that match a regular expression: one for each alternative, with the first of each choice of letters."""
    def of(tree: Any) -> list[str]:
        found = [""]
        for kind, value in tree:
            found = [start + end for start in found for end in part(str(kind), value)]
        return found

    def part(kind: str, value: Any) -> list[str]:
        if kind == "LITERAL":
            return [chr(value)]
        if kind == "BRANCH":
            return [one for branch in value[1] for one in of(branch)]
        if kind == "SUBPATTERN":
            return of(value[3])
        if kind in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, tree = value
            return [*of(list(tree) * least), *(of(tree) if (least, most) == (0, 1) else ())]
        if kind == "IN":
            first, letter = str(value[0][0]), value[0][1]
            return [chr(letter) if first == "LITERAL" else chr(letter[0]) if first == "RANGE" else "x"]
        return ["x"] if kind == "ANY" else [""]
    return of(re._parser.parse(pattern))  # type: ignore[attr-defined]


@pytest.mark.parametrize("table", [FLAVOR_SPECS, IMAGE_PROPERTIES], ids=["flavor", "image"])
def test_no_known_name_is_ignored(table):
    """Each name that a table knows reaches a server (it has a row of hardware, which the test above is about), is acted
    on by the API, the scheduler or the agent, asks for what there is anyway, or is told by name. Ignored names are told
    too."""
    seen = 0
    for spec in table.rows:
        for name in texts(spec.name):
            row = table.find(name)
            assert row is not None, name
            if row.row is not None or row.acts:
                continue
            for value in {text for text in (*texts(row.value), "other") if re.fullmatch(row.value, text)}:
                found = [*table.without_effect({name: value}), *table.ignored({name: value})]
                assert found or (row.usual and re.fullmatch(row.usual, value)), (name, value)
                seen += 1
    assert seen > 20
