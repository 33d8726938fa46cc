# SPDX-License-Identifier: GPL-3.0-or-later
"""Attributes of Neutron's resources: the values of each, and whether it is set on creation, on update, or both (API
reference, Networking v2.0)."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from types import MappingProxyType
from typing import Any

from magnetar_control.api.values import Address, Anything, Id, Number, OrEmpty, Parsed, Truth, build_record
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
#: The JSON schema of a network.
CIDR = {"type": "string", "format": "cidr"}
#: Limits of the lengths of lists: the first four are the defaults of Neutron's settings.
SERVERS, HOST_ROUTES, ROUTES, PAIRS = 5, 20, routers.MOST_ROUTES, 10
POOLS = FIXED = 64
#: Names of IP protocols that Neutron accepts in addition to numbers up to 255.
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
    """A validator of the ``cidr`` of a subnet: an IPv4 prefix of 8 to 30 bits or an IPv6 prefix of 64 to 126 bits. Host
    bits are set to 0."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        try:
            subnet = _network(value)
        except ValueError:
            raise InvalidField(path, "must be a subnet such as 10.1.0.0/24 or fd00:1::/64", value) from None
        least, most = (8, 30) if subnet.version == 4 else (64, 126)
        if "/" not in str(value) or not least <= subnet.prefixlen <= most:
            raise InvalidField(path, f"must have a prefix length between {least} and {most}", value)
        return str(subnet)

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        return CIDR


class FixedIp(Value):
    """A validator of one item of ``fixed_ips`` in a request body: an object with subnet_id, ip_address or both."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        fixed_ip = FIXED_IP.check(value, path, version)
        if not fixed_ip:
            raise InvalidField(path, "must have subnet_id, ip_address or both")
        return fixed_ip

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        return FIXED_IP.schema(version)


class AddressPair(Value):
    """A validator of one item of ``allowed_address_pairs`` of a port: an object {ip_address, mac_address}. The
    ip_address may also be a network in CIDR notation."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        return ADDRESS_PAIR.check(value, path, version)

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        return ADDRESS_PAIR.schema(version)


def _network(value: Any) -> IPv4Network | IPv6Network:
    """Return *value*, text such as ``10.1.0.5/24``, as an IP network, with host bits set to 0. Raises ``ValueError``,
    also for an IPv6 address with a zone such as ``%eth0`` (RFC 4007), because packets contain addresses without zones.
    """
    if "%" in str(value):
        raise ValueError
    return ip_network(str(value), strict=False)


FIXED_IP = build_record({"subnet_id": Id(), "ip_address": ADDRESS})
#: An IPv4 or IPv6 network; the normal form has no host bits.
PREFIX = Parsed(lambda value: str(_network(value)), "must be an IP network such as 10.1.0.0/24",
                **CIDR)


def _source(value: Any) -> str:
    network = _network(value)
    return str(network.network_address if network.prefixlen == network.max_prefixlen else network)


#: An address or a network; the normal form of a network has no host bits.
SOURCE = Parsed(_source, "must be an IP address, or a network such as 10.1.0.0/24", **CIDR)
ROUTE = build_record({"destination": PREFIX, "nexthop": ADDRESS}, "destination", "nexthop")
ADDRESS_PAIR = build_record({"ip_address": SOURCE, "mac_address": Mac()}, "ip_address")
VERSION = Parsed(lambda value: {"4": 4, "6": 6}[str(value)], "must be 4 or 6", enum=[4, 6, "4", "6"])
#: The ways in which guests get their IPv6 addresses.
MODE = Nullable(Choices("slaac", "dhcpv6-stateful", "dhcpv6-stateless"))


def _protocol(value: Any) -> str | None:
    """Return the IP protocol *value* (a name or number) in lower case; ``None`` if it means any protocol. Raises
    ``ValueError``."""
    protocol = str(value).lower()
    if value is None or protocol in ("any", "0"):
        return None
    if protocol not in PROTOCOLS and not (protocol.isdecimal() and int(protocol) <= 255):
        raise ValueError
    return protocol


def one_of_words(*words: str) -> Value:
    """Return a validator that accepts any of *words*, in upper or lower case, and returns the word as it is written in
    *words*."""
    words_by_case = {word.lower(): word for word in words}
    return Parsed(lambda value: words_by_case[str(value).lower()], f"must be one of {', '.join(words)}",
                  enum=list(words))


