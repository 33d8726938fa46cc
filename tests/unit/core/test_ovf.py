# SPDX-License-Identifier: GPL-3.0-or-later
"""Descriptions of guests in OVA archives, and the hardware of the servers that are made of them."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar_core.errors import ImageRefused, InvalidField
from magnetar_core.images.imported_hardware import imported_hardware
from magnetar_core.images.ovf import MOST_ELEMENTS, parse_description
from tests.support.agent.ova import SPACES, description, device, vmware_description

DISKS = {"a.vmdk": 4 << 30, "b.vmdk": 1 << 30}


def described(text: bytes) -> dict[str, Any]:
    return parse_description(text).as_document()


def test_a_description_of_vmware() -> None:
    assert described(vmware_description(DISKS, nics={"VM Network": "VmxNet3", "back": "E1000"}, firmware="efi")) == {
        "guests": 1, "name": "shop", "os": "Debian GNU/Linux 12 (64-bit)", "vcpus": 2, "ram": 2048,
        "firmware": "uefi", "secure_boot": False, "nics": [{"network": "VM Network", "model": "vmxnet3"},
                                       {"network": "back", "model": "e1000"}],
        "disks": [{"name": "a.vmdk", "size": 4 << 30, "bus": "scsi", "controller": "virtualscsi"},
                  {"name": "b.vmdk", "size": 1 << 30, "bus": "scsi", "controller": "virtualscsi"}]}


def test_a_description_without_hardware() -> None:
    assert described(description("a.vmdk")) == {
        "guests": 1, "name": "vm", "os": "", "vcpus": None, "ram": None, "firmware": "bios", "secure_boot": False,
        "nics": [], "disks": [{"name": "a.vmdk", "size": 1, "bus": None, "controller": ""}]}


def guest(items: str, before: str = "", after: str = "") -> bytes:
    return (f'<Envelope {SPACES} xmlns:vbox="http://www.virtualbox.org/ovf/machine">{before}<VirtualSystem ovf:id="x">'
            f'<VirtualHardwareSection>{items}</VirtualHardwareSection>{after}</VirtualSystem></Envelope>').encode()


@pytest.mark.parametrize(("unit", "quantity", "ram"), [
    ("byte * 2^20", 512, 512), ("MegaBytes", 512, 512), ("byte * 2^30", 2, 2048), ("GigaBytes", 2, 2048),
    ("", 512, 512), ("hertz", 512, 512), ("byte * 2^99", 512, None), ("byte * 2^20", 0, None),
    ("byte * 2^20", "x", None), ("byte * 2^20", -5, None), ("byte * 2^20", 10**15, None)])
def test_units_of_memory(unit: str, quantity: object, ram: int | None) -> None:
    assert described(guest(device(4, 1, AllocationUnits=unit, VirtualQuantity=quantity)))["ram"] == ram


@pytest.mark.parametrize(("kind", "model", "bus"), [
    (5, "PIIX4", "ide"), (6, "lsilogic", "scsi"), (20, "AHCI", "sata"), (20, "vmware.nvme.controller", "nvme"),
    (20, "virtio-blk", "virtio"), (1, "other", None)])
def test_buses_of_disks(kind: int, model: str, bus: str | None) -> None:
    (disk,) = described(vmware_description({"a.vmdk": 1 << 30}, (kind, model)))["disks"]
    assert disk["bus"] == bus


def test_disks_are_in_the_order_of_their_places() -> None:
    text = vmware_description(DISKS)
    for old, new in ((b"/vmdisk0", b"/x"), (b"/vmdisk1", b"/vmdisk0"), (b"/x", b"/vmdisk1")):
        text = text.replace(b"/disk" + old, b"/disk" + new)
    assert [disk["name"] for disk in described(text)["disks"]] == ["b.vmdk", "a.vmdk"]


def test_virtualbox_says_its_firmware_itself() -> None:
    inside = '<vbox:Machine><Hardware><Firmware type="EFI"/></Hardware></vbox:Machine>'
    assert described(guest("", after=inside))["firmware"] == "uefi"


def test_only_the_default_configuration_counts() -> None:
    section = ('<DeploymentOptionSection><Configuration ovf:id="small"/>'
               '<Configuration ovf:id="large" ovf:default="true"/></DeploymentOptionSection>')
    items = "".join(device(3, at, VirtualQuantity=count).replace("<Item>", f"<Item {more}>")
                    for at, (count, more) in enumerate([(1, 'ovf:configuration="small"'), (9, 'ovf:bound="max"'),
                                                        (4, 'ovf:configuration="large"')]))
    assert described(guest(items, before=section))["vcpus"] == 4


@pytest.mark.parametrize(("text", "why"), [
    (guest("<Item/>" * (MOST_ELEMENTS + 1)), "more than 20000 elements"),
    (vmware_description({f"{at}.vmdk": 1 for at in range(33)}), "has 33 disks"), (b"", "is no XML"),
    (b"\xff", "is no XML")])
def test_what_is_refused(text: bytes, why: str) -> None:
    with pytest.raises(ImageRefused, match=why):
        parse_description(text)


@pytest.mark.parametrize(("capacity", "unit", "size"), [
    (10**18, "byte * 2^99", None), (1, "byte * 2^99", None), (1 << 30, "byte * 2^30", 1 << 60),
    ((1 << 30) + 1, "byte * 2^30", None), (0, "byte", None)])
def test_sizes_of_disks_are_limited(capacity: int, unit: str, size: int | None) -> None:
    text = description("a.vmdk").replace(b'ovf:capacity="1"', f'ovf:capacity="{capacity}" '
                                         f'ovf:capacityAllocationUnits="{unit}"'.encode())
    assert described(text)["disks"][0]["size"] == size


@pytest.mark.parametrize("name", ["x" * 500_000, "a\u202eb.vmdk"])
def test_odd_names_of_disks_are_refused_if_chosen(name: str) -> None:
    (disk,) = parse_description(description(name)).disks
    assert len(disk.name) <= 255 and disk.name.isprintable()
    assert "is too long, or has odd characters" in disk.refused and len(disk.refused) < 200


def test_texts_are_cut_and_printable() -> None:
    (nic,) = described(guest(device(10, 1, Connection="x" * 9999, ResourceSubType="E1000&#x200f;")))["nics"]
    assert nic == {"network": "x" * 255, "model": "e1000"}


def hardware(networks: dict[str, str] | None = None, given: dict[str, str] | None = None, **what: Any) -> Any:
    return imported_hardware(described(vmware_description(DISKS, **what)), networks or {}, given or {})


@pytest.mark.parametrize(("controller", "properties", "buses"), [
    ((6, "VirtualSCSI"), {"hw_disk_bus": "scsi", "hw_scsi_model": "vmpvscsi"}, ["scsi"]),
    ((6, "lsilogicsas"), {"hw_disk_bus": "scsi", "hw_scsi_model": "lsisas1068"}, ["scsi"]),
    ((20, "AHCI"), {"hw_disk_bus": "sata"}, ["sata"]), ((1, ""), {}, ["virtio"])])
def test_controllers_of_servers(controller: tuple[int, str], properties: dict[str, str], buses: list[str]) -> None:
    made = hardware(controller=controller)
    assert (made.properties, made.buses, made.warnings) == (properties, buses, [])


def test_devices_that_servers_do_not_have() -> None:
    made = hardware({"a": "lan", "b": "", "c": "lan"}, nics={"a": "VmxNet3", "b": "PCNet32", "c": "E1000"},
                    controller=(5, "PIIX4"))
    assert made.nics == [{"network": "lan", "model": "e1000e"}, {"network": "lan", "model": "e1000"}]
    assert made.properties == {"hw_disk_bus": "ide"} and made.buses == ["sata"]
    assert [text.split(" in the OVA")[0] for text in made.warnings] == [
        "The bus of the disk b.vmdk is ide", "The model of NIC 0 is vmxnet3"]
    (warning,) = hardware(controller=(6, "buslogic")).warnings
    assert "SCSI controller is buslogic in the OVA" in warning and "Set hw_scsi_model" in warning


def test_uefi_has_no_ide_and_properties_win() -> None:
    made = hardware({"a": "lan"}, {"hw_vif_model": "virtio", "hw_disk_bus": "virtio"}, nics={"a": "VmxNet3"},
                    controller=(5, "PIIX4"), firmware="efi")
    assert made.properties == {"hw_firmware_type": "uefi", "hw_disk_bus": "virtio", "hw_vif_model": "virtio"}
    assert made.nics == [{"network": "lan", "model": "virtio"}]


@pytest.mark.parametrize(("networks", "why"), [
    ({}, "has none for 'VM Network', 'back'"), ({"back": "lan"}, "has none for 'VM Network'"),
    ({"VM Network": "lan", "back": "lan", "front": "lan"}, "names 'front', which no NIC of the OVA has")])
def test_networks_must_fit(networks: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidField, match=why):
        hardware(networks, nics={"VM Network": "E1000", "back": "E1000"})
