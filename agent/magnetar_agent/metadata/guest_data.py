# SPDX-License-Identifier: GPL-3.0-or-later
"""What a guest is told about itself, in the forms of OpenStack and EC2 (MD-20 to MD-29, MD-43, MD-60).

``tree`` has all of it, by path: ``openstack/VERSION/meta_data.json``, ``ec2/VERSION/meta-data.json``, …. The config
drive holds a part of it, and a metadata service serves it. What a version did not know yet, it does not have. Pure: the
same guest gives the same tree.
"""

from __future__ import annotations

import base64
import ipaddress
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ANY = str(ipaddress.IPv4Address(0))
#: Versions of the OpenStack form (MD-11), by their dates; ``LATEST`` is the newest.
VERSIONS = ("2012-08-10", "2013-04-04", "2013-10-17", "2015-10-15", "2016-06-30", "2016-10-06", "2017-02-22",
            "2018-08-27", "2020-10-14", "latest")
#: Versions of the EC2 form (MD-13).
EC2_VERSIONS = ("1.0", "2007-01-19", "2007-03-01", "2007-08-29", "2007-10-10", "2007-12-15", "2008-02-01", "2008-09-01",
                "2009-04-04", "latest")
#: Versions since which there are random_seed; vendor_data.json; project_id and network_data.json; devices;
#: vendor_data2.json; vf_trusted of NICs; dedicated_cpus.
SEED, VENDOR, NETWORK, DEVICES, VENDOR2, TRUSTED, CPUS = (
    "2013-04-04", "2013-10-17", "2015-10-15", "2016-06-30", "2016-10-06", "2018-08-27", "2020-10-14")