def bounded_list(item: Value, most: int) -> Value:
    """Return a validator of lists of at most *most* items, each checked by *item*. It converts null to []."""
    return OrEmpty(ListOf(item, most), [])


def resource_attributes(fixed: Mapping[str, Value], changing: Mapping[str, Value], required: str = "",
                        description: Value = TEXT, lacking: Mapping[str, Value] = MappingProxyType({})) -> Record:
    """Return a validator of the request bodies that create and update a resource. *fixed*: attributes that only a
    create request may set. *changing*: attributes that create and update requests may set. *required*: names, separated
    by blanks, that a create request must set. *description*: the validator of the attribute description. *lacking*:
    attributes that are accepted and have no effect."""
    rows = (("create", fixed), ("create update", {**changing, "description": description}),
            ("create", {"project_id": TEXT, "tenant_id": TEXT}), ("create update", lacking))
    return Record(**{name: Field(value, "", required=name in required.split(), on=on)
                     for on, values in rows for name, value in values.items()})


#: The value type of a tag, without commas: these separate tags in filters of lists.
TAG = Text(1, 255, "[^,]+", "must have no comma")
TAGS = build_record({"tags": ListOf(TAG, tags.MOST)}, "tags")

NETWORK = resource_attributes(
    {"provider:network_type": Choices("nat", "isolated", "flat", "ovn", "vlan"),
     "provider:physical_network": Nullable(Text(0, 255)), "provider:segmentation_id": Nullable(Number(1, 4094))},
    {"name": TEXT, "mtu": Number(576, 65535), "admin_state_up": TRUTH, "shared": TRUTH, "is_default": TRUTH,
     "port_security_enabled": TRUTH, "router:external": TRUTH, "qos_policy_id": Nullable(Id()),
     "dns_domain": Parsed(dns.normalize_domain, "must be a DNS domain such as lab.example, or empty")},
     lacking=lacking.NETWORK)


class PoolId(Id):
    """A validator of ``subnetpool_id`` of a subnet: the uuid of a subnet pool. Refuses Neutron's word
    ``prefix_delegation``, because IPv6 prefix delegation is not supported."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        if value == "prefix_delegation":
            raise InvalidField(path, "must be the uuid of a subnet pool: no router here asks others for prefixes of "
                                     "IPv6. Give cidr, or a subnet pool", value)
        return super().check(value, path, version)


SUBNET = resource_attributes(
    {"network_id": Id(), "cidr": Cidr(), "ip_version": VERSION, "subnetpool_id": Nullable(PoolId()),
     "ipv6_ra_mode": MODE, "ipv6_address_mode": MODE, "prefixlen": Nullable(Number(0, 128)),
     "use_default_subnetpool": TRUTH},
    {"name": TEXT, "gateway_ip": Nullable(ADDRESS), "enable_dhcp": TRUTH,
     "dns_nameservers": bounded_list(ADDRESS, SERVERS),
     "allocation_pools": bounded_list(build_record({"start": ADDRESS, "end": ADDRESS}, "start", "end"), POOLS),
     "host_routes": bounded_list(ROUTE, HOST_ROUTES)},
    required="network_id", lacking=lacking.SUBNET)
#: Limit of prefixes of one subnet pool.
PREFIXES = 100
_LENGTH = Nullable(Number(0, 128))
SUBNET_POOL = resource_attributes(
    {"shared": TRUTH},
    {"name": Text(1, 255), "prefixes": ListOf(PREFIX, PREFIXES), "is_default": TRUTH, "min_prefixlen": _LENGTH,
     "max_prefixlen": _LENGTH, "default_prefixlen": _LENGTH, "default_quota": Nullable(Number(0, 2**63 - 1)),
     "address_scope_id": Nullable(Id())}, required="name prefixes")
ADDRESS_SCOPE = resource_attributes({"ip_version": VERSION}, {"name": TEXT, "shared": TRUTH}, required="ip_version")


class VnicType(Choices):
    """A validator of the ``vnic_type`` of a port: how its NIC is connected, such as normal or direct (SR-IOV). Refuses
    those of Neutron's types that this service does not support."""

    def __init__(self) -> None:
        super().__init__(virtual_functions.NORMAL, *VNIC_TYPES)

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        if value in OTHER_VNIC_TYPES:
            raise InvalidField(path, "must be normal, direct (a virtual function), macvtap (a NIC over one), vdpa, "
                                     "remote-managed (of a SmartNIC) or direct-physical (a whole card): no host here "
                                     "gives ports an accelerator. A flavor with pci_passthrough:alias gives a server a "
                                     "whole device of another kind", value)
        return super().check(value, path, version)


