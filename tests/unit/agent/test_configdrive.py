# SPDX-License-Identifier: GPL-3.0-or-later
"""The content of a config drive (MD-20 to MD-29, MD-43, MD-77, MD-78)."""

from __future__ import annotations

import base64
import dataclasses
import json
from typing import Any

import pytest

from magnetar_agent import configdrive
from magnetar_agent.configdrive import Device, Guest

GUEST = Guest(
    uuid="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d", name="Web One", seed=b"\x01" * 512, flavor="small", image="i",
    availability_zone="az1", keys={"me": "ssh-ed25519 AAAA me"}, metadata={"role": "web"},
    user_data=base64.b64encode(b"#!/bin/sh\necho hi\n").decode(), macs=("52:54:00:00:00:01",), networks=("lan",),
    mtus=(1400,), devices=(Device("nic", "pci", ("front",), mac="52:54:00:00:00:01"),), dns=("192.0.2.53",),
    vendor_data={"site": "lab"},
)


def read(name: str, guest: Guest = GUEST) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(configdrive.files(guest)[name])
    return found


@pytest.mark.parametrize("version", configdrive.VERSIONS)
def test_each_version_has_its_files(version: str) -> None:
    names = configdrive.files(GUEST)
    for name in ("meta_data.json", "network_data.json", "vendor_data.json", "vendor_data2.json", "user_data"):
        assert f"openstack/{version}/{name}" in names


def test_meta_data() -> None:
    meta = read("openstack/latest/meta_data.json")
    assert meta["uuid"] == GUEST.uuid
    assert (meta["name"], meta["hostname"]) == ("Web One", "web-one")
    assert meta["public_keys"] == {"me": "ssh-ed25519 AAAA me"}
    assert meta["keys"] == [{"name": "me", "type": "ssh", "data": "ssh-ed25519 AAAA me"}]
    assert meta["meta"] == {"role": "web"}
    assert meta["availability_zone"] == "az1"
    assert meta["launch_index"] == 0
    assert base64.b64decode(str(meta["random_seed"])) == b"\x01" * 512
    assert meta["devices"] == [{"type": "nic", "bus": "pci", "mac": "52:54:00:00:00:01", "tags": ["front"]}]


def test_injected_files() -> None:
    given = [("/etc/motd", b"Welcome\n"), ("/home/a b/\u00fc.bin", bytes(range(256)))]
    guest = dataclasses.replace(GUEST, injected=tuple(
        (path, base64.b64encode(content).decode()) for path, content in given))
    files = configdrive.files(guest)
    for version in ("2012-08-10", "latest"):
        listed = read(f"openstack/{version}/meta_data.json", guest)["files"]
        assert listed == [{"content_path": "/content/0000", "path": "/etc/motd"},
                          {"content_path": "/content/0001", "path": "/home/a b/\u00fc.bin"}]
        assert [(one["path"], files["openstack" + one["content_path"]]) for one in listed] == given


def test_without_injected_files() -> None:
    assert "files" not in read("openstack/latest/meta_data.json")
    assert not [name for name in configdrive.files(GUEST) if "content" in name]


def test_network_data() -> None:
    network = read("openstack/latest/network_data.json")
    link = {"id": "tap00000001", "vif_id": "52:54:00:00:00:01", "type": "bridge", "mtu": 1400,
            "ethernet_mac_address": "52:54:00:00:00:01"}
    assert network == {
        "links": [link],
        "networks": [{"id": "network0", "type": "ipv4_dhcp", "link": "tap00000001", "network_id": "lan"}],
        "services": [{"type": "dns", "address": "192.0.2.53"}],
    }


def test_ec2_and_user_data() -> None:
    files = configdrive.files(GUEST)
    assert files["openstack/latest/user_data"] == files["ec2/latest/user-data"] == b"#!/bin/sh\necho hi\n"
    ec2 = read("ec2/2009-04-04/meta-data.json")
    assert ec2["instance-type"] == "small"
    assert ec2["public-keys"] == {"0": {"_name": "0=me", "openssh-key": "ssh-ed25519 AAAA me"}}


def test_without_key_and_user_data() -> None:
    bare = Guest(uuid=GUEST.uuid, name="x", seed=b"")
    assert "public_keys" not in read("openstack/latest/meta_data.json", bare)
    assert not [name for name in configdrive.files(bare) if name.endswith(("user_data", "user-data"))]
    assert configdrive.files(bare) == configdrive.files(bare)


@pytest.mark.parametrize(("name", "label"), [
    ("web_1", "web-1"), ("Ünïcode", "ncode"), ("-.-", "server"), ("a" * 80, "a" * 63), ("db.example", "db.example"),
])
def test_hostname(name: str, label: str) -> None:
    assert configdrive.hostname(name) == label