@dataclass(frozen=True)
class Device:
    """A tagged device as meta_data.json lists it (MD-22 to MD-24). *bus* and *address* are where the guest sees it, as
    far as libvirt says; ``none`` where it does not. A share has *share_id* and one tag, by which it is mounted.
    *trusted*: whether its card trusts a NIC."""

    type: str
    bus: str
    tags: tuple[str, ...]
    address: str = "none"
    mac: str | None = None
    serial: str | None = None
    path: str | None = None
    share_id: str | None = None
    trusted: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Only what is known."""
        tags = {"tag": self.tags[0]} if self.share_id else {"tags": list(self.tags)}
        found = {"type": self.type, "share_id": self.share_id, "bus": self.bus, "address": self.address, **tags,
                 "mac": self.mac, "serial": self.serial, "path": self.path}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class Key:
    """A public key, under the name that its user gave it. *type*: ssh, or x509."""

    name: str
    data: str
    type: str = "ssh"


@dataclass(frozen=True)
class NicAddress:
    """The IPv4 address of a NIC: given by *dhcp*, or to be set by the guest with *prefix*, *gateway* and *dns*."""

    address: str
    prefix: int | None
    dhcp: bool
    gateway: str | None = None
    dns: str | None = None


@dataclass(frozen=True)
class NicAddress6:
    """An IPv6 address of a NIC with its *prefix*. *mode*: how the guest gets it (slaac, dhcpv6-stateful,
    dhcpv6-stateless); ``None``: it sets it itself."""

    address: str
    prefix: int
    mode: str | None = None
    gateway: str | None = None
    dns: tuple[str, ...] = ()


@dataclass(frozen=True)
class GuestNic:
    """A NIC: *network* is the uuid or name by which the user knows the network, *port* the uuid of the port where there
    is one, *type* Nova's word for how it is plugged in (bridge, ovs, hw_veb, phy), *routes* are (network, gateway)
    beside the default route, *dns* the name servers where they are not those of the address, *vlans* what it carries
    besides, with the tags that the guest gives its packets."""

    mac: str
    network: str
    port: str | None = None
    type: str = "bridge"
    mtu: int = 0
    address: NicAddress | None = None
    routes: tuple[tuple[str, str], ...] = ()
    dns: tuple[str, ...] = ()
    ipv6: tuple[NicAddress6, ...] = ()
    vlans: tuple[tuple[int, GuestNic], ...] = ()

    @property
    def nameservers(self) -> tuple[str, ...]:
        """Those that the guest is told: DHCP gives others itself."""
        own = self.address.dns if self.address and not self.address.dhcp else None
        return self.dns or ((own,) if own else ())


@dataclass(frozen=True)
class Guest:
    """What a guest is told about itself.

    *hostname* may have a domain. *seed* is 512 random bytes drawn for it. *user_data* is base64; *injected* are files
    for it: path, and content in base64. *image*, *kernel* and *ramdisk* are uuids. *mappings* is EC2's block device
    mapping. *dedicated_cpus* are those of its CPUs that have one of the host for themselves. *vendor_data* is what the
    operator tells all guests, *vendor_data2* what was asked for this one. *public_ipv4* is its floating IP.
    *admin_pass* is a secret.
    """

    uuid: str
    name: str
    hostname: str
    seed: bytes
    project: str = ""
    launch_index: int = 0
    reservation: str = ""
    flavor: str = ""
    image: str | None = None
    kernel: str | None = None
    ramdisk: str | None = None
    availability_zone: str = ""
    keys: tuple[Key, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    user_data: str | None = None
    injected: tuple[tuple[str, str], ...] = ()
    nics: tuple[GuestNic, ...] = ()
    devices: tuple[Device, ...] = ()
    security_groups: tuple[str, ...] = ()
    public_ipv4: str = ""
    mappings: Mapping[str, str] = field(default_factory=lambda: {"ami": "vda", "root": "/dev/vda"})
    dedicated_cpus: tuple[int, ...] = ()
    vendor_data: Mapping[str, Any] = field(default_factory=dict)
    vendor_data2: Mapping[str, Any] = field(default_factory=dict)
    admin_pass: str | None = field(default=None, repr=False)

    @property
    def local_ipv4(self) -> str:
        """The first address that it has."""
        return next((nic.address.address for nic in self.nics if nic.address), "")


def hostname(name: str) -> str:
    """A DNS label made of *name*, as Nova does: lower case, blanks and underscores to hyphens, the rest dropped."""
    spaced = name.lower().replace(" ", "-").replace("_", "-")
    kept = "".join(c for c in spaced if c.isascii() and (c.isalnum() or c in "-."))
    return kept.strip("-.")[:63].rstrip("-.") or "server"


# The tree -----------------------------------------------------------------------------------------------------------
def tree(guest: Guest, ec2: Sequence[str] = EC2_VERSIONS) -> dict[str, bytes]:
    """Path to content of all that the guest is told; of the EC2 form only the versions *ec2*."""
    return {**dict(_openstack(guest)), **dict(_of_ec2(guest, ec2))}


def _openstack(guest: Guest) -> Iterator[tuple[str, bytes]]:
    network = as_json(network_data(guest))
    vendor, vendor2 = as_json(guest.vendor_data), as_json(guest.vendor_data2)
    user_data = None if guest.user_data is None else base64.b64decode(guest.user_data)
    written: dict[tuple[str, ...], bytes] = {}
    for version in VERSIONS:
        folder = f"openstack/{version}"
        known = tuple(one for one in (SEED, NETWORK, DEVICES, TRUSTED, CPUS) if version >= one)
        if known not in written:
            written[known] = as_json(meta_data(guest, version))
        yield f"{folder}/meta_data.json", written[known]
        if user_data is not None:
            yield f"{folder}/user_data", user_data
        if version >= VENDOR:
            yield f"{folder}/vendor_data.json", vendor
        if version >= NETWORK:
            yield f"{folder}/network_data.json", network
        if version >= VENDOR2:
            yield f"{folder}/vendor_data2.json", vendor2
    for place, (_path, content) in zip(_places(guest), guest.injected, strict=True):
        yield f"openstack{place}", base64.b64decode(content)


def _of_ec2(guest: Guest, versions: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for version in versions:
        yield f"ec2/{version}/meta-data.json", as_json(ec2_meta_data(guest, version))
        if guest.user_data is not None:
            yield f"ec2/{version}/user-data", base64.b64decode(guest.user_data)


def _places(guest: Guest) -> list[str]:
    """Where the content of injected files lies, below the folder openstack; as Nova numbers it."""
    return [f"/content/{at:04}" for at in range(len(guest.injected))]


# The documents ------------------------------------------------------------------------------------------------------
def meta_data(guest: Guest, version: str = "latest") -> dict[str, Any]:
    """meta_data.json of a *version*."""
    found: dict[str, Any] = {
        "uuid": guest.uuid,
        "name": guest.name,
        "hostname": guest.hostname,
        "launch_index": guest.launch_index,
        "availability_zone": guest.availability_zone,
    }
    if guest.metadata:
        found["meta"] = dict(guest.metadata)
    if guest.admin_pass is not None:
        found["admin_pass"] = guest.admin_pass
    if guest.keys:
        found["public_keys"] = {key.name: key.data for key in guest.keys}
        found["keys"] = [{"name": key.name, "type": key.type, "data": key.data} for key in guest.keys]
    if guest.injected:
        found["files"] = [{"content_path": place, "path": path}
                          for place, (path, _content) in zip(_places(guest), guest.injected, strict=True)]
    if version >= SEED:
        found["random_seed"] = base64.b64encode(guest.seed).decode()
    if version >= NETWORK:
        found["project_id"] = guest.project
    if version >= DEVICES:
        found["devices"] = [{**one.as_dict(), **(
            {"vf_trusted": one.trusted} if one.type == "nic" and version >= TRUSTED else {})} for one in guest.devices]
    if version >= CPUS:
        found["dedicated_cpus"] = list(guest.dedicated_cpus)
    return found


def network_data(guest: Guest) -> dict[str, Any]:
    """network_data.json: links, networks on them, and services (MD-25 to MD-28)."""
    links, networks, services = [], [], list[str]()
    for link, own, nic in _links(guest):
        links.append({"id": link, "vif_id": nic.port or nic.mac, "mtu": nic.mtu or None, **own})
        found = [_address(nic)] if nic.address or not nic.ipv6 else []
        found += [_address6(one) for one in nic.ipv6]
        networks += [{"link": link, "network_id": nic.network, **one} for one in found]
        named = (*nic.nameservers, *(server for one in nic.ipv6 for server in one.dns))
        services += [one for one in dict.fromkeys(named) if one not in services]
    networks = [{"id": f"network{at}", **one} for at, one in enumerate(networks)]
    return {"links": links, "networks": networks, "services": _dns(services)}


def _links(guest: Guest) -> Iterator[tuple[str, dict[str, Any], GuestNic]]:
    """The id of each link, and what it says besides: of NICs, each followed by its VLANs."""
    for nic in guest.nics:
        link = "tap" + (nic.port[:11] if nic.port else nic.mac.replace(":", "")[-8:])
        yield link, {"type": nic.type, "ethernet_mac_address": nic.mac}, nic
        for tag, vlan in nic.vlans:
            yield (f"{link}.{tag}",
                   {"type": "vlan", "vlan_mac_address": vlan.mac, "vlan_id": tag, "vlan_link": link}, vlan)


def _address(nic: GuestNic) -> dict[str, Any]:
    """How a network says what address there is (MD-24); readers of the type ipv4_dhcp pass over the address."""
    given = nic.address
    found: dict[str, Any] = {"type": "ipv4_dhcp" if given is None or given.dhcp else "ipv4"}
    if given is None:
        return found
    found["ip_address"] = given.address
    if given.prefix is not None:
        found["netmask"] = str(ipaddress.IPv4Network(f"{ANY}/{given.prefix}").netmask)
    if not given.dhcp:
        default = [(f"{ANY}/0", given.gateway)] if given.gateway else []
        found["routes"] = [_route(*route) for route in (*default, *nic.routes)]
        found["services"] = _dns(nic.nameservers)
    return found


def _address6(given: NicAddress6) -> dict[str, Any]:
    """The same of an address of IPv6, in Nova's types."""
    netmask = str(ipaddress.IPv6Network(f"::/{given.prefix}").netmask)
    return {"type": f"ipv6_{given.mode}" if given.mode else "ipv6", "ip_address": given.address, "netmask": netmask,
            "routes": [_route("::/0", given.gateway)] if given.gateway else [], "services": _dns(given.dns)}


