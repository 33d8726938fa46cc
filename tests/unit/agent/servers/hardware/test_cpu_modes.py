# SPDX-License-Identifier: GPL-3.0-or-later
"""CPU modes of guests by the agent's settings: refused when they cannot be, in the domain, in the host's traits."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml

from magnetar_agent.fake import FakeHypervisor
from magnetar_agent.host import facts
from magnetar_agent.servers import spec
from magnetar_agent.servers.hardware import cpu_modes
from magnetar_agent.settings import AgentSettings
from magnetar_agent.virt.domain import cpu_models
from magnetar_core.errors import Conflict, HypervisorDown, InvalidField, InvalidSettings
from tests.support.agent.hardware import flavor, image
from tests.support.agent.pair import Pair
from tests.support.agent.server_hardware import canonical
from tests.unit.agent.conftest import SMALL, Host

CASES = yaml.safe_load((Path(__file__).parents[4] / "cases/hardware/cpu_modes.yml").read_text(encoding="utf-8"))
LIST = {"cpu_mode": "custom", "cpu_models": ["Nehalem", "Haswell"]}


def given(**more: Any) -> AgentSettings:
    return AgentSettings(**more)


@pytest.mark.parametrize("case", CASES, ids=lambda one: one["name"])
def test_what_a_mode_is_in_the_domain(host: Host, case: dict[str, Any]) -> None:
    kvm, hardware = case.get("kvm", False), case.get("hardware", {})
    host.fake._kvm = kvm
    host.server(flavor={**SMALL, "vcpus": 2}, power="off")
    document = host.agent.host.documents.find("server", "web1")
    assert document
    document.want |= {"hardware": hardware, "virt_type": "kvm" if kvm else "qemu"}
    said = {"cpu_mode": case.get("mode"), "cpu_models": tuple(case.get("models", ())),
            "cpu_model_extra_flags": tuple(case.get("flags", ()))}
    host.agent.host.settings = replace(host.agent.host.settings, **said)
    made = spec.domain_spec(host.agent.host, document)
    host.fake.define(made)
    found = ET.fromstring(host.fake.xml(document.id)).find("cpu")
    if "xml" in case:
        assert found is not None and canonical(ET.tostring(found, "unicode")) == canonical(case["xml"])
    else:
        assert found is None
    seen = host.fake.domain(document.id)
    assert seen is not None and seen.cpu == case["note"] and not cpu_modes.is_other(host.agent.host, seen)


@pytest.mark.parametrize(("settings", "words"), [
    ({"cpu_mode": "best"}, "cpu_mode: must be one of host-model, host-passthrough, custom, maximum, none"),
    ({"cpu_mode": "custom"}, "cpu_models: must be set where cpu_mode is custom"),
    ({"cpu_models": ["Nehalem"]}, "cpu_models: must be set where cpu_mode is custom, and only there"),
    ({"cpu_mode": "custom", "cpu_models": ["Nehalem", "Nehalem"]}, "cpu_models: 'Nehalem' is named twice"),
    ({"cpu_mode": "custom", "cpu_models": ["a b"]}, "cpu_models: 'a b' is no name of a CPU model"),
    ({"cpu_mode": "custom", "cpu_models": "Nehalem"}, "cpu_models: must be a list of names"),
    ({"cpu_model_extra_flags": ["vmx"]}, "cpu_model_extra_flags: needs a cpu_mode other than none"),
    ({"cpu_mode": "none", "cpu_model_extra_flags": ["vmx"]}, "needs a cpu_mode other than none"),
    ({"cpu_mode": "host-model", "cpu_model_extra_flags": ["vmx", "-VMX"]}, "'vmx' is named twice"),
    ({"cpu_mode": "host-model", "cpu_model_extra_flags": ["!vmx"]}, "must be the name of a feature, with"),
    ({"cpu_mode": "host-passthrough", "virt_type": "qemu"}, "host-passthrough is KVM's, and virt_type")], ids=str)
def test_settings_that_do_not_go_together(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        given(**settings)
    assert words in refused.value.message


@pytest.mark.parametrize(("settings", "words"), [
    ({"cpu_mode": "host-passthrough"}, "cpu_mode: guests of type qemu cannot have host-passthrough on this host; they "
     "can have custom, host-model, maximum or none"),
    ({"cpu_mode": "custom", "cpu_models": ["Nehalem", "Nehalm"]}, "cpu_models: libvirt knows no CPU model Nehalm for "
     "guests of type qemu. This host can give Haswell, Nehalem, qemu64."),
    ({"cpu_mode": "custom", "cpu_models": ["Icelake-Server"]}, "cpu_models: this host can give guests of type qemu "
     "none of Icelake-Server. It can give Haswell, Nehalem, qemu64."),
    ({**LIST, "cpu_model_extra_flags": ["+avx1024"]}, "cpu_model_extra_flags: .*unknown CPU feature: avx1024"),
    ({"cpu_mode": "host-model", "cpu_model_extra_flags": ["-avx1024"]}, "unknown CPU feature: avx1024")], ids=str)
def test_what_a_host_cannot_give_does_not_start(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSettings, match=words):
        cpu_modes.check_cpu_settings(given(**settings), FakeHypervisor())


def test_a_model_that_this_host_cannot_give_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        cpu_modes.check_cpu_settings(given(cpu_mode="custom", cpu_models=["Nehalem", "Icelake-Server"]),
                                     FakeHypervisor())
    assert "cannot give Icelake-Server, and passes over them" in caplog.text
    for fine in ({}, {"cpu_mode": "none"}, {"cpu_mode": "maximum"}, LIST):
        cpu_modes.check_cpu_settings(given(**fine), FakeHypervisor())


def test_without_libvirt_nothing_is_checked(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeHypervisor()
    fake.fail_next("cpu_choices", HypervisorDown("libvirt does not answer."))
    cpu_modes.check_cpu_settings(given(cpu_mode="custom", cpu_models=["Nehalm"]), fake)
    assert "cpu_mode custom is not checked: libvirt does not answer." in caplog.text


@pytest.mark.parametrize(("kvm", "settings", "has", "has_not"), [
    (True, {}, "AVX2 SSE2", "VMX"),
    (True, {"cpu_mode": "host-model", "cpu_model_extra_flags": ("+vmx", "-avx2")}, "VMX SSE2", "AVX2"),
    (True, {"cpu_mode": "host-passthrough"}, "AVX2", "VMX"),
    (True, {"cpu_mode": "none"}, "SSE2 MMX", "AVX2"),
    (False, {"cpu_mode": "host-passthrough"}, "SSE2 MMX", "AVX2"),
    (False, {"cpu_mode": "maximum"}, "SSE2 SSE3", "MMX AVX2"),
    (True, {"cpu_mode": "custom", "cpu_models": ("Nehalem",)}, "SSSE3 VMX", "AVX2"),
    (True, {"cpu_mode": "custom", "cpu_models": ("qemu64", "Haswell"), "cpu_model_extra_flags": ("-vmx",)},
     "AVX2 SSE2", "VMX"),
    (False, {}, "SSE2 MMX", "AVX2")], ids=str)
def test_traits_of_the_host_are_those_of_its_guests_cpu(host: Host, kvm: bool, settings: dict[str, Any],
                                                       has: str, has_not: str) -> None:
    local = host.agent.host
    local.settings = replace(local.settings, **settings)
    found = {one.removeprefix("HW_CPU_X86_") for one in facts.traits_of(local, host.fake.host(), kvm)}
    assert set(has.split()) <= found and not set(has_not.split()) & found


def test_a_guest_keeps_its_cpu_until_it_starts_again(host: Host) -> None:
    host.server()
    id = host.show()["id"]
    runs = host.fake.running(id)
    host.settings |= LIST
    host.restart()
    seen = host.fake.domain(id)
    assert seen is not None and seen.cpu == "custom Nehalem"
    assert runs is not None and runs.cpu == "" and host.show()["power_state"] == "running"
    assert not host.server().changed


def test_flavor_and_image_choose_the_model(host: Host) -> None:
    host.settings |= LIST
    host.restart()
    want = {**image(host, **{"trait:HW_CPU_X86_AVX2": "required"}),
            **flavor(host, "nested", trait__HW_CPU_X86_VMX="required", trait__HW_CPU_X86_AVX512F="forbidden")}
    made = host.ensure("server", "web1", {**want, "power": "off"}).resource
    assert made and made["hardware"] == {"cpu_traits": ["HW_CPU_X86_AVX2", "HW_CPU_X86_VMX"]}
    seen = host.fake.domain(made["id"])
    assert seen is not None and seen.cpu == "custom Haswell"
    with pytest.raises(InvalidField, match=r"hardware.cpu_traits: .*whose guests' CPU lacks HW_CPU_X86_AVX512F"):
        host.server("web2", hardware={"cpu_traits": ["HW_CPU_X86_AVX512F"]})


def test_no_model_has_all_of_it(host: Host) -> None:
    host.settings |= {**LIST, "cpu_models": ["Nehalem"]}
    host.restart()
    local = host.agent.host
    with pytest.raises(Conflict, match="none of the CPU models Nehalem of host .* has HW_CPU_X86_AVX2. Add one"):
        cpu_modes.guest_cpu_mode(local, {"cpu_traits": ["HW_CPU_X86_AVX2"]}, "qemu")
    host.fake.cpu_models = {"qemu64": frozenset(), "Nehalem": None}
    with pytest.raises(Conflict, match="can give guests of type qemu none of the CPU models Nehalem .* give qemu64"):
        cpu_modes.guest_cpu_mode(local, {}, "qemu")


def test_a_host_without_such_a_model_takes_no_server_that_needs_it(pair: Pair) -> None:
    pair.one.agent.host.settings = replace(pair.one.agent.host.settings, cpu_mode="custom", cpu_models=("Haswell",))
    pair.two.agent.host.settings = replace(pair.two.agent.host.settings, cpu_mode="custom", cpu_models=("Nehalem",))
    pair.make(hardware={"cpu_traits": ["HW_CPU_X86_AVX2"]}, power="off")
    with pytest.raises(InvalidField, match="hardware.cpu_traits: .*host kvm2, whose guests' CPU lacks HW_CPU_X86_AVX2"):
        pair.migrate(type="cold")


@pytest.mark.parametrize("type", ["cold", "live"])
def test_a_host_whose_guests_have_it_not_takes_no_server_that_needs_it(pair: Pair, type: str) -> None:
    pair.one.agent.host.settings = replace(pair.one.agent.host.settings, cpu_mode="custom", cpu_models=("Haswell",))
    pair.make(hardware={"cpu_traits": ["HW_CPU_X86_AVX2"]}, **({"power": "off"} if type == "cold" else {}))
    with pytest.raises(InvalidField, match="hardware.cpu_traits: .*host kvm2, whose guests' CPU lacks HW_CPU_X86_AVX2"):
        pair.migrate(type=type)


def test_a_guest_that_is_emulated_has_not_the_hosts_cpu(host: Host) -> None:
    host.fake._kvm = True
    wanted = {"hardware": {"cpu_traits": ["HW_CPU_X86_AVX2"]}, "power": "off"}
    host.server("kvm", virt_type="kvm", **wanted)
    with pytest.raises(InvalidField, match="hardware.cpu_traits: .*guests' CPU lacks HW_CPU_X86_AVX2"):
        host.server("qemu", virt_type="qemu", **wanted)


@pytest.mark.parametrize(("type", "cpu", "told"), [
    ("qemu", '<cpu mode="maximum"/>', None),
    ("kvm", '<cpu mode="custom" match="exact"><model>Nehalem</model></cpu>', "Nehalem"),
    ("kvm", '<cpu mode="host-passthrough" check="none" migratable="on"/>', "Haswell +avx2 +vmx"),
    ("kvm", '<cpu mode="host-passthrough"><feature policy="disable" name="vmx"/></cpu>', "Haswell +avx2 -vmx"),
    ("kvm", '<cpu mode="maximum"><feature policy="require" name="x2apic"/></cpu>', "Haswell +avx2 +vmx +x2apic")])
def test_a_target_is_told_the_cpu_that_a_guest_sees(type: str, cpu: str, told: str | None) -> None:
    """libvirt compares a host's CPU as it is with nothing, and would say that it fits everywhere."""
    known = SimpleNamespace(getDomainCapabilities=lambda *_which: (
        '<domainCapabilities><cpu><mode name="host-model" supported="yes"><model fallback="forbid">Haswell</model>'
        '<feature policy="require" name="avx2"/><feature policy="require" name="vmx"/></mode></cpu>'
        '</domainCapabilities>'))
    found = cpu_models.migratable_cpu(known, ET.fromstring(f'<domain type="{type}">{cpu}</domain>'))
    if told is None:
        assert found is None
        return
    whole = ET.fromstring(found or "")
    assert whole.get("mode") == "custom" and told.split() == [whole.findtext("model"), *(
        ("-" if one.get("policy") == "disable" else "+") + one.get("name", "") for one in whole.iterfind("feature"))]


def test_a_running_guest_keeps_its_cpu_where_it_goes(pair: Pair) -> None:
    """What it has from its next start on is the target's."""
    pair.one.agent.host.settings = replace(pair.one.agent.host.settings, cpu_mode="custom", cpu_models=("Nehalem",))
    pair.two.agent.host.settings = replace(pair.two.agent.host.settings, cpu_mode="custom", cpu_models=("Haswell",))
    id = pair.make()
    pair.migrate()
    runs, later = pair.two.fake.running(id), pair.two.fake.domain(id)
    assert runs is not None and later is not None and (runs.cpu, later.cpu) == ("custom Nehalem", "custom Haswell")
