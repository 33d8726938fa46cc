# SPDX-License-Identifier: GPL-3.0-or-later
"""What an agent tells for the choice of hosts, and what it refuses by it."""

from __future__ import annotations

import dataclasses
import ipaddress
from pathlib import Path

import pytest

from magnetar_agent.host import facts, inventory
from magnetar_agent.host.cpu_meter import CpuMeter
from magnetar_agent.settings import AgentSettings
from magnetar_core.errors import InvalidField, InvalidSettings
from tests.support.agent.hardware import flavor, image
from tests.unit.agent.conftest import Host


def test_metrics_have_nova_s_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat, cpuinfo = tmp_path / "stat", tmp_path / "cpuinfo"
    stat.write_text("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 1 1 1\n")
    cpuinfo.write_text("processor : 0\ncpu MHz\t\t: 2596.144\n")
    moments = iter((10.0, 11.0, 20.0, 30.0))
    monkeypatch.setattr("magnetar_agent.host.cpu_meter.time.monotonic", lambda: next(moments))
    monkeypatch.setattr("magnetar_agent.host.cpu_meter.os.sysconf", lambda _name: 100)
    meter = CpuMeter(stat, cpuinfo)
    assert meter.measure() == {"cpu.user.time": 10**9, "cpu.kernel.time": 5 * 10**8, "cpu.idle.time": 8 * 10**9,
                               "cpu.iowait.time": 5 * 10**8, "cpu.frequency": 2596.144}
    stat.write_text("cpu  100 0 50 800 50 0 0 0 0 0\n")
    assert "cpu.percent" not in meter.measure()
    stat.write_text("cpu  150 10 70 810 60 0 0 0 0 0\n")
    found = meter.measure()
    assert found["cpu.percent"] == 0.8 and found["cpu.user.percent"] == 0.6 and found["cpu.kernel.percent"] == 0.2
    assert found["cpu.idle.percent"] == found["cpu.iowait.percent"] == 0.1
    stat.unlink()
    assert meter.measure() == {}


def test_the_address_is_that_of_the_settings_or_of_the_route(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    local = host.agent.host
    found = facts.advertised_host_address(local)
    assert not found or ipaddress.ip_address(found)
    local.settings = dataclasses.replace(local.settings, address_of_host="192.0.2.5")
    assert facts.advertised_host_address(local) == "192.0.2.5"
    local.settings = dataclasses.replace(local.settings, address_of_host=None)
    monkeypatch.setattr(facts, "_AWAY", ())
    assert facts.advertised_host_address(local) == ""


@pytest.mark.parametrize(("settings", "words"), [
    ({"traits": ["SSD"]}, "traits: 'SSD' must be a standard trait"),
    ({"traits": "CUSTOM_A"}, "traits: must be a list of names"),
    ({"traits": [1]}, "traits: must be a list of names"),
    ({"address_of_host": "kvm1"}, "address_of_host: 'kvm1' does not appear to be")])
def test_settings_that_cannot_be_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidSettings, match=words):
        AgentSettings(**settings)  # type: ignore[arg-type]


def test_traits_follow_from_what_works(host: Host) -> None:
    local, there = host.agent.host, host.fake.host()
    assert "HW_CPU_X86_AVX2" in facts.traits_of(local, there, kvm=True)
    assert "HW_CPU_X86_AVX2" not in facts.traits_of(local, there, kvm=False)
    assert "COMPUTE_SHARE_LOCAL_FS" in facts.traits_of(local, there, kvm=False)
    host.fake.virtiofsd = False
    assert "COMPUTE_SHARE_LOCAL_FS" not in facts.traits_of(local, there, kvm=False)
    local.settings = dataclasses.replace(local.settings, virt_type="qemu", traits=("CUSTOM_A",))
    assert {"HW_CPU_X86_AVX2", "CUSTOM_A"} & set(facts.traits_of(local, there, kvm=True)) == {"CUSTOM_A"}


def test_images_are_told_for_what_they_take(host: Host) -> None:
    image(host)
    local = host.agent.host
    assert facts.image_cache_gb(local) == 0
    local.settings = dataclasses.replace(local.settings, reserve_disk_resource_for_image_cache=True)
    assert facts.image_cache_gb(local) == 1 == inventory.host_usage(local)["image_cache_gb"]
    host.ensure("image", "odd", None)
    assert facts.image_cache_gb(local) == 0


@pytest.mark.parametrize(("specs", "words"), [
    ({"trait:CUSTOM_GOLD": "required"}, "lacks CUSTOM_GOLD"), ({"trait:COMPUTE_NODE": "forbidden"}, "has COMPUTE_NODE"),
    ({"trait:CUSTOM_GOLD": "wanted"}, "trait:CUSTOM_GOLD=wanted: it must match"),
    ({"trait:HW_NO_SUCH": "required"}, "there is no such trait"),
    ({"resources:VCPU": "1"}, "only a cloud's scheduler acts on it")])
def test_a_host_of_its_own_refuses_a_flavor_of_other_traits(host: Host, specs: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidField, match="flavor") as refused:
        host.ensure("server", "web1", {**image(host), **flavor(host, "odd", **specs), "power": "off"})
    assert words in refused.value.message and not host.agent.host.documents.list("server")


def test_and_an_image(host: Host) -> None:
    with pytest.raises(InvalidField, match="lacks CUSTOM_GOLD"):
        host.server(**image(host, **{"trait:CUSTOM_GOLD": "required"}), power="off")


def test_it_makes_one_of_its_own_traits(host: Host) -> None:
    host.agent.host.settings = dataclasses.replace(host.agent.host.settings, traits=("CUSTOM_GOLD",))
    made = host.ensure("server", "web1", {**image(host, **{"trait:COMPUTE_NODE": "required"}), "power": "off", **flavor(
        host, "odd", **{"trait:CUSTOM_GOLD": "required", "trait:CUSTOM_SLOW": "forbidden"})})
    assert made.changed
