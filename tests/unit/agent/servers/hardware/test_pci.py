# SPDX-License-Identifier: GPL-3.0-or-later
"""PCI devices of a host: who gets which, when they are free again, and what is refused. Its sysfs is made up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from magnetar_agent.api import serve
from magnetar_agent.fake import FakeHypervisor
from magnetar_agent.hardware import pci as hardware
from magnetar_agent.hardware.pci import PciDevice, allowed_devices, device_aliases
from magnetar_agent.host import inventory
from magnetar_agent.migrations import source
from magnetar_agent.servers.hardware import pci, placement
from magnetar_agent.settings import AgentSettings
from magnetar_core.errors import Conflict, HypervisorError, InvalidField, InvalidSettings, MagnetarError
from tests.support.agent.pair import WAY, Kvm, Pair
from tests.support.agent.pci import CELLS, GPU, NIC, device, remove
from tests.unit.agent.conftest import SMALL, Host, made_at_once

SETTINGS: dict[str, Any] = {
    "pci_device_spec": [{"vendor_id": "10DE"}, {"address": "0000:3?:00.*", "managed": False}],
    "pci_alias": [{"name": "gpu", "vendor_id": "10de", "product_id": "1eb8"},
                  {"name": "nic", "vendor_id": "8086", "product_id": "1572"}]}
ONE = {"flavor": SMALL, "hardware": {"pci_alias": "gpu:1"}}


def made(sysfs: Path) -> Path:
    """Two GPUs, a NIC, and what nobody gets."""
    device(sysfs, "0000:81:00.0", GPU, 0)
    device(sysfs, "0000:c1:00.0", GPU, 1)
    device(sysfs, "0000:31:00.0", NIC, 0, "0x020000")
    (device(sysfs, "0000:31:00.1", NIC, 0, "0x020000") / "virtfn0").symlink_to("../0000:31:02.0")
    device(sysfs, "0000:80:00.0", ("10de", "0001"), 0, "0x060400")
    device(sysfs, "0000:41:00.0", NIC, 0, "0x020000")
    return sysfs


@pytest.fixture
def big(tmp_path: Path) -> Iterator[Host]:
    """A host with devices."""
    host = Host(tmp_path, sysfs=made(tmp_path / "sys"), **SETTINGS)
    host.start()
    yield host
    host.agent.close()


def places(host: Host | Kvm, name: str = "web1") -> list[str]:
    """Buses of the devices in a server's domain, and whether libvirt takes care of them."""
    document = host.agent.host.documents.find("server", name)
    assert document is not None
    root = ET.fromstring(host.fake.xml(document.id))
    return [f"{one.find('source/address').get('bus')} {one.get('managed')}"  # type: ignore[union-attr]
            for one in root.iterfind("devices/hostdev")]


def told(host: Host) -> dict[str, int]:
    """What the host says is free."""
    return {name: one["free"] for name, one in inventory.host_usage(host.agent.host)["pci_devices"].items()}


# Who gets what ------------------------------------------------------------------------------------------------------
def test_the_devices_that_settings_allow(tmp_path: Path) -> None:
    settings = AgentSettings(sysfs=made(tmp_path), **SETTINGS)
    assert allowed_devices(settings.sysfs, settings.pci_device_spec) == [
        PciDevice("0000:31:00.0", *NIC, 0, False), PciDevice("0000:81:00.0", *GPU, 0),
        PciDevice("0000:c1:00.0", *GPU, 1)]
    assert allowed_devices(tmp_path / "none", settings.pci_device_spec) == [] == allowed_devices(tmp_path, ())


def test_a_device_whose_address_no_guest_can_have_is_left_out(tmp_path: Path) -> None:
    for address in ("ffff:ff:1f.7", "10000:01:00.0", "0000:81:20.0", "0000:81:00.8", "0000:100:00.0"):
        device(tmp_path, address, GPU)
    assert [one.address for one in allowed_devices(tmp_path, [{"vendor_id": "10de"}])] == ["ffff:ff:1f.7"]


