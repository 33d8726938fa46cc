# SPDX-License-Identifier: GPL-3.0-or-later
"""Attributes of Neutron's resources: what each may be, and whether it is set when one is made, changed, or both (API
reference, Networking v2.0)."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from types import MappingProxyType
from typing import Any

from magnetar_control.api.values import Address, Anything, Id, Number, OrEmpty, Parsed, Truth, record
from magnetar_control.services.network import sharing, tags
from magnetar_control.services.network.ports import dns, trunks, virtual_functions
from magnetar_control.services.network.routers import routers
from magnetar_control.services.network.security import address_groups, default_rules
from magnetar_core.errors import InvalidField
from magnetar_core.fields import Field, Record
from magnetar_core.hardware.pci import VNIC_TYPES
from magnetar_core.kinds.network import MOST_GROUPS
from magnetar_core.values import Choices, ListOf, Mac, MapOf, Nullable, Text, Value
from magnetar_core.versions import Version

from . import lacking

TRUTH = Truth(("true", "1", "yes", "on"), ("false", "0", "no", "off"), any_case=True)
TEXT = OrEmpty(Text(0, 255), "")
ADDRESS = Address()
#: In JSON schema.
CIDR = {"type": "string", "format": "cidr"}
#: How long lists are at most: the first four as Neutron's settings have it by default.
SERVERS, HOST_ROUTES, ROUTES, PAIRS = 5, 20, routers.MOST_ROUTES, 10
POOLS = FIXED = 64
#: Names of IP protocols that Neutron knows, besides numbers up to 255.
PROTOCOLS = frozenset({"ah", "dccp", "egp", "esp", "gre", "icmp", "icmpv6", "igmp", "ipip", "ipv6-encap", "ipv6-frag",
                       "ipv6-icmp", "ipv6-nonxt", "ipv6-opts", "ipv6-route", "ospf", "pgm", "rsvp", "sctp", "tcp",
                       "udp", "udplite", "vrrp"})
#: Neutron's name of an attribute to the service's.
NAMES = {"tenant_id": "project_id", "provider:network_type": "type", "provider:physical_network": "bridge",
         "router:external": "external", "binding:host_id": "host", "binding:vnic_type": "vnic_type",
         "binding:profile": "profile", "provider:segmentation_id": "segment", "allowed_address_pairs": "pairs",
         "external_gateway_info": "gateway", "floating_network_id": "network_id",
         "target_tenant": "target_project"}


class Cidr(Value):
    """A subnet: of IPv4 with a prefix of 8 to 30 bits, of IPv6 with 64 to 126; normal form has no bits of hosts."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        try:
            found = _network(value)
        except ValueError:
            raise InvalidField(path, "must be a subnet such as 10.1.0.0/24 or fd00:1::/64", value) from None
        least, most = (8, 30) if found.version == 4 else (64, 126)
        if "/" not in str(value) or not least <= found.prefixlen <= most:
            raise InvalidField(path, f"must have a prefix length between {least} and {most}", value)
        return str(found)

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        return CIDR


class FixedIp(Value):
    """An address that a port asks for: {subnet_id, ip_address}, or one of the two."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        found = FIXED_IP.check(value, path, version)
        if not found:
            raise InvalidField(path, "must have subnet_id, ip_address or both")
        return found

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        return FIXED_IP.schema(version)


class AddressPair(Value):
    """What a port may send from besides its own: {ip_address: an address or a network, mac_address}."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        return ADDRESS_PAIR.check(value, path, version)

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        return ADDRESS_PAIR.schema(version)


def _network(value: Any) -> IPv4Network | IPv6Network:
    """Without bits of hosts. Raises ``ValueError``, also for one with a zone (RFC 4007), which no packet has."""
    if "%" in str(value):
        raise ValueError
    return ip_network(str(value), strict=False)


FIXED_IP = record({"subnet_id": Id(), "ip_address": ADDRESS})
#: An IPv4 or IPv6 network; normal form has no bits of hosts.
PREFIX = Parsed(lambda value: str(_network(value)), "must be an IP network such as 10.1.0.0/24",
                **CIDR)


def _source(value: Any) -> str:
    found = _network(value)
    return str(found.network_address if found.prefixlen == found.max_prefixlen else found)


