# SPDX-License-Identifier: GPL-3.0-or-later
"""The metadata of a guest, in the formats of OpenStack and EC2.

``metadata_tree`` has all of it, by path: ``openstack/VERSION/meta_data.json``, ``ec2/VERSION/meta-data.json``, …. The
config drive holds a part of it, and a metadata service serves it. A version lacks the fields that came after it. Pure:
the same guest gives the same tree.
"""

from __future__ import annotations

import base64
import ipaddress
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ANY = str(ipaddress.IPv4Address(0))
#: Versions of the OpenStack format, by their dates; ``latest`` is the newest.
VERSIONS = ("2012-08-10", "2013-04-04", "2013-10-17", "2015-10-15", "2016-06-30", "2016-10-06", "2017-02-22",
            "2018-08-27", "2020-10-14", "latest")
#: Versions of the EC2 format.
EC2_VERSIONS = ("1.0", "2007-01-19", "2007-03-01", "2007-08-29", "2007-10-10", "2007-12-15", "2008-02-01", "2008-09-01",
                "2009-04-04", "latest")
#: Versions that introduced random_seed; vendor_data.json; project_id and network_data.json; devices; vendor_data2.json;
#: vf_trusted of NICs; dedicated_cpus.
SEED, VENDOR, NETWORK, DEVICES, VENDOR2, TRUSTED, CPUS = (
    "2013-04-04", "2013-10-17", "2015-10-15", "2016-06-30", "2016-10-06", "2018-08-27", "2020-10-14")


@dataclass(frozen=True)
class Device:
    """A tagged device in meta_data.json. *bus*, *address*: in the guest, as assigned by libvirt; the address is
    ``none`` if libvirt has none. *tags*: for a share, only its mount tag, together with *share_id*. *trusted*: for a
    NIC, whether it is in SR-IOV trusted mode."""

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
        """Return the device as an item of ``devices`` in meta_data.json. Fields with the value ``None`` are left out.
        """
        tags = {"tag": self.tags[0]} if self.share_id else {"tags": list(self.tags)}
        fields = {"type": self.type, "share_id": self.share_id, "bus": self.bus, "address": self.address, **tags,
                  "mac": self.mac, "serial": self.serial, "path": self.path}
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True)
class Key:
    """A public key. *name*: the name of the keypair. *type*: ssh or x509."""

    name: str
    data: str
    type: str = "ssh"


@dataclass(frozen=True)
class NicAddress:
    """The IPv4 address of a NIC. *dhcp*: whether the guest gets it by DHCP; otherwise the guest configures *prefix*,
    *gateway* and *dns* itself."""

    address: str
    prefix: int | None
    dhcp: bool
    gateway: str | None = None
    dns: str | None = None


@dataclass(frozen=True)
class NicAddress6:
    """An IPv6 address of a NIC. *mode*: how the guest gets it: slaac, dhcpv6-stateful, dhcpv6-stateless; ``None``: the
    guest configures it itself."""

    address: str
    prefix: int
    mode: str | None = None
    gateway: str | None = None
    dns: tuple[str, ...] = ()


@dataclass(frozen=True)
class GuestNic:
    """A NIC in network_data.json. *network*: the uuid or name that users know. *port*: the uuid of the Neutron port, if
    any. *type*: Nova's link type (bridge, ovs, hw_veb, phy). *routes*: pairs (network, gateway), without the default
    route. *dns*: the name servers, which take precedence over ``address.dns``. *vlans*: pairs (VLAN tag, NIC) for a
    trunk."""

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
        """Return the name servers to put into the metadata; none if the guest gets them by DHCP."""
        address_dns = self.address.dns if self.address and not self.address.dhcp else None
        return self.dns or ((address_dns,) if address_dns else ())