#: Types of Neutron that no port here can have.
OTHER_VNIC_TYPES = ("accelerator-direct", "accelerator-direct-physical", "baremetal", "virtio-forwarder",
                    "smart-nic")
PORT = resource_attributes(
    {"network_id": Id()},
    {"name": TEXT, "admin_state_up": TRUTH, "mac_address": Mac(), "device_id": TEXT, "device_owner": TEXT,
     # Null is the same as absent: the service chooses an address.
     "fixed_ips": Nullable(ListOf(FixedIp(), FIXED)), "security_groups": bounded_list(Id(), MOST_GROUPS),
     "allowed_address_pairs": bounded_list(AddressPair(), PAIRS), "qos_policy_id": Nullable(Id()),
     "dns_name": Parsed(dns.normalize_label,
                        "must be a label of a DNS name: letters, digits and dashes, 63 at most; or empty"),
     "port_security_enabled": TRUTH, "binding:host_id": TEXT, "binding:profile": MapOf(Text(), Anything()),
     "binding:vnic_type": VnicType()}, required="network_id", lacking=lacking.PORT)


class GatewayInfo(Value):
    """A validator of ``external_gateway_info`` of a router: an object. Null and an empty object mean no gateway, and
    become ``None``."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        return GATEWAY_INFO.check(value, path, version) if value else None

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        return {"anyOf": [GATEWAY_INFO.schema(version), {"type": "null"}]}


GATEWAY_INFO = build_record({"network_id": Id(), "enable_snat": TRUTH,
                             "external_fixed_ips": bounded_list(FixedIp(), FIXED), **lacking.OUTSIDE}, "network_id")
ROUTER = resource_attributes(
    {}, {"name": TEXT, "admin_state_up": TRUTH, "external_gateway_info": GatewayInfo(),
         "routes": bounded_list(ROUTE, ROUTES)}, lacking=lacking.ROUTER)
#: Static routes that are added or removed individually.
EXTRA_ROUTES = build_record({"router": build_record({"routes": bounded_list(ROUTE, ROUTES)}, "routes")}, "router")
#: The body that adds or removes an interface.
INTERFACE = build_record({"subnet_id": Id(), "port_id": Id(), **lacking.INTERFACE})

FLOATING_IP = resource_attributes(
    {"floating_network_id": Id(), "floating_ip_address": Nullable(ADDRESS), "subnet_id": Nullable(Id())},
    {"port_id": Nullable(Id()), "fixed_ip_address": Nullable(ADDRESS)}, required="floating_network_id",
    lacking=lacking.FLOATING_IP)

QOS_POLICY = resource_attributes({}, {"name": TEXT, "shared": TRUTH, "is_default": TRUTH}, required="name")
_OUTER = Number(1, 65535)
PORT_FORWARDING = Record(
    **{name: Field(value, "", required=True, on="create update") for name, value in (
        ("internal_port_id", Id()), ("internal_port", _OUTER), ("external_port", _OUTER),
        ("protocol", one_of_words("tcp", "udp", "sctp")))},
    **{name: Field(value, "", on="create update") for name, value in lacking.PORT_FORWARDING.items()},
    internal_ip_address=Field(Nullable(ADDRESS), "", on="create update"),
    description=Field(TEXT, "", on="create update"))
#: Limit in kbit/s or kbit.
KBPS = 2**31 - 1
BANDWIDTH_LIMIT_RULE = Record(
    max_kbps=Field(Number(1, KBPS), "", required=True, on="create update"),
    max_burst_kbps=Field(Number(0, KBPS), "", on="create update"),
    direction=Field(one_of_words("egress", "ingress"), "", on="create update"))
MINIMUM_BANDWIDTH_RULE = Record(
    min_kbps=Field(Number(1, KBPS), "", required=True, on="create update"),
    direction=Field(one_of_words("egress", "ingress"), "", on="create update"))
#: The code points of RFC 2474, 2597, 3246 and 5865, as in Neutron.
DSCP_MARKS = (0, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38, 40, 46, 48, 56)
DSCP_MARKING_RULE = Record(dscp_mark=Field(
    Parsed(lambda value: {str(mark): mark for mark in DSCP_MARKS}[str(value)], "must be one of "
           + ", ".join(map(str, DSCP_MARKS)), type="integer", enum=list(DSCP_MARKS)), "", required=True,
    on="create update"))

RBAC_POLICY = Record(
    object_type=Field(Choices(*sharing.KINDS), "", required=True, on="create"),
    object_id=Field(Id(), "", required=True, on="create"),
    action=Field(Choices(sharing.SHARED, sharing.EXTERNAL), "", required=True, on="create"),
    target_tenant=Field(Text(1, 255), "", required=True, on="create update"),
    project_id=Field(TEXT, "", on="create"), tenant_id=Field(TEXT, "", on="create"))

#: Addresses of an address group: networks, with an address as a network of its own.
ADDRESSES = build_record({"addresses": bounded_list(PREFIX, address_groups.MOST)}, "addresses")
ADDRESS_GROUP = resource_attributes({"addresses": bounded_list(PREFIX, address_groups.MOST)}, {"name": TEXT})


class SegmentationType(Choices):
    """A validator of the ``segmentation_type`` of a trunk's subport. It accepts only ``vlan``."""

    def __init__(self) -> None:
        super().__init__(trunks.VLAN)

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        if value == "inherit":
            raise InvalidField(path, "must be vlan, with a segmentation_id: networks of OVN have no tag in guests that "
                                     "a subport could inherit", value)
        return super().check(value, path, version)


