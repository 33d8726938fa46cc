# SPDX-License-Identifier: GPL-3.0-or-later
"""Virtual GPUs: who gets a part of which device, that it is there while the guest runs, and gone with the server. The
host's sysfs is made up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from magnetar_agent.fake import FakeHypervisor
from magnetar_agent.hardware.mdev import Mdev, MdevParent, mdev_parents
from magnetar_agent.host import inventory
from magnetar_agent.settings import AgentSettings
from magnetar_agent.virt.host.mdev import mdev_of, node_name
from magnetar_core.errors import Conflict, HypervisorError, InvalidField, InvalidSettings, MagnetarError
from magnetar_core.hardware.mdev_types import patterns_overlap
from magnetar_core.hardware.numa import HostCell
from tests.support.agent.mdevs import A, B, gpu
from tests.support.agent.pair import WAY, Pair
from tests.unit.agent.conftest import SMALL, Host, made_at_once

ONE = {"flavor": SMALL, "hardware": {"vgpus": 1}}


def equipped(folder: Path, **more: Any) -> Host:
    """A host with two devices: two parts of one, and one of the other."""
    gpu(folder / "sys", A, 0, small=2, large=1)
    gpu(folder / "sys", B, 1, small=1)
    return Host(folder, sysfs=folder / "sys", enabled_mdev_types=[{"type": "small"}], **more)


@pytest.fixture
def big(tmp_path: Path) -> Iterator[Host]:
    host = equipped(tmp_path)
    host.start()
    yield host
    host.agent.close()


def told(host: Host) -> dict[str, int]:
    """How many the host says are free, by device."""
    return {one["parent"]: one["free"] for one in inventory.host_usage(host.agent.host)["mdevs"]}


def part(host: Host, name: str = "web1") -> str:
    """The device that a server has a part of, which is there and in its domain."""
    found = host.show(name)
    [source] = ET.fromstring(host.fake.xml(found["id"])).findall("devices/hostdev[@type='mdev']/source/address")
    assert source.get("uuid") == found["mdev"]["uuid"]
    assert Mdev(**found["mdev"]) in host.fake.mdevs()
    return str(found["mdev"]["parent"])


def test_the_devices_that_settings_divide(tmp_path: Path) -> None:
    sysfs = tmp_path / "sys"
    gpu(sysfs, B, 1, small=1)
    other = gpu(sysfs, A, 0, small=2, large=1)
    (other / "mdev_supported_types/large/devices/3b1e2f60-9d0e-4c6c-8a1f-2b3d8c7d3c0e").mkdir()
    gpu(sysfs, "mtty", small=1)
    types = AgentSettings(enabled_mdev_types=[{"type": "large", "address": "0000:81:*"}, {"type": "small"}])
    assert mdev_parents(sysfs, types.enabled_mdev_types) == [
        MdevParent(A, "large", 0, 2, frozenset(["3b1e2f60-9d0e-4c6c-8a1f-2b3d8c7d3c0e"])),
        MdevParent(B, "small", 1, 1, frozenset())]
    assert mdev_parents(tmp_path / "none", types.enabled_mdev_types) == [] == mdev_parents(sysfs, ())


def test_a_server_has_a_part_for_itself(big: Host) -> None:
    big.ensure("server", "web1", ONE)
    assert part(big) == A and told(big) == {A: 1, B: 1}
    assert big.show()["hardware"] == {"vgpus": 1}
    assert not big.ensure("server", "web1", {"hardware": {"vgpus": 1}}).changed
    big.ensure("server", "web1", None)
    assert big.fake.mdevs() == [] and told(big) == {A: 2, B: 1}


def test_no_more_than_there_are(big: Host) -> None:
    assert sum(made_at_once(big, ONE, 6)) == 3
    assert told(big) == {A: 0, B: 0} and len(big.fake.mdevs()) == 3
    with pytest.raises(Conflict, match="has no virtual GPU left"):
        big.ensure("server", "more", ONE)


def test_a_host_without_refuses_by_name(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.start()
    try:
        with pytest.raises(InvalidField, match=r"hardware.vgpus: .*0 of 0 are free .*enabled_mdev_types"):
            host.ensure("server", "web1", ONE)
    finally:
        host.agent.close()


def test_a_flavor_asks_for_one(big: Host) -> None:
    big.ensure("flavor", "gpu", {**SMALL, "extra_specs": {"resources:VGPU": "1"}})
    big.ensure("server", "web1", {"flavor": "gpu"})
    assert part(big) == A
    big.ensure("flavor", "gpus", {**SMALL, "extra_specs": {"resources:VGPU": "2"}})
    with pytest.raises(InvalidField, match="a server has one virtual GPU"):
        big.ensure("server", "web2", {"flavor": "gpus"})


def test_it_is_made_again_after_a_boot_of_the_host(big: Host) -> None:
    big.ensure("server", "web1", ONE)
    had = big.fake.mdevs()
    big.fake.host_reboots()
    assert big.fake.mdevs() == []
    big.ensure("server", "web1", {"power": "off"})
    big.ensure("server", "web1", {"power": "running"})
    assert big.fake.mdevs() == had and part(big) == A


def test_another_device_when_its_own_is_gone(big: Host) -> None:
    big.ensure("server", "web1", {**ONE, "power": "off"})
    (big.root / "sys/class/mdev_bus" / A).rename(big.root / "pulled")
    big.ensure("server", "web1", {"power": "running"})
    assert part(big) == B and len(big.fake.mdevs()) == 1


def test_it_is_kept_until_the_guest_is_off(big: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    big.ensure("server", "web1", ONE)
    during: list[tuple[dict[str, int], int]] = []
    shutdown = FakeHypervisor.shutdown

    def stop(fake: FakeHypervisor, uuid: str) -> None:
        during.append((told(big), len(fake.mdevs())))
        shutdown(fake, uuid)
    monkeypatch.setattr(FakeHypervisor, "shutdown", stop)
    big.ensure("server", "web1", {"hardware": {}}, allow_reboot=True)
    assert during == [({A: 1, B: 1}, 1)] and told(big) == {A: 2, B: 1} and big.fake.mdevs() == []
    assert big.show()["mdev"] is None


def test_one_that_cannot_be_removed_is_not_forgotten(big: Host) -> None:
    big.ensure("server", "web1", ONE)
    big.fake.fail_next("remove_mdev", HypervisorError("mdevctl is not there"))
    with pytest.raises(HypervisorError, match="mdevctl"):
        big.ensure("server", "web1", {"hardware": {}}, allow_reboot=True)
    assert told(big) == {A: 1, B: 1} and len(big.fake.mdevs()) == 1
    big.ensure("server", "web1", {"hardware": {}, "power": "running"}, allow_reboot=True)
    assert told(big) == {A: 2, B: 1} and big.fake.mdevs() == []


def test_a_host_that_cannot_make_it_keeps_the_server_off(big: Host) -> None:
    big.ensure("server", "web1", {**ONE, "power": "off"})
    big.fake.host_reboots()
    big.fake.fail_next("make_mdev", HypervisorError("mdevctl is not there"))
    with pytest.raises(HypervisorError, match="mdevctl"):
        big.ensure("server", "web1", {"power": "running"})
    assert big.show()["power_state"] == "off"
    big.ensure("server", "web1", {"power": "running"})
    assert part(big) == A


def test_it_is_near_the_guest(big: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = (HostCell(0, frozenset(), frozenset(range(4)), 1), HostCell(1, frozenset(), frozenset(range(4, 8)), 3072))
    monkeypatch.setattr(FakeHypervisor, "cells", cells)
    want = {"flavor": SMALL, "hardware": {"vgpus": 1, "numa_nodes": 1}}
    for name in ("web1", "web2"):
        big.ensure("server", name, want)
    assert (part(big), part(big, "web2")) == (B, A)


def test_it_cannot_be_suspended(big: Host) -> None:
    big.ensure("server", "web1", ONE)
    with pytest.raises(InvalidField, match="power: cannot be suspended while the server has a virtual GPU"):
        big.ensure("server", "web1", {"power": "suspended"})


def test_a_move_gives_it_a_part_of_the_other_host(pair: Pair, tmp_path: Path) -> None:
    for kvm, address in ((pair.one, A), (pair.two, B)):
        gpu(tmp_path / kvm.name, address, small=1)
        for name, value in (("sysfs", tmp_path / kvm.name), ("enabled_mdev_types", ({"type": "small"},))):
            object.__setattr__(kvm.agent.host.settings, name, value)
    id = pair.make(**ONE)
    with pytest.raises(MagnetarError, match="has a virtual GPU .* cannot move while the guest runs"):
        pair.migrate(type="live")
    assert pair.migrate(type="cold") == WAY
    assert [one.parent for one in pair.two.fake.mdevs()] == [B] and pair.one.fake.mdevs() == []
    pair.check(id, pair.two)


@pytest.mark.parametrize(("types", "why"), [
    ([{"address": A}], r"enabled_mdev_types\[0\]: needs type"), (["small"], "must have some of type, address"),
    ([{"type": "a/b"}], "type: must be the name of a folder"),
    ([{"type": "small"}, {"type": "large"}], "small has no address, .* nothing is left for large"),
    ([{"type": "small", "address": "*"}, {"type": "large", "address": A}], "small has no address"),
    ([{"type": "small", "address": A}, {"type": "large", "address": A}], "both small and large are meant for"),
    ([{"type": "small", "address": "0000:81:*"}, {"type": "large", "address": A}, {"type": "tiny"}],
     r"both small and large .* \(addresses 0000:81:\* and"),
    ([{"type": "small", "address": "*:00.0"}, {"type": "large", "address": "0000:8?:*"}], "both small and large")],
    ids=str)
def test_settings_that_make_no_sense(types: list[Any], why: str) -> None:
    with pytest.raises(InvalidSettings, match=why):
        AgentSettings(enabled_mdev_types=types)


def test_what_libvirt_says_of_one() -> None:
    text = """<device><name>mdev_3b1e2f60_9d0e_4c6c_8a1f_2b3d8c7d3c0e_0000_81_00_0</name>
        <parent>pci_0000_81_00_0</parent><capability type="mdev"><type id="small"/>%s</capability></device>"""
    uuid = "3b1e2f60-9d0e-4c6c-8a1f-2b3d8c7d3c0e"
    for more in (f"<uuid>{uuid}</uuid>", ""):
        assert mdev_of(text % more) == Mdev(uuid, A, "small")
    assert mdev_of("<device><name>mdev_x</name><parent>ap_matrix</parent><capability><type id='a'/></capability>"
                   "</device>") is None
    assert node_name(A) == "pci_0000_81_00_0"


def test_a_trait_of_its_device(tmp_path: Path) -> None:
    """Row A7.7: of devices with several types a flavor asks for one by its trait."""
    gpu(tmp_path / "sys", A, 0, small=2)
    gpu(tmp_path / "sys", B, 1, small=1, large=1)
    host = Host(tmp_path, sysfs=tmp_path / "sys", enabled_mdev_types=[
        {"type": "large", "address": B, "traits": "nvidia-11, CUSTOM_FAST, HW_GPU_API_DX12"}, {"type": "small"}])
    host.start()
    try:
        shown = {one["parent"]: one.get("traits") for one in inventory.host_usage(host.agent.host)["mdevs"]}
        assert shown == {A: None, B: ["CUSTOM_FAST", "CUSTOM_NVIDIA_11", "HW_GPU_API_DX12"]}
        provided = {one["name"]: one["traits"] for one in inventory.host_usage(host.agent.host)["providers"]}
        assert provided == {"NUMA0": ["HW_NUMA_ROOT"], "pci_0000_81_00_0": [], "pci_0000_c1_00_0": shown[B]}
        host.ensure("flavor", "gpu", {**SMALL, "extra_specs": {
            "resources1:VGPU": "1", "trait1:CUSTOM_NVIDIA_11": "required"}})
        host.ensure("server", "web1", {"flavor": "gpu"})
        assert part(host) == B and host.show()["hardware"] == {"vgpus": 1, "vgpu_trait": "CUSTOM_NVIDIA_11"}
        with pytest.raises(Conflict, match="no virtual GPU of a device with trait CUSTOM_NVIDIA_11 left"):
            host.ensure("server", "web2", {"flavor": "gpu"})
        host.ensure("flavor", "dx", {**SMALL, "extra_specs": {
            "resources1:VGPU": "1", "trait1:HW_GPU_API_DX12": "required"}})
        with pytest.raises(Conflict, match="no virtual GPU of a device with trait HW_GPU_API_DX12 left"):
            host.ensure("server", "web2", {"flavor": "dx"})
        host.ensure("server", "web2", ONE)
        assert part(host, "web2") == A
        with pytest.raises(InvalidField, match="a free virtual GPU of a device with trait CUSTOM_NO: 0 of 0"):
            host.ensure("server", "web3", {"flavor": SMALL, "hardware": {"vgpus": 1, "vgpu_trait": "CUSTOM_NO"}})
        with pytest.raises(InvalidField, match="hardware.vgpu_trait: needs vgpus"):
            host.ensure("server", "web3", {"flavor": SMALL, "hardware": {"vgpu_trait": "CUSTOM_NO"}})
        host.ensure("server", "web1", {"flavor": SMALL, "hardware": {"vgpus": 1}}, allow_reboot=True)
        host.ensure("server", "web1", {"flavor": SMALL, "hardware": {"vgpus": 1, "vgpu_trait": "CUSTOM_FAST"}},
                    allow_reboot=True)
        assert part(host) == B and len(host.fake.mdevs()) == 2
        host.ensure("flavor", "odd", {**SMALL, "extra_specs": {"resources1:VGPU": "1", "resources2:VGPU": "1",
                                                               "group_policy": "none"}})
        with pytest.raises(InvalidField, match="asks for 2 in all, and a server has one virtual GPU"):
            host.ensure("server", "web3", {"flavor": "odd"})
    finally:
        host.agent.close()


@pytest.mark.parametrize(("first", "second", "both"), [
    ("0000:81:*", "0000:82:*", False), ("0000:81:00.?", "0000:81:00.*", True), ("*1:00.0", "0000:8?:00.0", True),
    ("0000:81:00.0", "0000:81:00.1", False), ("*", "?", True), ("*.1", "*.0", False), ("0000:*:0?.1", "*:01.?", True),
    ("", "*", True), ("?", "", False)])
def test_patterns_that_match_one_address(first: str, second: str, both: bool) -> None:
    assert patterns_overlap(first, second) is patterns_overlap(second, first) is both