#: An address, or a network of them; normal form of a network has no bits of hosts.
SOURCE = Parsed(_source, "must be an IP address, or a network such as 10.1.0.0/24", **CIDR)
ROUTE = record({"destination": PREFIX, "nexthop": ADDRESS}, "destination", "nexthop")
ADDRESS_PAIR = record({"ip_address": SOURCE, "mac_address": Mac()}, "ip_address")
VERSION = Parsed(lambda value: {"4": 4, "6": 6}[str(value)], "must be 4 or 6", enum=[4, 6, "4", "6"])
#: How guests get their addresses of IPv6.
MODE = Nullable(Choices("slaac", "dhcpv6-stateful", "dhcpv6-stateless"))


def _protocol(value: Any) -> str | None:
    """The name or number of an IP protocol, in lower case; ``None`` for any."""
    word = str(value).lower()
    if value is None or word in ("any", "0"):
        return None
    if word not in PROTOCOLS and not (word.isdecimal() and int(word) <= 255):
        raise ValueError
    return word


def word(*words: str) -> Value:
    """One of *words*, in any case; normal form is as it is here."""
    known = {one.lower(): one for one in words}
    return Parsed(lambda value: known[str(value).lower()], f"must be one of {', '.join(words)}", enum=list(words))


def items(item: Value, most: int) -> Value:
    """A list; null is the empty one."""
    return OrEmpty(ListOf(item, most), [])


def attributes(fixed: Mapping[str, Value], changing: Mapping[str, Value], required: str = "",
               description: Value = TEXT, lacking: Mapping[str, Value] = MappingProxyType({})) -> Record:
    """Those of a resource. *fixed*: set when it is made; *changing*: set then and later; *required* of a new one;
    *lacking*: those that nothing acts on."""
    rows = (("create", fixed), ("create update", {**changing, "description": description}),
            ("create", {"project_id": TEXT, "tenant_id": TEXT}), ("create update", lacking))
    return Record(**{name: Field(value, "", required=name in required.split(), on=on)
                     for on, values in rows for name, value in values.items()})


#: A comma stands between tags in filters of lists.
TAG = Text(1, 255, "[^,]+", "must have no comma")
TAGS = record({"tags": ListOf(TAG, tags.MOST)}, "tags")

NETWORK = attributes(
    {"provider:network_type": Choices("nat", "isolated", "flat", "ovn", "vlan"),
     "provider:physical_network": Nullable(Text(0, 255)), "provider:segmentation_id": Nullable(Number(1, 4094))},
    {"name": TEXT, "mtu": Number(576, 65535), "admin_state_up": TRUTH, "shared": TRUTH, "is_default": TRUTH,
     "port_security_enabled": TRUTH, "router:external": TRUTH, "qos_policy_id": Nullable(Id()),
     "dns_domain": Parsed(dns.domain, "must be a DNS domain such as lab.example, or empty")}, lacking=lacking.NETWORK)


