# SPDX-License-Identifier: GPL-3.0-or-later
"""The content of a config drive (MD-20 to MD-29, MD-43, MD-77, MD-78)."""

from __future__ import annotations

import base64
import dataclasses

import pytest

from magnetar_agent.metadata import configdrive, guest_data
from magnetar_agent.metadata.guest_data import Guest, NicAddress
from tests.support.agent.configdrive import GUEST, NIC, read


@pytest.mark.parametrize("version", guest_data.VERSIONS)
def test_each_version_has_what_it_knew(version: str) -> None:
    names = {name.rpartition("/")[2] for name in configdrive.config_drive_files(GUEST)
             if name.startswith(f"openstack/{version}/")}
    since = {"vendor_data.json": "2013-10-17", "network_data.json": "2015-10-15", "vendor_data2.json": "2016-10-06"}
    assert names == {"meta_data.json", "user_data", *(name for name, first in since.items() if version >= first)}
    meta = read(f"openstack/{version}/meta_data.json")
    fields = {"random_seed": "2013-04-04", "project_id": "2015-10-15", "devices": "2016-06-30",
              "dedicated_cpus": "2020-10-14"}
    assert {name for name in fields if name in meta} == {name for name, first in fields.items() if version >= first}
    if "devices" in meta:
        assert ("vf_trusted" in meta["devices"][0]) == (version >= "2018-08-27")
        assert "vf_trusted" not in meta["devices"][1]


def test_the_drive_leaves_out_earlier_versions_of_ec2() -> None:
    versions = {path.split("/")[1] for path in configdrive.config_drive_files(GUEST) if path.startswith("ec2/")}
    assert versions == {"2009-04-04", "latest"}
    whole = guest_data.metadata_tree(GUEST)
    assert {path.split("/")[1] for path in whole if path.startswith("ec2/")} == set(guest_data.EC2_VERSIONS)
    for path, content in configdrive.config_drive_files(GUEST).items():
        assert content.rstrip(b"\n") == whole[path].rstrip(b"\n")


def test_meta_data() -> None:
    meta = read("openstack/latest/meta_data.json")
    assert meta["uuid"] == GUEST.uuid
    assert (meta["name"], meta["hostname"]) == ("Web One", "web-one.novalocal")
    assert (meta["project_id"], meta["admin_pass"]) == ("p1", "Secret12") and "Secret12" not in repr(GUEST)
    assert meta["public_keys"] == {"me": "ssh-ed25519 AAAA me"}
    assert meta["keys"] == [{"name": "me", "type": "ssh", "data": "ssh-ed25519 AAAA me"}]
    assert meta["meta"] == {"role": "web"}
    assert meta["availability_zone"] == "az1"
    assert meta["launch_index"] == 2
    assert base64.b64decode(str(meta["random_seed"])) == b"\x01" * 512
    assert meta["devices"] == [
        {"type": "nic", "bus": "pci", "address": "0000:01:00.0", "mac": "52:54:00:00:00:01", "tags": ["front"],
         "vf_trusted": False},
        {"type": "disk", "bus": "scsi", "address": "0:0:0:1", "serial": "8c7d3c0e", "path": "/dev/sda", "tags": ["db"]}]
    assert meta["dedicated_cpus"] == [0, 2]
    assert read("openstack/latest/vendor_data.json") == {"site": "lab"}
    assert read("openstack/latest/vendor_data2.json") == {"join": {"token": "t"}}


def test_injected_files() -> None:
    given = [("/etc/motd", b"Welcome\n"), ("/home/a b/\u00fc.bin", bytes(range(256)))]
    guest = dataclasses.replace(GUEST, injected=tuple(
        (path, base64.b64encode(content).decode()) for path, content in given))
    files = configdrive.config_drive_files(guest)
    for version in ("2012-08-10", "latest"):
        listed = read(f"openstack/{version}/meta_data.json", guest)["files"]
        assert listed == [{"content_path": "/content/0000", "path": "/etc/motd"},
                          {"content_path": "/content/0001", "path": "/home/a b/\u00fc.bin"}]
        assert [(one["path"], files["openstack" + one["content_path"]]) for one in listed] == given


def test_without_injected_files() -> None:
    assert "files" not in read("openstack/latest/meta_data.json")
    assert not [name for name in configdrive.config_drive_files(GUEST) if "content" in name]


