# SPDX-License-Identifier: GPL-3.0-or-later
"""What cloud-init, and the schema of network_data.json, make of what guests are told (MD-29)."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from magnetar_agent.metadata import configdrive, guest_data
from magnetar_agent.metadata.guest_data import Guest, GuestNic, NicAddress, NicAddress6
from tests.support.agent import cloud_init
from tests.support.agent.configdrive import GUEST, NIC
from tests.support.agent.metadata_cloud_init import SCHEMA
from tests.support.agent.metadata_http import served
from tests.support.unpacked import ROOT, unpacked

PORT, NETWORK = "cd9f6d46-4a3a-43ab-a466-994af9db96fc", "0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11"
STATIC = GuestNic("52:54:00:00:00:02", NETWORK, port=PORT, mtu=1500, dns=("192.0.2.53",),
                  address=NicAddress("192.0.2.7", 24, dhcp=False, gateway="192.0.2.1"),
                  routes=(("198.51.100.0/24", "192.0.2.9"),))
DHCP = dataclasses.replace(STATIC, address=NicAddress("192.0.2.7", 24, dhcp=True, gateway="192.0.2.1", dns="192.0.2.1"))
WITHOUT = GuestNic("52:54:00:00:00:03", "br0")
#: With an address of each mode of IPv6, and nothing but IPv6.
MODES = (NicAddress6("fd00:1::5", 64, "slaac", "fd00:1::1", ("fd00::53",)),
         NicAddress6("fd00:2::5", 64, "dhcpv6-stateful"), NicAddress6("fd00:3::5", 64, "dhcpv6-stateless"),
         NicAddress6("fd00:4::5", 64, None, "fd00:4::1"))
SIX = GuestNic("52:54:00:00:00:04", NETWORK, port=PORT, mtu=1442, ipv6=MODES)
OVN = dataclasses.replace(DHCP, type="ovs", mtu=1442, ipv6=MODES[:1])
INJECTED = (("/etc/motd", base64.b64encode(b"hello\n").decode()),)


def guest(*nics: GuestNic) -> Guest:
    return dataclasses.replace(GUEST, nics=nics, injected=INJECTED)


@pytest.mark.parametrize("nics", [(), (NIC,), (STATIC,), (DHCP,), (WITHOUT,), (SIX,), (OVN,),
                                  (NIC, STATIC, WITHOUT, SIX, OVN)], ids=range(8))
def test_network_data_is_as_the_schema_says(nics: tuple[GuestNic, ...]) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(guest_data.network_data(guest(*nics)), SCHEMA)


@pytest.mark.parametrize("wrong", [
    {"links": []}, {"links": [{}], "networks": [], "services": []},
    {"links": [{"id": "tap00000001", "type": "tap", "vif_id": "a", "ethernet_mac_address": "52:54:00:00:00:01",
                "mtu": None}], "networks": [], "services": []},
    {"links": [], "networks": [{"id": "network0", "type": "ipv4", "link": "l", "network_id": "n"}], "services": []},
    {"links": [], "networks": [], "services": [{"type": "dns"}]}], ids=range(5))
def test_the_schema_refuses_what_is_wrong(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMA)


def test_addresses_of_ipv6_come_after_that_of_ipv4() -> None:
    found = guest_data.network_data(guest(dataclasses.replace(STATIC, ipv6=MODES), SIX))
    assert [one["type"] for one in found["networks"]] == ["ipv4", *(types := [
        "ipv6_slaac", "ipv6_dhcpv6-stateful", "ipv6_dhcpv6-stateless", "ipv6"]), *types]
    assert [one["id"] for one in found["networks"]] == [f"network{at}" for at in range(9)]
    slaac = found["networks"][1]
    assert (slaac["ip_address"], slaac["netmask"]) == ("fd00:1::5", "ffff:ffff:ffff:ffff::")
    assert slaac["routes"] == [{"network": "::", "netmask": "::", "gateway": "fd00:1::1"}]
    assert [one["address"] for one in found["services"]] == ["192.0.2.53", "fd00::53"]


@pytest.mark.slow
def test_cloud_init_reads_addresses_of_ipv6(tmp_path: Path) -> None:
    found = cloud_init.reads(configdrive.config_drive_files(guest(SIX)), tmp_path, [SIX.mac])
    (nic, *_services) = found["network"]["config"]
    assert [one["type"] for one in nic["subnets"]] == [
        "ipv6_slaac", "ipv6_dhcpv6-stateful", "ipv6_dhcpv6-stateless", "static6"]
    assert nic["subnets"][3]["address"].startswith("fd00:4::5")


@pytest.mark.slow
def test_cloud_init_makes_a_device_of_each_vlan(tmp_path: Path) -> None:
    vlan = dataclasses.replace(STATIC, mac="52:54:00:00:00:09", mtu=1400)
    nic = dataclasses.replace(DHCP, vlans=((101, vlan),))
    found = cloud_init.reads(configdrive.config_drive_files(guest(nic)), tmp_path, [nic.mac])
    first, second, *_services = found["network"]["config"]
    assert (first["name"], first["type"]) == ("eth0", "physical")
    assert {name: second[name] for name in ("name", "type", "vlan_id", "vlan_link", "mac_address", "mtu")} == {
        "name": "eth0.101", "type": "vlan", "vlan_id": 101, "vlan_link": "eth0", "mac_address": vlan.mac, "mtu": 1400}
    assert [one["address"] for one in second["subnets"]] == ["192.0.2.7"]


@pytest.mark.slow
def test_cloud_init_reads_the_drive(tmp_path: Path) -> None:
    nics = (NIC, STATIC)
    whole = dataclasses.replace(guest(*nics), vendor_data={"cloud-init": "#!/bin/sh"})
    found = cloud_init.reads(configdrive.config_drive_files(whole), tmp_path, [nic.mac for nic in nics])
    assert found["version"] == 2 and found["seed"] == 512
    meta = found["metadata"]
    assert (meta["instance-id"], meta["local-hostname"]) == (GUEST.uuid, GUEST.hostname)
    assert found["keys"] == ["ssh-ed25519 AAAA me"] and meta["availability_zone"] == "az1"
    assert (meta["name"], meta["project_id"], meta["launch_index"]) == ("Web One", "p1", 2)
    assert (meta["meta"], meta["admin_pass"]) == ({"role": "web"}, "Secret12")
    assert found["userdata"] == "#!/bin/sh\necho hi\n" and found["files"] == {"/etc/motd": "hello\n"}
    assert found["vendordata"] == "#!/bin/sh" and found["vendordata2"] == {"join": {"token": "t"}}
    assert found["ec2"]["instance-type"] == "small"
    first, second, dns = found["network"]["config"]
    assert (first["name"], first["mac_address"], first["mtu"]) == ("eth0", NIC.mac, 1400)
    assert [one["type"] for one in first["subnets"]] == ["dhcp4"]
    (subnet,) = second["subnets"]
    assert (second["name"], subnet["type"], subnet["address"], subnet["netmask"]) == (
        "eth1", "static", "192.0.2.7", "255.255.255.0")
    assert [(one["network"], one["gateway"]) for one in subnet["routes"]] == [
        (guest_data.ANY, "192.0.2.1"), ("198.51.100.0", "192.0.2.9")]
    assert dns == {"type": "nameserver", "address": "192.0.2.53"}


@pytest.mark.slow
def test_cloud_init_knows_guests_by_their_product_name() -> None:
    """It looks for a metadata service only then, where there is no config drive."""
    shown = ET.fromstring((ROOT / "tests/cases/xml/minimal.xml").read_text(encoding="utf-8"))
    name = shown.findtext("sysinfo[@type='smbios']/system/entry[@name='product']")
    assert shown.find("os/smbios[@mode='sysinfo']") is not None
    source = unpacked() / "usr/lib/python3/dist-packages/cloudinit/sources/DataSourceOpenStack.py"
    assert name and f'= "{name}"\n' in source.read_text(encoding="utf-8")


@pytest.mark.slow
def test_cloud_init_reads_the_same_from_the_metadata_service(tmp_path: Path) -> None:
    """But for the password, which is in the drive alone, and for numbers, which EC2's paths have as text."""
    macs = [NIC.mac, STATIC.mac]
    whole = dataclasses.replace(guest(NIC, STATIC), vendor_data={"cloud-init": "#!/bin/sh"})
    drive = cloud_init.reads(configdrive.config_drive_files(whole), tmp_path, macs)
    found: list[dict[str, Any]] = []

    async def talk(send: Any) -> None:
        found.append(await asyncio.to_thread(cloud_init.reads_at, f"http://127.0.0.1:{send.port}", macs))

    served(talk, tree=guest_data.metadata_tree(dataclasses.replace(whole, admin_pass=None)))
    (service,) = found
    assert drive["metadata"].pop("admin_pass") == "Secret12"
    told, kept = service.pop("ec2"), drive.pop("ec2")
    assert service == drive
    assert told.pop("public-keys") == {"me": "ssh-ed25519 AAAA me"} and kept.pop("public-keys")
    assert told == {name: str(value) if isinstance(value, int) else value for name, value in kept.items()}
