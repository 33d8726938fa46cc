# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of Nova's form say what custom resources and traits the host has; a file with an error counts for nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar_agent.host import inventory
from magnetar_agent.host.provider_config import read_provider_config
from magnetar_agent.settings import AgentSettings
from tests.unit.agent.conftest import Host

GOOD = """
meta: {schema_version: '1.0'}
providers:
  - identification: {name: $COMPUTE_NODE}
    inventories:
      additional:
        - CUSTOM_GOLD: {total: 100, reserved: 10, min_unit: 2, max_unit: 10, step_size: 2, allocation_ratio: 2}
        - CUSTOM_TIN: {total: 3}
    traits:
      additional: [CUSTOM_SSD, CUSTOM_FAST]
"""
OWN = """
meta: {schema_version: '1.0'}
providers:
  - identification: {name: kvm2}
    traits: {additional: [CUSTOM_OTHER]}
  - identification: {name: kvm1}
    inventories: {additional: [{CUSTOM_GOLD: {total: 1}}]}
"""
META = "meta: {schema_version: '1.0'}\n"


def test_what_files_say(tmp_path: Path) -> None:
    (tmp_path / "provider.yaml").write_text(GOOD)
    (tmp_path / "notes.txt").write_text("nothing")
    found = read_provider_config(tmp_path, "kvm1")
    assert found.resources == {
        "CUSTOM_GOLD": {"total": 100, "reserved": 10, "min_unit": 2, "max_unit": 10, "step_size": 2,
                        "allocation_ratio": 2.0},
        "CUSTOM_TIN": {"total": 3, "reserved": 0, "min_unit": 1, "max_unit": 2147483647, "step_size": 1,
                       "allocation_ratio": 1.0}}
    assert found.traits == ("CUSTOM_FAST", "CUSTOM_SSD")
    assert found.as_field == {"files": ["provider.yaml"], "problems": []}
    assert read_provider_config(tmp_path / "none", "kvm1").as_field == {"files": [], "problems": []}


def test_what_names_the_host_comes_before_what_is_said_of_each(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GOOD)
    (tmp_path / "b.yaml").write_text(OWN)
    assert read_provider_config(tmp_path, "kvm1").resources.keys() == {"CUSTOM_GOLD"} and read_provider_config(
        tmp_path, "kvm1").traits == ()
    assert read_provider_config(tmp_path, "kvm2").traits == ("CUSTOM_OTHER",)
    assert read_provider_config(tmp_path, "kvm3").resources.keys() == {"CUSTOM_GOLD", "CUSTOM_TIN"}


@pytest.mark.parametrize("empty", ["", ", traits: {}", ", traits: {additional: []}, inventories: {additional: []}"])
def test_an_entry_that_says_nothing_hides_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture, empty: str) -> None:
    (tmp_path / "a.yaml").write_text(GOOD)
    (tmp_path / "b.yaml").write_text(META + f"providers: [{{identification: {{name: kvm1}}{empty}}}]")
    found = read_provider_config(tmp_path, "kvm1")
    assert found.resources.keys() == {"CUSTOM_GOLD", "CUSTOM_TIN"} and not found.problems
    assert "b.yaml: providers[0] gives kvm1 neither resources nor traits" in caplog.text


@pytest.mark.parametrize(("text", "problem"), [
    ("meta: [", "while parsing"), ("", "the file: must be a mapping"), ("providers: []", "the file: needs meta"),
    ("meta: {}", "meta: needs schema_version"), ("meta: {schema_version: '2.0'}", "meta.schema_version: must be '1.0'"),
    (META + "extra: 1", "the file: has 'extra'"), (META + "providers: {}\nmore: 1", "the file: has 'more'"),
    (META + "providers: [{}]", "providers[0]: needs identification"),
    (META + "providers: [{identification: {}}]", "must have either uuid or name"),
    (META + "providers: [{identification: {uuid: 5d0f4a2b}}]", "hosts do not know the uuid"),
    (META + "providers: [{identification: {name: $COMPUTE_NODE}, traits: {additional: [HW_CPU_X86_VMX]}}]",
     "'HW_CPU_X86_VMX' must be CUSTOM_"),
    (META + "providers: [{identification: {name: $COMPUTE_NODE}, traits: {additional: CUSTOM_A}}]", "must be a list"),
    (META + "providers: [{identification: {name: $COMPUTE_NODE}, inventories: {additional: [{VCPU: {total: 1}}]}}]",
     "'VCPU' must be CUSTOM_"),
    (META + "providers: [{identification: {name: x}, inventories: {additional: [{CUSTOM_A: {}}]}}]", "needs total"),
    (META + "providers: [{identification: {name: x}, inventories: {additional: [{CUSTOM_A: {total: 0}}]}}]",
     "CUSTOM_A.total: must be a whole number from 1"),
    (META + "providers: [{identification: {name: x}, inventories: {additional: [{CUSTOM_A: {total: 1, "
     "reserved: 2}}]}}]", "reserved: must not be more than the total"),
    (META + "providers: [{identification: {name: x}, inventories: {additional: [{CUSTOM_A: {total: 1, "
     "allocation_ratio: .inf}}]}}]", "allocation_ratio: must be a number above 0"),
    (META + "providers: [{identification: {name: $COMPUTE_NODE}, traits: {additional: [CUSTOM_A]}}, "
     "{identification: {uuid: $COMPUTE_NODE}, traits: {additional: [CUSTOM_B]}}]",
     "is described in bad.yaml already")])
def test_a_file_with_an_error_counts_for_nothing(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    (tmp_path / "good.yaml").write_text(GOOD)
    found = read_provider_config(tmp_path, "kvm1")
    [told] = found.problems
    assert told.startswith(f"{tmp_path}/bad.yaml: ") and problem in told
    assert found.files == ("good.yaml",) and found.traits == ("CUSTOM_FAST", "CUSTOM_SSD")


def test_an_agent_tells_it(host: Host, tmp_path: Path) -> None:
    (tmp_path / "provider.yaml").write_text(GOOD)
    (tmp_path / "worse.yaml").write_text("meta: 1")
    local = host.agent.host
    local.provider_config = read_provider_config(tmp_path, local.name)
    told = inventory.host_usage(local)
    assert told["resources"]["CUSTOM_TIN"]["total"] == 3 and "CUSTOM_SSD" in told["traits"]
    assert told["provider_config"]["files"] == ["provider.yaml"]
    assert "worse.yaml: meta: must be a mapping" in told["provider_config"]["problems"][0]
    assert AgentSettings().provider_config_location == Path("/etc/magnetar/provider_config")