def test_network_data() -> None:
    network = read("openstack/latest/network_data.json")
    link = {"id": "tap00000001", "vif_id": "52:54:00:00:00:01", "type": "bridge", "mtu": 1400,
            "ethernet_mac_address": "52:54:00:00:00:01"}
    assert network == {
        "links": [link],
        "networks": [{"id": "network0", "type": "ipv4_dhcp", "link": "tap00000001", "network_id": "lan"}],
        "services": [{"type": "dns", "address": "192.0.2.53"}],
    }


def test_network_data_of_ports() -> None:
    """Of a cloud: the network's uuid, the port's, the routes and name servers of the subnet."""
    nic = dataclasses.replace(
        NIC, network="0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11", port="cd9f6d46-4a3a-43ab-a466-994af9db96fc", mtu=0,
        address=NicAddress("192.0.2.7", 24, dhcp=False, gateway="192.0.2.1"),
        routes=(("198.51.100.0/24", "192.0.2.9"),))
    network = read("openstack/latest/network_data.json", dataclasses.replace(GUEST, nics=(nic,)))
    link = {"id": "tapcd9f6d46-4a", "vif_id": nic.port, "type": "bridge", "mtu": None, "ethernet_mac_address": nic.mac}
    dns, mask = [{"type": "dns", "address": "192.0.2.53"}], "255.255.255.0"
    assert network == {"links": [link], "services": dns, "networks": [{
        "id": "network0", "type": "ipv4", "link": link["id"], "network_id": nic.network, "ip_address": "192.0.2.7",
        "netmask": mask, "services": dns, "routes": [
            {"network": guest_data.ANY, "netmask": guest_data.ANY, "gateway": "192.0.2.1"},
            {"network": "198.51.100.0", "netmask": mask, "gateway": "192.0.2.9"}]}]}
    assert read("ec2/latest/meta-data.json", dataclasses.replace(GUEST, nics=(nic,)))["local-ipv4"] == "192.0.2.7"


@pytest.mark.parametrize(("version", "since"), [
    ("1.0", set()), ("2007-01-19", {"local-hostname", "public-hostname", "public-ipv4"}),
    ("2007-08-29", {"instance-type"}), ("2007-10-10", set()),
    ("2007-12-15", {"block-device-mapping", "kernel-id", "ramdisk-id"}), ("2008-02-01", {"placement"}),
    ("2008-09-01", {"instance-action"}), ("latest", set())])
def test_ec2_has_what_its_versions_knew(version: str, since: set[str]) -> None:
    guest = dataclasses.replace(GUEST, kernel="11111111-2222", ramdisk="33333333-2222")
    before = guest_data.EC2_VERSIONS[max(guest_data.EC2_VERSIONS.index(version) - 1, 0)]
    whole = guest_data.ec2_meta_data(guest, version)
    assert set(whole) - set(guest_data.ec2_meta_data(guest, before)) == since
    assert whole["ami-launch-index"] == 2 and whole["security-groups"] == ["default", "web"]
    if "kernel-id" in whole:
        assert (whole["kernel-id"], whole["ramdisk-id"]) == ("aki-11111111", "ari-33333333")


def test_ec2_and_user_data() -> None:
    files = configdrive.config_drive_files(GUEST)
    assert files["openstack/latest/user_data"] == files["ec2/latest/user-data"] == b"#!/bin/sh\necho hi\n"
    ec2 = read("ec2/2009-04-04/meta-data.json")
    assert ec2["instance-type"] == "small"
    assert ec2["public-keys"] == {"0": {"_name": "0=me", "openssh-key": "ssh-ed25519 AAAA me"}}


def test_without_key_and_user_data() -> None:
    bare = Guest(uuid=GUEST.uuid, name="x", hostname="x", seed=b"")
    assert "admin_pass" not in read("openstack/latest/meta_data.json", bare)
    assert "public_keys" not in read("openstack/latest/meta_data.json", bare)
    assert not [name for name in configdrive.config_drive_files(bare) if name.endswith(("user_data", "user-data"))]
    assert configdrive.config_drive_files(bare) == configdrive.config_drive_files(bare)


@pytest.mark.parametrize(("name", "label"), [
    ("web_1", "web-1"), ("Ünïcode", "ncode"), ("-.-", "server"), ("a" * 80, "a" * 63), ("db.example", "db.example"),
])
def test_hostname(name: str, label: str) -> None:
    assert guest_data.guest_hostname(name) == label