def _route(network: str, gateway: str) -> dict[str, str]:
    net = ipaddress.ip_network(network)
    return {"network": str(net.network_address), "netmask": str(net.netmask), "gateway": gateway}


def _dns(servers: Sequence[str]) -> list[dict[str, str]]:
    return [{"type": "dns", "address": str(ipaddress.ip_address(one))} for one in servers]


def ec2_meta_data(guest: Guest, version: str = "latest") -> dict[str, Any]:
    """The document of EC2's form of a *version*; where an object is in it, its keys are further paths below."""
    host = guest.hostname
    found: dict[str, Any] = {
        "ami-id": _short("ami", guest.image) if guest.image else "None",
        "ami-launch-index": guest.launch_index,
        "ami-manifest-path": "FIXME",  # what Nova says
        "hostname": host,
        "instance-id": _short("i", guest.uuid),
        "local-ipv4": guest.local_ipv4,
        "reservation-id": guest.reservation or _short("r", guest.uuid),
        "security-groups": list(guest.security_groups),
    }
    if guest.keys:
        found["public-keys"] = {str(at): {"_name": f"{at}={key.name}", "openssh-key": key.data}
                                for at, key in enumerate(guest.keys)}
    if version >= "2007-01-19":
        found |= {"local-hostname": host, "public-hostname": host, "public-ipv4": guest.public_ipv4}
    if version >= "2007-08-29":
        found["instance-type"] = guest.flavor
    if version >= "2007-12-15":
        found["block-device-mapping"] = dict(guest.mappings)
        found |= {name: _short(prefix, id) for name, prefix, id in (
            ("kernel-id", "aki", guest.kernel), ("ramdisk-id", "ari", guest.ramdisk)) if id}
    if version >= "2008-02-01":
        found["placement"] = {"availability-zone": guest.availability_zone}
    if version >= "2008-09-01":
        found["instance-action"] = "none"
    return found


def _short(prefix: str, id: str) -> str:
    """A uuid in EC2's form."""
    return f"{prefix}-{id.replace('-', '')[:8]}"


def as_json(content: Mapping[str, Any]) -> bytes:
    """The content of a file."""
    return json.dumps(content, sort_keys=True).encode()
