# SPDX-License-Identifier: GPL-3.0-or-later
"""network: a network that servers' NICs connect to."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any, Optional

from ..errors import InvalidField
from ..fields import FIXED, READ, Field
from ..hardware.pci import PHYSICAL_NETWORK, VNIC_TYPES
from ..values import Boolean, Choices, Integer, ListOf, Nullable, Text, Uuid
from ..versions import Version
from .common import NAME, REFERENCE, OrNone, Resource

DEVICE = Text(1, 15, r"[A-Za-z0-9][A-Za-z0-9_.\-]*", "must be a network device name of at most 15 characters")
CIDR = Text(9, 18, r"\d{1,3}(\.\d{1,3}){3}/\d{1,2}", "must be an IPv4 network such as 192.168.100.0/24")
NIC_ADDRESS = Text(7, 18, r"\d{1,3}(\.\d{1,3}){3}(/\d{1,2})?", "must be an IPv4 address such as 192.168.100.7")
ADDRESS = Text(7, 15, r"\d{1,3}(\.\d{1,3}){3}", "must be an IPv4 address")
#: Uuid of a port in OVN.
PORT = Uuid()
PHYSICAL = Text(1, 63, PHYSICAL_NETWORK, "must be the name of a physical network")
VLAN = Integer(1, 4094)
VNIC_TYPE = Choices(*VNIC_TYPES)
#: Mbit/s of a virtual function.
TX_RATE = Integer(0, 2**31 - 1)
PROVIDER = Choices("geneve", "flat", "vlan")
NIC_MODEL = Choices("virtio", "e1000e", "e1000", "rtl8139")
#: Maximum number of security groups of a NIC.
MOST_GROUPS = 100
GROUPS = Nullable(ListOf(Uuid(), MOST_GROUPS, unique=True))


class AllowedAddress(Text):
    """The value type of IP addresses and IP networks (``192.0.2.0/28``)."""

    def __init__(self) -> None:
        super().__init__(2, 49, r"[0-9a-fA-F.:/]*", "must be an IP address or a network such as 192.0.2.0/28")

    def check(self, value: Any, path: str, version: Optional[Version] = None) -> Any:
        """Override ``Text.check``: return *value* in normal form, which for a single address has no prefix length."""
        text = super().check(value, path, version)
        try:
            net = ip_network(text)
        except ValueError:
            raise InvalidField(path, "must be an IP address or a network such as 192.0.2.0/28", value) from None
        return str(net.network_address) if net.prefixlen == net.max_prefixlen else str(net)


#: Addresses of a NIC in addition to its own.
ALLOWED = ListOf(AllowedAddress(), 64)


class Network(Resource):
    """An existing bridge of the host, or a libvirt network (NAT or isolated) with DHCP that the agent creates."""

    noun, plural = "network", "networks"
    sample_actions = ("record", "make")
    of_clouds = frozenset(("shared", "external", "provider_network_type", "provider_physical_network",
                           "provider_segmentation_id"))

    name = Field(Text(1, 63, r"[A-Za-z0-9][A-Za-z0-9_.\-]*", "may have letters, digits, and . - _ only"),
                 "The name of the network; also its name in libvirt.", required=True, on=FIXED, sample="lan")
    mode = Field(Choices("bridge", "nat", "isolated", "ovn"),
                 "bridge: an existing bridge; nat: routed out by address translation; isolated: guests and host only; "
                 "ovn: over all hosts of a cloud, by OVN.",
                 default="nat", on=FIXED, sample="nat")
    bridge = Field(DEVICE, "The bridge: an existing one for mode bridge; otherwise its name, which is generated when "
                   "omitted.", on=FIXED,
                   sample="magbr0")
    cidr = Field(CIDR, "Addresses of the network; the first is the host's, or the router's of mode ovn. "
                 "Needed for nat and isolated.", on=FIXED,
                 sample="192.168.100.0/24")
    dhcp = Field(Boolean(), "Whether the host answers DHCP on it; nat and isolated only.", on=FIXED,
                 sample=True)
    dhcp_start = Field(Nullable(ADDRESS), "First address given by DHCP.", on=FIXED, sample="192.168.100.2")
    dhcp_end = Field(Nullable(ADDRESS), "Last address given by DHCP.", on=FIXED, sample="192.168.100.254")
    domain = Field(Nullable(NAME), "DNS domain of the guests; in a cloud for mode ovn, whose guests find one another "
                   "there by name.", default=None, on=FIXED, sample="lab.example")
    mtu = Field(Integer(0, 65535), "MTU; 0 for the default.", default=0, on=FIXED, aliases=("mtu_size",), sample=1500)
    qos_policy = Field(OrNone(REFERENCE), "QoS policy of its ports, by name or uuid, of a cloud with OVN; V(none) for "
                       "none. As it is, of a new one the project's default policy, when omitted.", sample=None)
    shared = Field(Boolean(), "Whether all projects of a cloud may use it; administrators say so.", sample=False)
    external = Field(Boolean(), "Whether it is an external network of a cloud, which routers lead to and floating IPs "
                     "come from; administrators say so.", sample=False)
    provider_network_type = Field(Nullable(PROVIDER), "For mode ovn: V(flat) or V(vlan), a physical network that hosts "
                                  "are connected to, or V(geneve), a virtual one, which is the default. Only "
                                  "administrators set it, and see it.", on=FIXED, sample=None)
    provider_physical_network = Field(Nullable(PHYSICAL), "Name of the physical network.", on=FIXED, sample=None)
    provider_segmentation_id = Field(Nullable(VLAN), "VLAN tag of V(vlan).", on=FIXED, sample=None)
    active = Field(Boolean(), "Whether it is up.", on=READ, sample=True)
    managed = Field(Boolean(), "Whether the agent made it, and so removes it.", on=READ, sample=True)
