# SPDX-License-Identifier: GPL-3.0-or-later
"""NICs that are virtual functions of SmartNICs (``remote-managed``), whose OVN is the card's own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.hardware.pci import RemoteFunction, allowed_devices, pci_warnings
from magnetar_agent.host import inventory
from magnetar_agent.host.networks import IntegrationBridge
from magnetar_agent.servers import guest_data
from magnetar_agent.settings import AgentSettings
from magnetar_agent.virt.host.product_data import ProductData, serial_number
from magnetar_core.errors import Conflict, InvalidField, InvalidSettings, MagnetarError
from tests.support.agent.pair import WAY, Pair
from tests.unit.agent.conftest import SMALL, Host

from .made_up import MAC, PORT, card, free, give, netdev, nic, part, plugged

NAME, SERIAL, PF_MAC = "remote-managed:rp_tunnelled", "MT2113X00000", "0c:42:a1:00:00:01"
SPEC: dict[str, Any] = {"vendor_id": "8086", "physical_network": None, "remote_managed": True}
#: What libvirt says of a function of a SmartNIC, in short.
NODE_DEVICE = """
<device>
  <name>pci_0000_31_00_0</name>
  <path>/sys/devices/pci0000:30/0000:30:02.0/0000:31:00.0</path>
  <parent>pci_0000_30_02_0</parent>
  <capability type='pci'>
    <class>0x020000</class>
    <domain>0</domain>
    <bus>49</bus>
    <slot>0</slot>
    <function>0</function>
    <product id='0xa2d6'>MT42822 BlueField-2 integrated ConnectX-6 Dx network controller</product>
    <vendor id='0x15b3'>Mellanox Technologies</vendor>
    <capability type='vpd'>
      <name>BlueField-2 DPU 25GbE Dual-Port SFP56</name>
      <fields access='readonly'>
        <change_level>B1</change_level>
        <part_number>MBF2H332A-AEEOT</part_number>
        <serial_number>MT2113X00000</serial_number>
      </fields>
      <fields access='readwrite'>
        <asset_tag>tag</asset_tag>
      </fields>
    </capability>
  </capability>
</device>
"""


def port_nic(at: int, **more: Any) -> dict[str, Any]:
    """The wish of such a NIC."""
    return {"port": PORT(at), "physical_network": "rp_tunnelled", "vnic_type": "remote-managed", "mac": MAC(at), **more}


def smart(sysfs: Path, bus: str = "31", functions: int = 2) -> None:
    """A made-up SmartNIC."""
    card(sysfs, bus, functions)
    netdev(sysfs, f"0000:{bus}:00.0", "ens1f0", PF_MAC.upper())


@pytest.fixture
def dpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A host with two functions of a SmartNIC, and without an Open vSwitch of its own."""
    smart(tmp_path / "sys")
    host = Host(tmp_path, sysfs=tmp_path / "sys", pci_device_spec=[SPEC],
                pci_alias=[{"name": "any", "vendor_id": "8086", "device_type": "type-VF"}])
    host.fake.cards = {"0000:31:00.0": SERIAL}
    monkeypatch.setattr(host.fake, "integration_bridge", lambda name: IntegrationBridge(name, reason="no Open vSwitch"))
    host.start()
    yield host
    host.agent.close()


def test_a_remote_managed_nic(dpu: Host) -> None:
    """It is a virtual function for the guest; the agent sets nothing and plugs nothing in."""
    assert free(dpu) == {"any": {"total": 0, "free": 0}, NAME: {"total": 2, "free": 2}}
    dpu.ensure("server", "web1", {"flavor": SMALL, "networks": [port_nic(1)]})
    assert plugged(dpu) == {MAC(1): "0x31 0x0"} == plugged(dpu, live=True)
    assert dpu.fake.representors == {} and dpu.fake.functions == {}
    assert dpu.show()["nic_devices"] == {MAC(1): {
        "pci_slot": "0000:31:02.0", "pci_vendor_info": "8086:154c", "physical_network": "rp_tunnelled",
        "card_serial_number": SERIAL, "pf_mac_address": PF_MAC, "vf_num": 0}}
    assert not dpu.ensure("server", "web1", {"networks": [port_nic(1)]}).changed
    dpu.ensure("server", "web1", {"networks": [port_nic(1), port_nic(2)]})
    assert dpu.show()["nic_devices"][MAC(2)]["vf_num"] == 1 and free(dpu)[NAME]["free"] == 0
    with pytest.raises(Conflict, match="needs 1 remote-managed virtual functions of networks between hosts, and host"):
        dpu.ensure("server", "web2", {"flavor": SMALL, "networks": [port_nic(3)]})
    dpu.ensure("server", "web1", {"networks": []})
    assert part(dpu, "interface", live=True) == [] and free(dpu)[NAME]["free"] == 2


