# SPDX-License-Identifier: GPL-3.0-or-later
"""What cloud-init, and the schema of network_data.json, make of what guests are told (MD-29)."""

from __future__ import annotations

import base64
import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from magnetar_agent import configdrive, guest_data
from magnetar_agent.guest_data import Guest, GuestNic, NicAddress
from tests.unpacked import ROOT

from . import cloud_init
from .test_configdrive import GUEST, NIC

SCHEMA = json.loads((ROOT / "docs/reference/network_data.schema.json").read_text(encoding="utf-8"))
PORT, NETWORK = "cd9f6d46-4a3a-43ab-a466-994af9db96fc", "0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11"
STATIC = GuestNic("52:54:00:00:00:02", NETWORK, port=PORT, mtu=1500, dns=("192.0.2.53",),
                  address=NicAddress("192.0.2.7", 24, dhcp=False, gateway="192.0.2.1"),
                  routes=(("198.51.100.0/24", "192.0.2.9"),))
DHCP = dataclasses.replace(STATIC, address=NicAddress("192.0.2.7", 24, dhcp=True, gateway="192.0.2.1", dns="192.0.2.1"))
WITHOUT = GuestNic("52:54:00:00:00:03", "br0")
INJECTED = (("/etc/motd", base64.b64encode(b"hello\n").decode()),)


def guest(*nics: GuestNic) -> Guest:
    return dataclasses.replace(GUEST, nics=nics, injected=INJECTED)


@pytest.mark.parametrize("nics", [(), (NIC,), (STATIC,), (DHCP,), (WITHOUT,), (NIC, STATIC, WITHOUT)], ids=range(6))
def test_network_data_is_as_the_schema_says(nics: tuple[GuestNic, ...]) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(guest_data.network_data(guest(*nics)), SCHEMA)


@pytest.mark.parametrize("wrong", [
    {"links": []}, {"links": [{}], "networks": [], "services": []},
    {"links": [], "networks": [{"id": "network0", "type": "ipv4", "link": "l", "network_id": "n"}], "services": []},
    {"links": [], "networks": [], "services": [{"type": "dns"}]}], ids=range(4))
def test_the_schema_refuses_what_is_wrong(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMA)


@pytest.mark.slow
def test_cloud_init_reads_the_drive(tmp_path: Path) -> None:
    nics = (NIC, STATIC)
    whole = dataclasses.replace(guest(*nics), vendor_data={"cloud-init": "#!/bin/sh"})
    found = cloud_init.reads(configdrive.files(whole), tmp_path, [nic.mac for nic in nics])
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