def test_a_server_has_devices_for_itself(big: Host) -> None:
    big.ensure("server", "web1", {"flavor": SMALL, "hardware": {"pci_alias": "nic:1,gpu:1"}})
    assert places(big) == ["0x81 yes", "0x31 no"] and told(big) == {"gpu": 1, "nic": 0}
    assert big.show()["hardware"] == {"pci_alias": "gpu:1,nic:1"}
    assert big.show()["pci_devices"] == {"0000:31:00.0": "nic", "0000:81:00.0": "gpu"}
    assert not big.ensure("server", "web1", {"hardware": {"pci_alias": "gpu:1,nic:1"}}).changed
    big.ensure("server", "web2", ONE)
    assert places(big, "web2") == ["0xc1 yes"] and told(big) == {"gpu": 0, "nic": 0}
    with pytest.raises(Conflict, match="needs 1 PCI devices of alias gpu, and host .* has 0 free"):
        big.ensure("server", "web3", ONE)
    big.ensure("server", "web1", None)
    assert told(big) == {"gpu": 1, "nic": 1}
    big.restart()
    assert told(big) == {"gpu": 1, "nic": 1} and places(big, "web2") == ["0xc1 yes"]


def test_a_flavor_asks_for_them(big: Host) -> None:
    big.ensure("flavor", "gpu", {**SMALL, "extra_specs": {"pci_passthrough:alias": "gpu:2"}})
    big.ensure("server", "web1", {"flavor": "gpu"})
    assert places(big) == ["0x81 yes", "0xc1 yes"]


def test_two_that_start_at_once_never_have_the_same(big: Host) -> None:
    done = made_at_once(big, ONE, 6)
    assert sum(done) == 2
    assert sorted(places(big, f"web{at}")[0] for at, well in enumerate(done) if well) == ["0x81 yes", "0xc1 yes"]


def test_an_alias_that_the_host_lacks(big: Host) -> None:
    for name in ("fpga", "gpu:1,fpga"):
        with pytest.raises(InvalidField, match=r"lacks PCI devices of alias fpga .*pci_device_spec and pci_alias"):
            big.ensure("server", "web1", {"flavor": SMALL, "hardware": {"pci_alias": f"{name}:1"}})
    with pytest.raises(InvalidField, match="the server needs 3, and 2 of 2 are free"):
        big.ensure("server", "web1", {"flavor": SMALL, "hardware": {"pci_alias": "gpu:3"}})
    with pytest.raises(InvalidField, match="must name aliases and how many devices"):
        big.ensure("server", "web1", {"flavor": SMALL, "hardware": {"pci_alias": "gpu"}})
    assert big.agent.host.documents.find("server", "web1") is None


def test_a_dry_run_takes_nothing(big: Host) -> None:
    assert big.ensure("server", "web1", ONE, dry_run=True).changed
    assert told(big) == {"gpu": 2, "nic": 1}


def test_guests_and_devices_are_at_the_same_cells(big: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeHypervisor, "cells", CELLS)
    big.ensure("server", "plain", {"flavor": SMALL, "hardware": {"numa_nodes": 1}})
    want = {"flavor": SMALL, "hardware": {"pci_alias": "gpu:1", "numa_nodes": 1}}
    for name in ("web1", "web2"):
        big.ensure("server", name, want)
    cells = [big.agent.host.documents.find("server",
                                           name).want["placement"]["cells"][0]["host"]  # type: ignore[union-attr]
             for name in ("plain", "web1", "web2")]
    assert cells == [2, 0, 1] and (places(big), places(big, "web2")) == (["0x81 yes"], ["0xc1 yes"])
    assert big.show()["hardware"] == want["hardware"]
    with pytest.raises(Conflict, match=r"0 free that suit the server's NUMA cells \(. of the host\)"):
        big.ensure("server", "web3", want)