def test_a_guest_sees_a_port_of_ovn(dpu: Host) -> None:
    dpu.ensure("server", "web1", {"flavor": SMALL, "networks": [port_nic(1)]})
    document = dpu.agent.host.documents.find("server", "web1")
    assert document is not None
    assert [(one.mac, one.type) for one in guest_data.build_guest(dpu.agent.host, document).nics] == [(MAC(1), "ovs")]


@pytest.mark.parametrize(("fields", "error", "says"), [
    ({"networks": [{**port_nic(1), "port": None}]}, InvalidField, "port: must be"),
    ({"networks": [nic(1, physical_network="rp_tunnelled", vnic_type="remote-managed")]}, InvalidField,
     r"networks\[0\].port: must name a port of OVN for vnic_type remote-managed"),
    ({"networks": [port_nic(1, vlan=7)]}, InvalidField, "vlan: must be left out for vnic_type remote-managed"),
    ({"networks": [port_nic(1, trusted=True)]}, InvalidField, "trusted: must be left out for vnic_type remote-managed"),
    ({"networks": [port_nic(1, max_tx_rate=5)]}, InvalidField, "max_tx_rate: is for virtual functions"),
    ({"networks": [nic(1, physical_network="rp_tunnelled")]}, Conflict, "has no virtual functions of networks between"),
    ({"networks": [port_nic(1, vnic_type="vdpa")]}, Conflict, "OVN|has no vDPA devices of networks between"),
    ({"networks": [], "hardware": {"pci_alias": "any:1"}}, MagnetarError, "PCI devices of alias any"),
])
def test_what_is_refused(dpu: Host, fields: dict[str, Any], error: type[MagnetarError], says: str) -> None:
    with pytest.raises(error, match=says):
        dpu.ensure("server", "web1", {"flavor": SMALL, **fields})
    assert free(dpu)[NAME]["free"] == 2


@pytest.mark.parametrize(("spec", "says"), [
    ({"vendor_id": "15b3", "remote_managed": True}, "remote_managed needs physical_network; null is for networks bet"),
    ({**SPEC, "trusted": True}, "trusted and remote_managed exclude one another"),
    ({**SPEC, "remote_managed": "maybe"}, r"remote_managed: must be true or false"),
])
def test_settings_that_mean_nothing(spec: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSettings, match=says):
        AgentSettings(pci_device_spec=[spec])


def test_which_functions_are_given(tmp_path: Path) -> None:
    """Those of a card that tells its serial number, itself or the function, and the MAC of its physical function; and
    never as ordinary ones, by another entry of the settings."""
    smart(tmp_path)
    specs = AgentSettings(pci_device_spec=[SPEC, {"vendor_id": "8086", "physical_network": "physnet0"}]).pci_device_spec

    def found(serials: dict[str, str]) -> dict[str, RemoteFunction | None]:
        return {one.address: one.remote for one in allowed_devices(tmp_path, specs, serials)}

    first, second = RemoteFunction(SERIAL, PF_MAC, 0), RemoteFunction(SERIAL, PF_MAC, 1)
    assert found({"0000:31:00.0": SERIAL}) == {"0000:31:02.0": first, "0000:31:02.1": second}
    assert found({"0000:31:02.1": SERIAL}) == {"0000:31:02.1": second}
    assert found({}) == {}
    (tmp_path / "bus/pci/devices/0000:31:00.0/net/ens1f0").rename(tmp_path / "away")
    assert found({"0000:31:00.0": SERIAL}) == {}


def test_a_whole_card_is_none(tmp_path: Path) -> None:
    """It may be given by another entry."""
    smart(tmp_path, functions=0)
    alone = AgentSettings(pci_device_spec=[SPEC]).pci_device_spec
    assert allowed_devices(tmp_path, alone, {"0000:31:00.0": SERIAL}) == []
    both = AgentSettings(pci_device_spec=[SPEC, {"vendor_id": "8086"}]).pci_device_spec
    assert [one.remote for one in allowed_devices(tmp_path, both, {"0000:31:00.0": SERIAL})] == [None]


