# SPDX-License-Identifier: GPL-3.0-or-later
"""What guests of a host are told: the config drives as they are written, passwords, and the tree that is read now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.metadata.guest_data import NicAddress6
from magnetar_agent.servers import guest_data
from magnetar_agent.settings import AgentSettings
from magnetar_agent.virt.domain import domain
from magnetar_core.errors import InvalidField, InvalidSettings
from tests.support.agent.crash import lives
from tests.support.agent.guest_data import MAC, SECRET, TOLD, drive, kept
from tests.support.agent.resize import folder, image
from tests.unit.agent.conftest import SMALL, Host

NETWORK, PORT = "0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11", "cd9f6d46-4a3a-43ab-a466-994af9db96fc"
NIC = {"bridge": "br0", "mac": MAC, "address": "192.0.2.7/24", "tag": "front", "told": {
    "network_id": NETWORK, "port_id": PORT, "gateway": "192.0.2.1", "mtu": 1400, "dns_nameservers": ["192.0.2.53"],
    "host_routes": [{"destination": "198.51.100.0/24", "nexthop": "192.0.2.9"}]}}


def test_a_cloud_says_what_the_host_does_not_know(host: Host) -> None:
    vendor = {"static": {"site": "lab"}, "dynamic": {"join": {"domain": "d"}}}
    host.server(networks=[NIC], guest_data=TOLD, vendor_data=vendor)
    meta = drive(host)
    for name in ("name", "hostname", "project_id", "launch_index", "availability_zone"):
        assert meta[name] == TOLD[name]
    assert meta["public_keys"] == {"my key": "ssh-ed25519 AAAA me"} and meta["keys"] == TOLD["keys"]
    ec2 = drive(host, "ec2/latest/meta-data.json")
    assert (ec2["instance-type"], ec2["ami-launch-index"], ec2["reservation-id"]) == ("m1.tiny", 2, "r-abc")
    assert (ec2["local-ipv4"], ec2["security-groups"]) == ("192.0.2.7", ["default", "web"])
    network = drive(host, "openstack/latest/network_data.json")
    assert network["links"][0]["vif_id"] == PORT and network["links"][0]["mtu"] == 1400
    assert network["networks"][0]["network_id"] == NETWORK and len(network["networks"][0]["routes"]) == 2
    assert network["services"] == [{"type": "dns", "address": "192.0.2.53"}]
    assert drive(host, "openstack/latest/vendor_data.json") == vendor["static"]
    assert drive(host, "openstack/latest/vendor_data2.json") == vendor["dynamic"]
    document = host.agent.host.documents.find("server", "web1")
    assert document
    tree = guest_data.guest_metadata_tree(host.agent.host, document)
    assert json.loads(tree["openstack/latest/meta_data.json"]) == meta
    assert json.loads(tree["ec2/1.0/meta-data.json"])["hostname"] == TOLD["hostname"]
    assert "guest_data" not in host.show() and not host.server(networks=[NIC], guest_data=TOLD).changed


def test_a_password_is_told_once(host: Host) -> None:
    seen = host.ensure("server", "web1", {"flavor": SMALL, "admin_pass": SECRET}, dry_run=True)
    done = host.server(admin_pass=SECRET)
    assert [one.verb for one in done.steps] == [one.verb for one in seen.steps]
    assert drive(host)["admin_pass"] == SECRET and SECRET not in kept(host)
    assert SECRET not in json.dumps([done.diff, done.resource])
    document = host.agent.host.documents.find("server", "web1")
    assert document and SECRET.encode() not in b"".join(guest_data.guest_metadata_tree(host.agent.host,
                                                                                       document).values())
    host.ensure("flavor", "other", {**SMALL, "ram": 128})
    host.server(power="off", flavor="other")  # the drive is written again
    assert "admin_pass" not in drive(host)
    assert drive(host, "ec2/latest/meta-data.json")["instance-type"] == "other"


def test_a_password_that_nothing_tells_is_forgotten(host: Host) -> None:
    host.server(config_drive=False, admin_pass=SECRET)
    assert SECRET not in kept(host)
    host.server(admin_pass=SECRET)  # asked for again, when the guest runs
    assert SECRET not in kept(host)


def test_a_rebuild_tells_another(host: Host) -> None:
    image(host, "system")
    host.server(image="system", admin_pass=SECRET)
    before = drive(host)["random_seed"]
    told = {**TOLD, "keys": [], "name": "Renamed"}
    host.event("rebuild", "r1", "web1", image="system", admin_pass="Another-1", guest_data=told)
    assert (drive(host)["admin_pass"], drive(host)["name"]) == ("Another-1", "Renamed")
    assert "keys" not in drive(host) and drive(host)["random_seed"] != before and "Another-1" not in kept(host)


def test_a_rescue_has_a_drive_of_its_own(host: Host) -> None:
    image(host, "system")
    host.server(image="system", admin_pass=SECRET)
    host.ensure("server", "web1", {"rescue": {}, "admin_pass": "Rescue-1"})
    rescued = drive(host, name="rescue.config.iso")
    assert rescued["admin_pass"] == "Rescue-1" and "Rescue-1" not in kept(host)
    assert {**rescued, "admin_pass": SECRET} == drive(host)
    disks = {disk.target: disk.path.name for disk in host.fake.domains()[host.show()["id"]].disks}
    assert disks["sdo"] == "rescue.config.iso"
    host.event("reboot", "r1", "web1", type="hard")
    host.ensure("server", "web1", {"rescue": None})
    assert not (folder(host) / "rescue.config.iso").exists() and drive(host)["admin_pass"] == SECRET


def test_a_move_and_a_resize_write_the_drive_again(host: Host) -> None:
    host.server(guest_data=TOLD)
    assert host.server(power="off").steps[0].verb != "drive"
    moved = host.server(guest_data={**TOLD, "availability_zone": "az3"}, power="running")
    assert [one.verb for one in moved.steps] == ["record", "drive", "start"]
    assert drive(host)["availability_zone"] == "az3"
    host.server(guest_data={**TOLD, "availability_zone": "az4"})  # it runs: its drive stays as it is
    assert drive(host)["availability_zone"] == "az3"


def test_what_is_attached_later_is_in_the_tree(host: Host) -> None:
    host.server()
    host.ensure("volume", "data", {"size": 1})
    host.ensure("volume_attachment", "web1:data", {"server": "web1", "volume": "data", "tag": "db"})
    host.ensure("interface_attachment", f"web1:{MAC}", {"server": "web1", **NIC})
    document = host.agent.host.documents.find("server", "web1")
    assert document
    meta = json.loads(guest_data.guest_metadata_tree(host.agent.host, document)["openstack/latest/meta_data.json"])
    assert [(one["type"], one["tags"], one["bus"]) for one in meta["devices"]] == [
        ("nic", ["front"], "pci"), ("disk", ["db"], "pci")]
    assert drive(host)["devices"] == []
    found = guest_data.build_guest(host.agent.host, document)
    assert found.mappings == {"ami": "vda", "root": "/dev/vda", "ebs0": "/dev/vdb"}
    assert found.nics[0].network == NETWORK


def test_addresses_of_ipv6_that_a_cloud_tells(host: Host) -> None:
    told = {"address": "fd00:1::5/64", "mode": "slaac", "gateway": "fd00:1::1", "dns_nameservers": ["fd00::53"]}
    host.server(networks=[{**NIC, "told": {"ipv6": [told]}}])
    document = host.agent.host.documents.find("server", "web1")
    assert document
    (nic,) = guest_data.build_guest(host.agent.host, document).nics
    assert nic.ipv6 == (NicAddress6("fd00:1::5", 64, "slaac", "fd00:1::1", ("fd00::53",)),)
    with pytest.raises(InvalidField, match="ipv6"):
        host.ensure("server", "web2", {"flavor": SMALL, "networks": [{**NIC, "told": {
            "ipv6": [{**told, "mode": "guess"}]}}]})


DISK = """<domain><uuid>u</uuid><devices><disk><target dev="d" bus="{bus}"/>{address}</disk>
<interface><mac address="m"/><address type="pci" domain="0x0000" bus="0x01" slot="0x1f" function="0x2"/></interface>
</devices></domain>"""


@pytest.mark.parametrize(("bus", "address", "place"), [
    ("virtio", '<address type="pci" domain="0x0000" bus="0x04" slot="0x00" function="0x0"/>', ("pci", "0000:04:00.0")),
    ("scsi", '<address type="drive" controller="1" bus="0" target="2" unit="3"/>', ("scsi", "1:0:2:3")),
    ("ide", '<address type="drive" controller="0" bus="1" target="0" unit="0"/>', ("ide", "1:0")),
    ("sata", '<address type="drive" controller="0" bus="0" target="0" unit="4"/>', ("sata", "0:4")),
    ("usb", '<address type="usb" bus="0" port="2"/>', ("usb", "0:2")), ("virtio", "", None),
    ("virtio", '<address type="ccw"/>', None)])
def test_places_of_devices(bus: str, address: str, place: Any) -> None:
    seen = domain.parse_domain_xml(DISK.format(bus=bus, address=address))
    assert seen.disks[0].place == place and seen.nics[0].place == ("pci", "0000:01:1f.2")


def test_the_operators_file(tmp_path: Path) -> None:
    file = tmp_path / "vendor.json"
    file.write_text('{"site": "lab"}')
    host = Host(tmp_path / "host", vendordata_jsonfile_path=file)
    host.start()
    host.server()
    assert drive(host, "openstack/latest/vendor_data.json") == {"site": "lab"}
    file.write_text("[]")  # it was good when the agent started
    host.ensure("server", "web2", {"flavor": SMALL})
    host.agent.close()


@pytest.mark.parametrize("content", ["", "[]", "{", '"text"', "{" + " " * 2**18 + "}", "[" * 5000], ids=range(6))
def test_a_file_that_is_no_object_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "vendor.json"
    file.write_text(content)
    with pytest.raises(InvalidSettings, match="vendordata_jsonfile_path"):
        AgentSettings(vendordata_jsonfile_path=file)
    with pytest.raises(InvalidSettings, match="cannot be read"):
        AgentSettings(vendordata_jsonfile_path=tmp_path / "none")


@pytest.mark.parametrize("bad", [{"admin_pass": ""}, {"admin_pass": "x" * 256}, {"guest_data": {"name": "x"}},
                                 {"networks": [{**NIC, "told": {"dns_nameservers": ["192.0.2.256"]}}]},
                                 {"networks": [{**NIC, "told": {"gateway": "none at all"}}]},
                                 {"networks": [{**NIC, "told": {"host_routes": [
                                     {"destination": "192.0.2.1/24", "nexthop": "192.0.2.1"}]}}]},
                                 {"guest_data": {**TOLD, "launch_index": -1}}, {"vendor_data": {"static": []}}])
def test_bad_values_are_refused(host: Host, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidField):
        host.server(**bad)


@pytest.mark.slow
@pytest.mark.parametrize("repeat", [True, False])
@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("what", ["create", "rescue", "rebuild"])
def test_death_at_every_change_loses_no_password(tmp_path: Path, what: str, late: bool, repeat: bool) -> None:
    """The guest is told it, or it is not there yet; afterwards only the drive has it."""
    for life in lives(tmp_path, late):
        host = life.host
        image(host, "system")
        if what != "create":
            host.server(image="system")
        life.ends_in(_ask, host, what)
        host.restart()
        if repeat:
            _ask(host, what)
        if host.agent.host.documents.find("server", "web1"):
            _is_told(host, what, repeat)


def _ask(host: Host, what: str) -> None:
    if what == "rebuild":
        host.event("rebuild", "r1", "web1", image="system", admin_pass=SECRET)
    else:
        host.server(image="system", admin_pass=SECRET, **({"rescue": {}} if what == "rescue" else {}))


def _is_told(host: Host, what: str, repeated: bool) -> None:
    name = "rescue.config.iso" if what == "rescue" else "config.iso"
    begun = (folder(host) / name).exists() and (what != "rebuild" or "admin_pass" in drive(host))
    assert begun or not repeated
    if begun:
        assert drive(host, name=name)["admin_pass"] == SECRET
    assert SECRET not in kept(host)