@pytest.mark.parametrize(("policy", "own", "got"), [
    ("required", "", None), ("legacy", "", "0xc2 yes"), ("", "", "0xc2 yes"), ("preferred", "", "0xc1 yes"),
    ("socket", "", "0xc1 yes"), ("", "required", None), ("", "socket", "0xc1 yes"), ("legacy", "required", "0xc2 yes")])
def test_policies_of_numa_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, own: str,
                                   got: str | None) -> None:
    """The guest can be on cell 0 only. There are a device at cell 1, on the same socket, and one that tells no cell."""
    alias = {"name": "gpu", "vendor_id": GPU[0], **({"numa_policy": own} if own else {})}
    monkeypatch.setattr(FakeHypervisor, "cells", (CELLS[0], CELLS[1]._replace(memory_mb=1)))
    host = Host(tmp_path, sysfs=tmp_path / "sys", pci_device_spec=[{"vendor_id": GPU[0]}], pci_alias=[alias])
    device(tmp_path / "sys", "0000:c1:00.0", GPU, 1)
    device(tmp_path / "sys", "0000:c2:00.0", GPU, -1)
    host.start()
    want = {"flavor": SMALL, "hardware": {"pci_alias": "gpu:1", "numa_nodes": 1,
                                          **({"pci_numa_affinity": policy} if policy else {})}}
    try:
        if got is None:
            with pytest.raises(Conflict, match="0 free that suit the server's NUMA cells"):
                host.ensure("server", "web1", want)
        else:
            host.ensure("server", "web1", want)
            assert places(host) == [got]
    finally:
        host.agent.close()


def test_what_has_to_do_with_sr_iov_is_named_by_its_type(tmp_path: Path) -> None:
    sysfs = tmp_path / "sys"
    (device(sysfs, "0000:31:00.0", NIC) / "sriov_totalvfs").write_text("4\n")
    (device(sysfs, "0000:32:02.0", NIC) / "physfn").symlink_to("../0000:32:00.0")
    device(sysfs, "0000:33:00.0", NIC)
    aliases = [{"name": name, "vendor_id": NIC[0], **({"device_type": type} if type else {})}
               for name, type in (("any", ""), ("pf", "type-PF"), ("vf", "type-VF"), ("pci", "type-PCI"))]
    settings = AgentSettings(sysfs=sysfs, pci_device_spec=[{"vendor_id": NIC[0]}], pci_alias=aliases)
    assert {one.address[5:7]: device_aliases(one, settings.pci_alias)
            for one in allowed_devices(settings.sysfs, settings.pci_device_spec)} == {
        "31": ("pf",), "32": ("vf",), "33": ("any", "pci")}