def test_what_a_host_lacks_is_told(tmp_path: Path) -> None:
    smart(tmp_path)
    (tmp_path / "class/iommu/dmar0").mkdir(parents=True)
    specs = AgentSettings(pci_device_spec=[{"address": "0000:31:02.1"}, SPEC]).pci_device_spec
    [said] = pci_warnings(tmp_path, specs, ())
    assert "vital product data (VPD)" in said
    (tmp_path / "bus/pci/devices/0000:31:00.0/vpd").touch()
    assert list(pci_warnings(tmp_path, specs, ())) == []


def test_one_with_a_vdpa_device_is_the_smart_nics(dpu: Host, tmp_path: Path) -> None:
    made = tmp_path / "sys/bus/pci/devices/0000:31:02.0/vdpa0/vhost-vdpa-0"
    made.mkdir(parents=True)
    (tmp_path / "sys/bus/vdpa/devices").mkdir(parents=True)
    (tmp_path / "sys/bus/vdpa/devices/vdpa0").symlink_to(made.parent)
    assert free(dpu)[NAME] == {"total": 2, "free": 2}


def test_libvirt_is_asked_only_where_settings_name_smart_nics(big: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(big.fake, "card_serials", lambda: pytest.fail("asked"))
    assert inventory.host_usage(big.agent.host)["connected"]


def test_it_moves_cold_to_a_function_of_the_other_host(pair: Pair, tmp_path: Path) -> None:
    for kvm, bus, serial in ((pair.one, "31", "ONE"), (pair.two, "b1", "TWO")):
        smart(tmp_path / bus, bus, 1)
        kvm.fake.cards = {f"0000:{bus}:00.0": serial}
        give(kvm, tmp_path / bus, **SPEC)
    id = pair.make(flavor=SMALL, networks=[port_nic(1)])
    assert pair.migrate(type="cold") == WAY
    assert plugged(pair.two) == {MAC(1): "0xb1 0x0"}
    document = pair.two.agent.host.documents.get("server", id)
    assert document is not None
    assert document.want["pci_devices"] == {"0000:b1:02.0": MAC(1)}


# libvirt's words ------------------------------------------------------------------------------------------------------
class _Device:
    """A node device of a made-up libvirt; ``asked``: how often it told all of itself."""

    def __init__(self, name: str, xml: str) -> None:
        self._name, self._xml, self.asked = name, xml, 0

    def name(self) -> str:
        return self._name

    def XMLDesc(self) -> str:  # noqa: N802 - libvirt's
        self.asked += 1
        return self._xml


class _Connection:
    """A connection to it, and libvirt's own."""

    def __init__(self, *devices: _Device) -> None:
        self.devices = list(devices)

    def call(self, _what: str, act: Any, _lane: Any = None) -> Any:
        return act(self)

    def listAllDevices(self, _flags: int) -> list[_Device]:  # noqa: N802 - libvirt's
        return self.devices


def test_serial_numbers_by_libvirt() -> None:
    """Each device is asked once."""
    smart_nic = _Device("pci_0000_31_00_0", NODE_DEVICE)
    other = _Device("pci_0000_41_00_0", NODE_DEVICE.replace("serial_number>", "other>"))
    asked = ProductData()
    asked.connection = _Connection(smart_nic, other)  # type: ignore[assignment]
    assert asked.card_serials() == {"0000:31:00.0": SERIAL} == asked.card_serials()
    assert (smart_nic.asked, other.asked) == (1, 1)
    asked.connection.devices.pop(0)  # type: ignore[attr-defined]
    assert asked.card_serials() == {}


def test_a_serial_number_that_somebody_wrote_counts_for_nothing() -> None:
    assert serial_number(NODE_DEVICE) == SERIAL
    assert serial_number(NODE_DEVICE.replace("readonly", "writeonly")) == ""


def test_libvirt_knows_such_a_node_device(tmp_path: Path) -> None:
    (tmp_path / "device.xml").write_text(NODE_DEVICE.strip())
    subprocess.run(["virt-xml-validate", str(tmp_path / "device.xml"), "nodedev"], check=True, capture_output=True)