SUB_PORT = build_record({"port_id": Id(), "segmentation_type": SegmentationType(),
                         "segmentation_id": Number(1, trunks.MOST)},
                        "port_id", "segmentation_type", "segmentation_id")
SUB_PORTS = build_record({"sub_ports": bounded_list(SUB_PORT, trunks.MOST)}, "sub_ports")
#: Subports to remove; further fields of clients are ignored.
GONE_PORTS = build_record({"sub_ports": bounded_list(build_record(
    {"port_id": Id(), "segmentation_type": Anything(), "segmentation_id": Anything()}, "port_id"), trunks.MOST)},
    "sub_ports")
TRUNK = resource_attributes({"port_id": Id(), "sub_ports": bounded_list(SUB_PORT, trunks.MOST)},
                            {"name": TEXT, "admin_state_up": TRUTH}, required="port_id")

SECURITY_GROUP = resource_attributes({}, {"name": TEXT, "stateful": TRUTH}, required="name")

_PORT = Nullable(Number(0, 65535))
_RULE = {"direction": one_of_words("ingress", "egress"), "ethertype": one_of_words("IPv4", "IPv6"),
         "protocol": Parsed(_protocol, "must be the name of an IP protocol, or a number from 0 to 255",
                            enum=[None, "any", *sorted(PROTOCOLS), *range(256)]),
         "port_range_min": _PORT, "port_range_max": _PORT, "remote_ip_prefix": Nullable(PREFIX),
         "remote_group_id": Nullable(Id()), "remote_address_group_id": Nullable(Id())}
SECURITY_GROUP_RULE = resource_attributes({"security_group_id": Id(), **_RULE}, {},
                                          required="security_group_id direction", description=Nullable(Text(0, 255)))


class RemoteOfDefault(Id):
    """A validator of ``remote_group_id`` in a default security group rule: the uuid of a security group, or the word
    ``PARENT``, which stands for the new security group that gets the rule."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        return value if value == default_rules.PARENT else super().check(value, path, version)

    def schema(self, version: Version | None = None) -> dict[str, Any]:
        return {"anyOf": [super().schema(version), {"enum": [default_rules.PARENT]}]}


DEFAULT_SECURITY_GROUP_RULE = Record(**{
    name: Field(value, "", required=name == "direction", on="create") for name, value in {
        **_RULE, "remote_group_id": Nullable(RemoteOfDefault()), "description": TEXT,
        **dict.fromkeys(default_rules.USES, TRUTH)}.items()})