class PoolId(Id):
    """The subnet pool of a subnet."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        if value == "prefix_delegation":
            raise InvalidField(path, "must be the uuid of a subnet pool: no router here asks others for prefixes of "
                                     "IPv6. Give cidr, or a subnet pool", value)
        return super().check(value, path, version)


SUBNET = attributes(
    {"network_id": Id(), "cidr": Cidr(), "ip_version": VERSION, "subnetpool_id": Nullable(PoolId()),
     "ipv6_ra_mode": MODE, "ipv6_address_mode": MODE, "prefixlen": Nullable(Number(0, 128)),
     "use_default_subnetpool": TRUTH},
    {"name": TEXT, "gateway_ip": Nullable(ADDRESS), "enable_dhcp": TRUTH, "dns_nameservers": items(ADDRESS, SERVERS),
     "allocation_pools": items(record({"start": ADDRESS, "end": ADDRESS}, "start", "end"), POOLS),
     "host_routes": items(ROUTE, HOST_ROUTES)},
    required="network_id", lacking=lacking.SUBNET)
#: Prefixes of one subnet pool.
PREFIXES = 100
_LENGTH = Nullable(Number(0, 128))
SUBNET_POOL = attributes(
    {"shared": TRUTH},
    {"name": Text(1, 255), "prefixes": ListOf(PREFIX, PREFIXES), "is_default": TRUTH, "min_prefixlen": _LENGTH,
     "max_prefixlen": _LENGTH, "default_prefixlen": _LENGTH, "default_quota": Nullable(Number(0, 2**63 - 1)),
     "address_scope_id": Nullable(Id())}, required="name prefixes")
ADDRESS_SCOPE = attributes({"ip_version": VERSION}, {"name": TEXT, "shared": TRUTH}, required="ip_version")


class VnicType(Choices):
    """How a port reaches its server."""

    def __init__(self) -> None:
        super().__init__(virtual_functions.NORMAL, *VNIC_TYPES)

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        if value in OTHER_VNIC_TYPES:
            raise InvalidField(path, "must be normal, direct (a virtual function), macvtap (a NIC over one), vdpa, "
                                     "remote-managed (of a SmartNIC) or direct-physical (a whole card): no host here "
                                     "gives ports an accelerator. A flavor with pci_passthrough:alias gives a server a "
                                     "whole device of another kind", value)
        return super().check(value, path, version)


#: Those of Neutron that no port here can have.
OTHER_VNIC_TYPES = ("accelerator-direct", "accelerator-direct-physical", "baremetal", "virtio-forwarder",
                    "smart-nic")
PORT = attributes(
    {"network_id": Id()},
    {"name": TEXT, "admin_state_up": TRUTH, "mac_address": Mac(), "device_id": TEXT, "device_owner": TEXT,
     # Null is as left out: an address is chosen.
     "fixed_ips": Nullable(ListOf(FixedIp(), FIXED)), "security_groups": items(Id(), MOST_GROUPS),
     "allowed_address_pairs": items(AddressPair(), PAIRS), "qos_policy_id": Nullable(Id()),
     "dns_name": Parsed(dns.label, "must be a label of a DNS name: letters, digits and dashes, 63 at most; or empty"),
     "port_security_enabled": TRUTH, "binding:host_id": TEXT, "binding:profile": MapOf(Text(), Anything()),
     "binding:vnic_type": VnicType()}, required="network_id", lacking=lacking.PORT)


class GatewayInfo(Value):
    """A router's way out; null and the empty object are none, whose normal form is null."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        return GATEWAY_INFO.check(value, path, version) if value else None

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        return {"anyOf": [GATEWAY_INFO.schema(version), {"type": "null"}]}


GATEWAY_INFO = record({"network_id": Id(), "enable_snat": TRUTH, "external_fixed_ips": items(FixedIp(), FIXED),
                       **lacking.OUTSIDE}, "network_id")
ROUTER = attributes(
    {}, {"name": TEXT, "admin_state_up": TRUTH, "external_gateway_info": GatewayInfo(),
         "routes": items(ROUTE, ROUTES)}, lacking=lacking.ROUTER)
#: Static routes that come or go, beside others.
EXTRA_ROUTES = record({"router": record({"routes": items(ROUTE, ROUTES)}, "routes")}, "router")
#: What an interface is added by, or removed by.
INTERFACE = record({"subnet_id": Id(), "port_id": Id(), **lacking.INTERFACE})

FLOATING_IP = attributes(
    {"floating_network_id": Id(), "floating_ip_address": Nullable(ADDRESS), "subnet_id": Nullable(Id())},
    {"port_id": Nullable(Id()), "fixed_ip_address": Nullable(ADDRESS)}, required="floating_network_id",
    lacking=lacking.FLOATING_IP)

QOS_POLICY = attributes({}, {"name": TEXT, "shared": TRUTH, "is_default": TRUTH}, required="name")
_OUTER = Number(1, 65535)
PORT_FORWARDING = Record(
    **{name: Field(value, "", required=True, on="create update") for name, value in (
        ("internal_port_id", Id()), ("internal_port", _OUTER), ("external_port", _OUTER),
        ("protocol", word("tcp", "udp", "sctp")))},
    **{name: Field(value, "", on="create update") for name, value in lacking.PORT_FORWARDING.items()},
    internal_ip_address=Field(Nullable(ADDRESS), "", on="create update"),
    description=Field(TEXT, "", on="create update"))