@dataclass(frozen=True)
class Guest:
    """The data of a guest that its metadata are made from.

    *hostname*: may include a domain. *seed*: 512 random bytes. *user_data*: base64. *injected*: files as pairs (path,
    base64 content). *image*, *kernel*, *ramdisk*: uuids. *mappings*: EC2's block device mapping. *dedicated_cpus*: the
    guest's CPUs that are pinned to a dedicated host CPU. *vendor_data*: the operator's data for all guests;
    *vendor_data2*: for this guest. *public_ipv4*: its floating IP. *admin_pass*: secret, never logged.
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
        """Return the first IPv4 address of the guest; "" if it has none."""
        return next((nic.address.address for nic in self.nics if nic.address), "")


def guest_hostname(name: str) -> str:
    """Return a host name made from the server name *name*, as Nova does: lower case, hyphens for blanks and
    underscores, without other special characters."""
    spaced = name.lower().replace(" ", "-").replace("_", "-")
    label = "".join(c for c in spaced if c.isascii() and (c.isalnum() or c in "-."))
    return label.strip("-.")[:63].rstrip("-.") or "server"


# The tree -----------------------------------------------------------------------------------------------------------
def metadata_tree(guest: Guest, ec2: Sequence[str] = EC2_VERSIONS) -> dict[str, bytes]:
    """Return the content of each file of the guest's metadata by its path, such as ``openstack/latest/meta_data.json``.
    *ec2*: the versions of the EC2 format to include."""
    return {**dict(_openstack(guest)), **dict(_of_ec2(guest, ec2))}


def _openstack(guest: Guest) -> Iterator[tuple[str, bytes]]:
    network = json_bytes(network_data(guest))
    vendor, vendor2 = json_bytes(guest.vendor_data), json_bytes(guest.vendor_data2)
    user_data = None if guest.user_data is None else base64.b64decode(guest.user_data)
    written: dict[tuple[str, ...], bytes] = {}
    for version in VERSIONS:
        folder = f"openstack/{version}"
        features = tuple(since for since in (SEED, NETWORK, DEVICES, TRUSTED, CPUS) if version >= since)
        if features not in written:
            written[features] = json_bytes(meta_data(guest, version))
        yield f"{folder}/meta_data.json", written[features]
        if user_data is not None:
            yield f"{folder}/user_data", user_data
        if version >= VENDOR:
            yield f"{folder}/vendor_data.json", vendor
        if version >= NETWORK:
            yield f"{folder}/network_data.json", network
        if version >= VENDOR2:
            yield f"{folder}/vendor_data2.json", vendor2
    for place, (_path, content) in zip(_file_paths(guest), guest.injected, strict=True):
        yield f"openstack{place}", base64.b64decode(content)


def _of_ec2(guest: Guest, versions: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for version in versions:
        yield f"ec2/{version}/meta-data.json", json_bytes(ec2_meta_data(guest, version))
        if guest.user_data is not None:
            yield f"ec2/{version}/user-data", base64.b64decode(guest.user_data)


def _file_paths(guest: Guest) -> list[str]:
    """Return the paths of the *guest*'s injected files in the folder ``openstack``, such as ``/content/0000``."""
    return [f"/content/{at:04}" for at in range(len(guest.injected))]


# The documents ------------------------------------------------------------------------------------------------------
def meta_data(guest: Guest, version: str = "latest") -> dict[str, Any]:
    """Return the content of meta_data.json for *guest* in a *version* of the OpenStack format, such as 2016-10-06."""
    document: dict[str, Any] = {
        "uuid": guest.uuid,
        "name": guest.name,
        "hostname": guest.hostname,
        "launch_index": guest.launch_index,
        "availability_zone": guest.availability_zone,
    }
    if guest.metadata:
        document["meta"] = dict(guest.metadata)
    if guest.admin_pass is not None:
        document["admin_pass"] = guest.admin_pass
    if guest.keys:
        document["public_keys"] = {key.name: key.data for key in guest.keys}
        document["keys"] = [{"name": key.name, "type": key.type, "data": key.data} for key in guest.keys]
    if guest.injected:
        document["files"] = [{"content_path": place, "path": path}
                             for place, (path, _content) in zip(_file_paths(guest), guest.injected, strict=True)]
    if version >= SEED:
        document["random_seed"] = base64.b64encode(guest.seed).decode()
    if version >= NETWORK:
        document["project_id"] = guest.project
    if version >= DEVICES:
        document["devices"] = [{**device.as_dict(), **(
            {"vf_trusted": device.trusted} if device.type == "nic" and version >= TRUSTED else {})}
                               for device in guest.devices]
    if version >= CPUS:
        document["dedicated_cpus"] = list(guest.dedicated_cpus)
    return document


def network_data(guest: Guest) -> dict[str, Any]:
    """Return the content of network_data.json for *guest*: its links, the networks on these links, and the DNS
    services."""
    links, networks, services = [], [], list[str]()
    for link, link_fields, nic in _links(guest):
        links.append({"id": link, "vif_id": nic.port or nic.mac, "mtu": nic.mtu or None, **link_fields})
        addresses = [_address(nic)] if nic.address or not nic.ipv6 else []
        addresses += [_address6(address) for address in nic.ipv6]
        networks += [{"link": link, "network_id": nic.network, **address} for address in addresses]
        named = (*nic.nameservers, *(server for address in nic.ipv6 for server in address.dns))
        services += [server for server in dict.fromkeys(named) if server not in services]
    networks = [{"id": f"network{at}", **network} for at, network in enumerate(networks)]
    return {"links": links, "networks": networks, "services": _dns(services)}