# Changes ------------------------------------------------------------------------------------------------------------
def test_a_resize_holds_both_until_the_guest_is_off(big: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    big.ensure("server", "web1", ONE)
    during: list[dict[str, int]] = []
    shutdown = FakeHypervisor.shutdown

    def stop(fake: FakeHypervisor, uuid: str) -> None:
        during.append(told(big))
        shutdown(fake, uuid)
    monkeypatch.setattr(FakeHypervisor, "shutdown", stop)
    big.ensure("server", "web1", {"hardware": {"pci_alias": "nic:1"}}, allow_reboot=True)
    assert during == [{"gpu": 1, "nic": 0}] and told(big) == {"gpu": 2, "nic": 0} and places(big) == ["0x31 no"]
    big.ensure("server", "web1", {"hardware": {}}, allow_reboot=True)
    assert during[1] == {"gpu": 2, "nic": 0} and told(big) == {"gpu": 2, "nic": 1} and places(big) == []


def test_a_device_that_is_gone_is_replaced_at_the_next_start(big: Host) -> None:
    big.ensure("server", "web1", {**ONE, "power": "off"})
    remove(big.root / "sys", "0000:81:00.0")
    big.ensure("server", "web1", {"power": "running"})
    assert places(big) == ["0xc1 yes"]


def test_a_start_that_fails_before_libvirt_knows_the_other_device(big: Host) -> None:
    big.ensure("server", "web1", {**ONE, "power": "off"})
    remove(big.root / "sys", "0000:81:00.0")
    big.fake.fail_next("define", HypervisorError("libvirt is away"))
    with pytest.raises(HypervisorError, match="away"):
        big.ensure("server", "web1", {"power": "running"})
    big.restart()
    big.ensure("server", "web1", {"power": "running"})
    assert places(big) == ["0xc1 yes"]
    document = big.agent.host.documents.find("server", "web1")
    assert document is not None and placement.REDEFINE not in document.state


def test_a_device_that_is_given_once(tmp_path: Path) -> None:
    """It stays its server's over stops and starts of both, and is nobody's afterwards until an operator says so."""
    settings = {**SETTINGS, "pci_device_spec": [{"address": "0000:81:*", "one_time_use": True}, {"vendor_id": GPU[0]}]}
    host = Host(tmp_path, sysfs=made(tmp_path / "sys"), **settings)
    host.start()
    host.ensure("server", "web1", ONE)
    host.restart()
    host.ensure("server", "web1", {"power": "off"})
    host.ensure("server", "web1", {"power": "running"})
    assert places(host) == ["0x81 yes"] and told(host)["gpu"] == 1
    host.ensure("server", "web1", None)
    assert told(host)["gpu"] == 1
    host.ensure("server", "web2", ONE)
    assert places(host, "web2") == ["0xc1 yes"]
    with pytest.raises(Conflict, match="has 0 free"):
        host.ensure("server", "web3", ONE)
    (host.agent.host.settings.state_dir / pci.USED / "0000:81:00.0").unlink()
    host.ensure("server", "web3", ONE)
    host.ensure("server", "web2", None)
    assert told(host)["gpu"] == 1 and places(host, "web3") == ["0x81 yes"]
    host.agent.close()


def test_a_host_with_too_few_devices_refuses_the_start_and_keeps_the_server(big: Host) -> None:
    big.ensure("server", "web1", {**ONE, "power": "off"})
    big.ensure("server", "web2", ONE)
    remove(big.root / "sys", "0000:81:00.0")
    with pytest.raises(Conflict, match="needs 1 PCI devices of alias gpu, and host .* has 0 free"):
        big.ensure("server", "web1", {"power": "running"})
    assert big.show()["power_state"] == "off" and told(big) == {"gpu": 0, "nic": 1}
    big.ensure("server", "web2", None)
    big.ensure("server", "web1", {"power": "running"})
    assert places(big) == ["0xc1 yes"]


def test_it_cannot_be_suspended(big: Host) -> None:
    big.ensure("server", "web1", ONE)
    with pytest.raises(InvalidField, match="power: cannot be suspended while the server has PCI devices"):
        big.ensure("server", "web1", {"power": "suspended"})
    assert big.show()["power_state"] == "running"


# Moves --------------------------------------------------------------------------------------------------------------
@pytest.fixture
def equipped(pair: Pair, tmp_path: Path) -> Pair:
    """Two hosts with a GPU each, at other addresses."""
    for kvm, address in ((pair.one, "0000:81:00.0"), (pair.two, "0000:c1:00.0")):
        settings, sysfs = AgentSettings(**SETTINGS), tmp_path / address.replace(":", "-")
        device(sysfs, address, GPU)
        for name, value in (("sysfs", sysfs), ("pci_device_spec", settings.pci_device_spec),
                            ("pci_alias", settings.pci_alias)):
            object.__setattr__(kvm.agent.host.settings, name, value)
    return pair


def test_a_cold_move_gives_it_those_of_the_other_host(equipped: Pair) -> None:
    equipped.make(**ONE)
    assert places(equipped.one) == ["0x81 yes"]
    assert equipped.migrate(type="cold") == WAY
    assert places(equipped.two) == ["0xc1 yes"] and pci.held_pci_addresses(equipped.one.agent.host) == set()


def test_a_guest_with_devices_does_not_move_while_it_runs(equipped: Pair) -> None:
    id = equipped.make(**ONE)
    with pytest.raises(MagnetarError, match="has PCI devices .* cannot move while the guest runs. Migrate it cold"):
        equipped.migrate(type="live")
    equipped.check(id, equipped.one)


def test_live_migratable_devices_move_while_the_guest_runs(equipped: Pair, tmp_path: Path) -> None:
    """Each takes the place of one of its alias, whatever the addresses are."""
    aliases = [{"name": "gpu", "vendor_id": GPU[0], "live_migratable": True}, {"name": "nic", "vendor_id": NIC[0]},
               {"name": "moving", "vendor_id": NIC[0], "live_migratable": True}]
    for kvm, nic in ((equipped.one, "0000:91:00.0"), (equipped.two, "0000:b1:00.0")):
        device(kvm.agent.host.settings.sysfs, nic, NIC)
        made = AgentSettings(pci_alias=aliases, pci_device_spec=[
            {"vendor_id": GPU[0], "live_migratable": True}, {"vendor_id": NIC[0], "live_migratable": True}])
        for name in ("pci_alias", "pci_device_spec"):
            object.__setattr__(kvm.agent.host.settings, name, getattr(made, name))
    id = equipped.make(flavor=SMALL, hardware={"pci_alias": "gpu:1,moving:1"})
    assert places(equipped.one) == ["0x81 yes", "0x91 yes"]
    assert equipped.migrate(type="live") == WAY
    assert places(equipped.two) == ["0xc1 yes", "0xb1 yes"] and pci.held_pci_addresses(equipped.one.agent.host) == set()
    found = equipped.two.side().find(id)
    assert found and found["pci_devices"] == {"0000:b1:00.0": "moving", "0000:c1:00.0": "gpu"}
    assert not equipped.two.side().client.ensure("server", id, {"power": "running"})["changed"]


def live(pair: Pair) -> None:
    """All GPUs of the pair may move while their guest runs."""
    made = AgentSettings(pci_alias=[{"name": "gpu", "vendor_id": GPU[0], "live_migratable": True}],
                         pci_device_spec=[{"vendor_id": GPU[0], "live_migratable": True}])
    for kvm in (pair.one, pair.two):
        for name in ("pci_alias", "pci_device_spec"):
            object.__setattr__(kvm.agent.host.settings, name, getattr(made, name))


def test_an_earlier_agent_moves_no_devices_while_the_guest_runs(equipped: Pair,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have the guest take whatever is at the same address of the target."""
    live(equipped)
    id, usual = equipped.make(**ONE), source.build_manifest
    monkeypatch.setattr(source, "build_manifest", lambda *args: {
        name: value for name, value in usual(*args).items() if name != "moves_devices"})
    with pytest.raises(MagnetarError, match="from an agent of an earlier version. Migrate it cold, or upgrade"):
        equipped.migrate(type="live")
    equipped.check(id, equipped.one)
    assert equipped.migrate(type="cold")
    equipped.check(id, equipped.two)


def test_an_alias_that_says_nothing_moves_cold(equipped: Pair) -> None:
    """Devices that could move are of it too, and others."""
    made = AgentSettings(pci_device_spec=[{"vendor_id": GPU[0], "live_migratable": True}])
    for kvm in (equipped.one, equipped.two):
        object.__setattr__(kvm.agent.host.settings, "pci_device_spec", made.pci_device_spec)
    id = equipped.make(**ONE)
    with pytest.raises(MagnetarError, match="hardware.pci_alias: gpu.* cannot move while the guest runs"):
        equipped.migrate(type="live")
    equipped.check(id, equipped.one)


def test_a_target_without_devices_refuses_before_anything_moves(equipped: Pair) -> None:
    equipped.two.side().client.ensure("server", "other", {**ONE, "image": None, "networks": []})
    id = equipped.make(**ONE)
    with pytest.raises(MagnetarError, match="the server needs 1, and 0 of 1 are free"):
        equipped.migrate(type="cold")
    equipped.check(id, equipped.one)


def test_a_server_that_becomes_another_needs_what_it_becomes(equipped: Pair) -> None:
    equipped.two.side().client.ensure("server", "other", {**ONE, "image": None, "networks": []})
    id = equipped.make(**ONE)
    flavor = {"vcpus": 1, "ram": 64, "disk": 1, "ephemeral": 0, "swap": 0}
    with pytest.raises(MagnetarError, match="the server needs 1, and 0 of 1 are free"):
        equipped.migrate(type="cold", becomes={"flavor": flavor, "hardware": {"pci_alias": "gpu:1"}})
    equipped.check(id, equipped.one)
    equipped.one.side().client.ensure("server", id, {"power": "off"})
    assert equipped.migrate(type="cold", becomes={"flavor": {**flavor, "ram": 128}, "hardware": {}}) == WAY
    found = equipped.two.side().find(id)
    assert found and found["flavor"]["ram"] == 128 and found["pci_devices"] == {} and found["fault"] is None
    assert not equipped.two.side().client.ensure("server", id, {"hardware": {}, "flavor": {
        **flavor, "ram": 128}})["changed"]


# Settings -----------------------------------------------------------------------------------------------------------
def test_what_the_host_lacks_is_told_when_settings_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware.shutil, "which", lambda _name: None)
    there = made(tmp_path / "sys")
    settings = AgentSettings(sysfs=there, enabled_mdev_types=[{"type": "small"}], **SETTINGS)
    said = [one for one in serve.check_settings(settings) if one.startswith(("pci_", "enabled_mdev"))]
    assert ["no IOMMU" in said[0], "no driver" in said[1], "needs mdevctl" in said[2]] == [True] * 3 and len(said) == 3
    (there / "class/iommu/dmar0").mkdir(parents=True)
    settings = AgentSettings(sysfs=there, pci_device_spec=[{"vendor_id": "ffff"}])
    assert [one for one in serve.check_settings(settings) if "pci_" in one] == [
        "pci_device_spec allows none of the host's devices."]
    assert not [one for one in serve.check_settings(AgentSettings()) if "pci_" in one]


@pytest.mark.parametrize(("settings", "why"), [
    ({"pci_device_spec": {"vendor_id": "10de"}}, "must be a list of {vendor_id, product_id, "),
    ({"pci_device_spec": [{"devname": "eth0"}]}, r"pci_device_spec\[0\]: must have some of vendor_id"),
    ({"pci_device_spec": [{"vendor_id": 1000}]}, "vendor_id: must be four hexadecimal digits as a text"),
    ({"pci_device_spec": [{"address": "eth0"}]}, "address: must be like 0000:81:00.0"),
    ({"pci_alias": [{"name": "gpu"}]}, "pci_alias: gpu needs vendor_id or resource_class"),
    ({"pci_alias": [{"name": "gpu", "resource_class": "vcpu"}]}, "VCPU counts something else than PCI devices"),
    ({"pci_device_spec": [{"resource_class": 7}]}, "resource_class: must be the name of a resource class"),
    ({"pci_device_spec": [{"vendor_id": "10de", "traits": ["a"]}]}, "traits: must be names of traits with commas"),
    ({"pci_alias": [{"name": "gpu", "vendor_id": "10de", "numa_policy": "near"}]}, "must be one of legacy, preferred"),
    ({"pci_alias": [{"name": "gpu", "vendor_id": "10de", "device_type": "vf"}]}, "must be one of type-PF, type-VF"),
    ({"pci_alias": [{"name": "a:b", "vendor_id": "10de", "product_id": "1eb8"}]}, "name: must have letters")], ids=str)
def test_settings_that_make_no_sense(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidSettings, match=why):
        AgentSettings(**settings)