#: kbit/s, or kbit.
KBPS = 2**31 - 1
BANDWIDTH_LIMIT_RULE = Record(
    max_kbps=Field(Number(1, KBPS), "", required=True, on="create update"),
    max_burst_kbps=Field(Number(0, KBPS), "", on="create update"),
    direction=Field(word("egress", "ingress"), "", on="create update"))
MINIMUM_BANDWIDTH_RULE = Record(
    min_kbps=Field(Number(1, KBPS), "", required=True, on="create update"),
    direction=Field(word("egress", "ingress"), "", on="create update"))
#: The code points that RFC 2474, 2597, 3246 and 5865 name, as Neutron has them.
DSCP_MARKS = (0, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38, 40, 46, 48, 56)
DSCP_MARKING_RULE = Record(dscp_mark=Field(
    Parsed(lambda value: {str(one): one for one in DSCP_MARKS}[str(value)], "must be one of "
           + ", ".join(map(str, DSCP_MARKS)), type="integer", enum=list(DSCP_MARKS)), "", required=True,
    on="create update"))

RBAC_POLICY = Record(
    object_type=Field(Choices(*sharing.KINDS), "", required=True, on="create"),
    object_id=Field(Id(), "", required=True, on="create"),
    action=Field(Choices(sharing.SHARED, sharing.EXTERNAL), "", required=True, on="create"),
    target_tenant=Field(Text(1, 255), "", required=True, on="create update"),
    project_id=Field(TEXT, "", on="create"), tenant_id=Field(TEXT, "", on="create"))

#: Addresses of an address group: networks, an address as one of its own.
ADDRESSES = record({"addresses": items(PREFIX, address_groups.MOST)}, "addresses")
ADDRESS_GROUP = attributes({"addresses": items(PREFIX, address_groups.MOST)}, {"name": TEXT})


class SegmentationType(Choices):
    """How a guest tells a subport from others."""

    def __init__(self) -> None:
        super().__init__(trunks.VLAN)

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        if value == "inherit":
            raise InvalidField(path, "must be vlan, with a segmentation_id: networks of OVN have no tag in guests that "
                                     "a subport could inherit", value)
        return super().check(value, path, version)


SUB_PORT = record({"port_id": Id(), "segmentation_type": SegmentationType(),
                   "segmentation_id": Number(1, trunks.MOST)},
                  "port_id", "segmentation_type", "segmentation_id")
SUB_PORTS = record({"sub_ports": items(SUB_PORT, trunks.MOST)}, "sub_ports")
#: Which subports go; what else clients say of them is not looked at.
GONE_PORTS = record({"sub_ports": items(record(
    {"port_id": Id(), "segmentation_type": Anything(), "segmentation_id": Anything()}, "port_id"), trunks.MOST)},
    "sub_ports")
TRUNK = attributes({"port_id": Id(), "sub_ports": items(SUB_PORT, trunks.MOST)},
                   {"name": TEXT, "admin_state_up": TRUTH}, required="port_id")

SECURITY_GROUP = attributes({}, {"name": TEXT, "stateful": TRUTH}, required="name")

_PORT = Nullable(Number(0, 65535))
_RULE = {"direction": word("ingress", "egress"), "ethertype": word("IPv4", "IPv6"),
         "protocol": Parsed(_protocol, "must be the name of an IP protocol, or a number from 0 to 255",
                            enum=[None, "any", *sorted(PROTOCOLS), *range(256)]),
         "port_range_min": _PORT, "port_range_max": _PORT, "remote_ip_prefix": Nullable(PREFIX),
         "remote_group_id": Nullable(Id()), "remote_address_group_id": Nullable(Id())}
SECURITY_GROUP_RULE = attributes({"security_group_id": Id(), **_RULE}, {}, required="security_group_id direction",
                                 description=Nullable(Text(0, 255)))


class RemoteOfDefault(Id):
    """The security group that a default rule names: a uuid, or the new group itself."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        return value if value == default_rules.PARENT else super().check(value, path, version)

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        return {"anyOf": [super().schema(version), {"enum": [default_rules.PARENT]}]}


DEFAULT_SECURITY_GROUP_RULE = Record(**{
    name: Field(value, "", required=name == "direction", on="create") for name, value in {
        **_RULE, "remote_group_id": Nullable(RemoteOfDefault()), "description": TEXT,
        **dict.fromkeys(default_rules.USES, TRUTH)}.items()})