def _links(guest: Guest) -> Iterator[tuple[str, dict[str, Any], GuestNic]]:
    """Yield (id, fields, NIC) for each link in network_data.json: each NIC, followed by its VLANs."""
    for nic in guest.nics:
        link = "tap" + (nic.port[:11] if nic.port else nic.mac.replace(":", "")[-8:])
        yield link, {"type": nic.type, "ethernet_mac_address": nic.mac}, nic
        for tag, vlan in nic.vlans:
            yield (f"{link}.{tag}",
                   {"type": "vlan", "vlan_mac_address": vlan.mac, "vlan_id": tag, "vlan_link": link}, vlan)


def _address(nic: GuestNic) -> dict[str, Any]:
    """Return the IPv4 part of a network in network_data.json for *nic*. With the type ``ipv4_dhcp``, guests ignore the
    address."""
    address = nic.address
    fields: dict[str, Any] = {"type": "ipv4_dhcp" if address is None or address.dhcp else "ipv4"}
    if address is None:
        return fields
    fields["ip_address"] = address.address
    if address.prefix is not None:
        fields["netmask"] = str(ipaddress.IPv4Network(f"{ANY}/{address.prefix}").netmask)
    if not address.dhcp:
        default = [(f"{ANY}/0", address.gateway)] if address.gateway else []
        fields["routes"] = [_route(*route) for route in (*default, *nic.routes)]
        fields["services"] = _dns(nic.nameservers)
    return fields


def _address6(address: NicAddress6) -> dict[str, Any]:
    """Return the fields of a network in network_data.json for an IPv6 address, with Nova's types, such as
    ``ipv6_slaac``."""
    netmask = str(ipaddress.IPv6Network(f"::/{address.prefix}").netmask)
    return {"type": f"ipv6_{address.mode}" if address.mode else "ipv6", "ip_address": address.address,
            "netmask": netmask,
            "routes": [_route("::/0", address.gateway)] if address.gateway else [], "services": _dns(address.dns)}


def _route(network: str, gateway: str) -> dict[str, str]:
    net = ipaddress.ip_network(network)
    return {"network": str(net.network_address), "netmask": str(net.netmask), "gateway": gateway}


def _dns(servers: Sequence[str]) -> list[dict[str, str]]:
    return [{"type": "dns", "address": str(ipaddress.ip_address(server))} for server in servers]


def ec2_meta_data(guest: Guest, version: str = "latest") -> dict[str, Any]:
    """Return the content of EC2's ``meta-data`` folder for *guest* in a *version* of the EC2 format. A nested dict is a
    subfolder."""
    host = guest.hostname
    document: dict[str, Any] = {
        "ami-id": _short("ami", guest.image) if guest.image else "None",
        "ami-launch-index": guest.launch_index,
        "ami-manifest-path": "FIXME",  # Nova's value
        "hostname": host,
        "instance-id": _short("i", guest.uuid),
        "local-ipv4": guest.local_ipv4,
        "reservation-id": guest.reservation or _short("r", guest.uuid),
        "security-groups": list(guest.security_groups),
    }
    if guest.keys:
        document["public-keys"] = {str(at): {"_name": f"{at}={key.name}", "openssh-key": key.data}
                                   for at, key in enumerate(guest.keys)}
    if version >= "2007-01-19":
        document |= {"local-hostname": host, "public-hostname": host, "public-ipv4": guest.public_ipv4}
    if version >= "2007-08-29":
        document["instance-type"] = guest.flavor
    if version >= "2007-12-15":
        document["block-device-mapping"] = dict(guest.mappings)
        document |= {name: _short(prefix, id) for name, prefix, id in (
            ("kernel-id", "aki", guest.kernel), ("ramdisk-id", "ari", guest.ramdisk)) if id}
    if version >= "2008-02-01":
        document["placement"] = {"availability-zone": guest.availability_zone}
    if version >= "2008-09-01":
        document["instance-action"] = "none"
    return document


def _short(prefix: str, id: str) -> str:
    """Return the uuid *id* in EC2's form: *prefix* and eight hexadecimal digits, such as ``i-1a2b3c4d``."""
    return f"{prefix}-{id.replace('-', '')[:8]}"


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """Return *content* as JSON, encoded for a file."""
    return json.dumps(content, sort_keys=True).encode()
