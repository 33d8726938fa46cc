# SPDX-License-Identifier: GPL-3.0-or-later
"""The content of a config drive: what the guest reads of its metadata (MD-20 to MD-29, MD-43, MD-75 to MD-81)."""

from __future__ import annotations

import base64
import ipaddress
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

LABEL = "config-2"
#: Documents fill whole sectors of the drive, so that drives of other guests have the same layout (see ``virt.iso``).
SECTOR = 2048
ANY = str(ipaddress.IPv4Address(0))
#: Version folders (MD-11). Each holds the same files; what a version did not know yet is harmless to its readers.
VERSIONS = ("2012-08-10", "2013-04-04", "2013-10-17", "2015-10-15", "2016-06-30", "2016-10-06", "2017-02-22",
            "2018-08-27", "2020-10-14", "latest")
EC2_VERSIONS = ("2009-04-04", "latest")


@dataclass(frozen=True)
class Device:
    """A tagged device as meta_data.json lists it (MD-22, MD-23)."""

    type: str
    bus: str
    tags: tuple[str, ...]
    mac: str | None = None
    serial: str | None = None
    path: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Only what is known; the PCI address is the guest's matter at first boot."""
        found = {"type": self.type, "bus": self.bus, "tags": list(self.tags), "mac": self.mac, "serial": self.serial,
                 "path": self.path}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class NicAddress:
    """The IPv4 address of a NIC: given by *dhcp*, or to be set by the guest with *prefix*, *gateway* and *dns*."""

    address: str
    prefix: int | None
    dhcp: bool
    gateway: str | None = None
    dns: str | None = None


@dataclass(frozen=True)
class Guest:
    """What a guest is told about itself. *user_data* is base64; *seed* is 512 random bytes drawn for it; *injected* are
    files for it: path, and content in base64."""

    uuid: str
    name: str
    seed: bytes
    flavor: str = ""
    image: str = ""
    project: str = ""
    availability_zone: str | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    user_data: str | None = None
    injected: tuple[tuple[str, str], ...] = ()
    macs: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    mtus: tuple[int, ...] = ()
    addresses: tuple[NicAddress | None, ...] = ()
    devices: tuple[Device, ...] = ()
    dns: tuple[str, ...] = ()
    vendor_data: Mapping[str, Any] = field(default_factory=dict)


def hostname(name: str) -> str:
    """A DNS label made of *name*, as Nova does: lower case, blanks and underscores to hyphens, the rest dropped."""
    spaced = name.lower().replace(" ", "-").replace("_", "-")
    kept = "".join(c for c in spaced if c.isascii() and (c.isalnum() or c in "-."))
    return kept.strip("-.")[:63].rstrip("-.") or "server"


def files(guest: Guest) -> dict[str, bytes]:
    """Path to content of every file of the drive. Pure: the same guest gives the same drive."""
    meta, network, ec2 = _json(_meta_data(guest)), _json(_network_data(guest)), _json(_ec2(guest))
    vendor, vendor2 = _json(guest.vendor_data), _json({})
    user_data = base64.b64decode(guest.user_data) if guest.user_data else None
    found: dict[str, bytes] = {}
    for version in VERSIONS:
        folder = f"openstack/{version}"
        found[f"{folder}/meta_data.json"] = meta
        found[f"{folder}/network_data.json"] = network
        found[f"{folder}/vendor_data.json"] = vendor
        found[f"{folder}/vendor_data2.json"] = vendor2
        if user_data is not None:
            found[f"{folder}/user_data"] = user_data
    for version in EC2_VERSIONS:
        found[f"ec2/{version}/meta-data.json"] = ec2
        if user_data is not None:
            found[f"ec2/{version}/user-data"] = user_data
    for place, (_path, content) in zip(_places(guest), guest.injected, strict=True):
        found[f"openstack{place}"] = base64.b64decode(content)
    return found


def _places(guest: Guest) -> list[str]:
    """Where the content of injected files lies, below the folder openstack; as Nova numbers it."""
    return [f"/content/{at:04}" for at in range(len(guest.injected))]


def _meta_data(guest: Guest) -> dict[str, Any]:
    host = hostname(guest.name)
    found: dict[str, Any] = {
        "uuid": guest.uuid,
        "name": guest.name,
        "hostname": host,
        "launch_index": 0,
        "project_id": guest.project,
        "availability_zone": guest.availability_zone or "",
        "random_seed": base64.b64encode(guest.seed).decode(),
        "meta": dict(guest.metadata),
        "devices": [device.as_dict() for device in guest.devices],
        "dedicated_cpus": [],
    }
    if guest.keys:
        found["public_keys"] = dict(guest.keys)
        found["keys"] = [{"name": name, "type": "ssh", "data": key} for name, key in guest.keys.items()]
    if guest.injected:
        found["files"] = [{"content_path": place, "path": path}
                          for place, (path, _content) in zip(_places(guest), guest.injected, strict=True)]
    return found


def _network_data(guest: Guest) -> dict[str, Any]:
    links = [
        {"id": f"tap{mac.replace(':', '')[-8:]}", "vif_id": mac, "type": "bridge", "mtu": mtu or None,
         "ethernet_mac_address": mac}
        for mac, mtu in zip(guest.macs, guest.mtus or (0,) * len(guest.macs), strict=True)
    ]
    given = guest.addresses or (None,) * len(guest.macs)
    networks = [
        {"id": f"network{at}", "link": link["id"], "network_id": name, **_address(address)}
        for at, (link, name, address) in enumerate(zip(links, guest.networks, given, strict=True))
    ]
    static = [one.dns for one in given if one and one.dns and not one.dhcp]
    services = [{"type": "dns", "address": address} for address in _addresses((*guest.dns, *static))]
    return {"links": links, "networks": networks, "services": services}


def _address(given: NicAddress | None) -> dict[str, Any]:
    """How a network says what address there is (MD-24); readers of the type ipv4_dhcp pass over the address."""
    found: dict[str, Any] = {"type": "ipv4_dhcp" if given is None or given.dhcp else "ipv4"}
    if given is None:
        return found
    found["ip_address"] = given.address
    if given.prefix is not None:
        found["netmask"] = str(ipaddress.IPv4Network(f"0.0.0.0/{given.prefix}").netmask)
    if not given.dhcp:
        found["routes"] = [{"network": ANY, "netmask": ANY, "gateway": given.gateway}] if given.gateway else []
    return found


def _ec2(guest: Guest) -> dict[str, Any]:
    host = hostname(guest.name)
    number = f"i-{guest.uuid.replace('-', '')[:8]}"
    return {
        "ami-id": guest.image or "None",
        "ami-launch-index": 0,
        "ami-manifest-path": "",
        "block-device-mapping": {"ami": "vda", "root": "/dev/vda"},
        "hostname": host,
        "instance-action": "none",
        "instance-id": number,
        "instance-type": guest.flavor,
        "local-hostname": host,
        "local-ipv4": "",
        "placement": {"availability-zone": guest.availability_zone or ""},
        "public-hostname": host,
        "public-ipv4": "",
        "public-keys": {str(at): {"_name": f"{at}={name}", "openssh-key": key}
                        for at, (name, key) in enumerate(guest.keys.items())},
        "reservation-id": f"r-{guest.uuid.replace('-', '')[:8]}",
        "security-groups": [],
    }


def _addresses(given: Iterable[str]) -> list[str]:
    return [str(ipaddress.ip_address(address)) for address in given]


def _json(content: Mapping[str, Any]) -> bytes:
    text = json.dumps(content, sort_keys=True).encode()
    return text + b"\n" * (-len(text) % SECTOR)
