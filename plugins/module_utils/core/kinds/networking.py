# SPDX-License-Identifier: GPL-3.0-or-later
"""subnet, subnet_pool, address_scope, port, trunk, router, floating_ip, security_group, default_security_group_rule,
address_group, qos_policy and rbac_policy: the resources of a cloud's network service other than networks.
"""

from __future__ import annotations

from ..fields import FIXED, READ, Field, Kind, Record
from ..hardware.pci import VNIC_TYPES
from ..values import Boolean, Choices, Integer, ListOf, Mac, Nullable, Text, Uuid, Value
from .common import DESCRIPTION, NAME, REFERENCE, OrNone, Resource
from .network import MOST_GROUPS

ADDRESS = Text(2, 45, r"[0-9a-fA-F.:]+", "must be an IP address")
PREFIX = Text(3, 49, r"[0-9a-fA-F.:]+(/[0-9]{1,3})?", "must be an IP network such as 10.1.0.0/24")
MODES = ("slaac", "dhcpv6-stateful", "dhcpv6-stateless")
MANY = 1000


def static_routes(doc: str) -> Field:
    """Return a field for a list of static routes. *doc*: its description for users."""
    return Field(ListOf(Record(destination=Field(PREFIX, "The network.", required=True),
                               nexthop=Field(ADDRESS, "The address that leads there.", required=True)), MANY), doc,
                 default=[], sample=[{"destination": "10.9.0.0/16", "nexthop": "10.1.0.9"}])


def qos_policy_field(doc: str) -> Field:
    """Return a field for the name or uuid of a QoS policy. *doc*: its description for users."""
    return Field(OrNone(REFERENCE), doc + " Without it, a new resource gets the cloud's default, and an existing one "
                 "keeps its policy.", sample="0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10")


class Subnet(Resource):
    """A range of IP addresses of a cloud's network, with the network settings of guests."""

    noun, plural = "subnet", "subnets"

    network = Field(REFERENCE, "The network, by name or uuid.", required=True, on=FIXED, aliases=("network_name",),
                    sample="5b6c0a4e-9f0a-4d0e-8a55-7b1f6a0c2d11")
    cidr = Field(PREFIX, "Its addresses, such as V(10.1.0.0/24) or V(fd00:1::/64). Default: the first free ones of "
                 "O(subnet_pool).", on=FIXED, sample="10.1.0.0/24")
    subnet_pool = Field(Nullable(REFERENCE), "The subnet pool of its addresses, by name or uuid.", on=FIXED,
                        sample=None)
    prefix_length = Field(Integer(0, 128), "Length of its prefix in bits, in place of O(cidr). Default: the pool's.",
                          on=FIXED, sample=24)
    gateway_ip = Field(OrNone(ADDRESS), "Address of the router; V(none) for none. The first one when omitted.",
                       sample="10.1.0.1")
    enable_dhcp = Field(Boolean(), "Whether guests get their addresses by DHCP.", default=True, sample=True,
                        aliases=("is_dhcp_enabled",))
    allocation_pools = Field(
        ListOf(Record(start=Field(ADDRESS, "The first address.", required=True),
                      end=Field(ADDRESS, "The last address.", required=True)), MANY),
        "Ranges of the addresses that ports get. Default: all addresses except the gateway's.",
        sample=[{"start": "10.1.0.2", "end": "10.1.0.254"}])
    dns_nameservers = Field(ListOf(ADDRESS, MANY), "Addresses of DNS servers for guests.", default=[],
                            sample=["192.0.2.53"])
    host_routes = static_routes("Routes that guests are told.")
    ipv6_address_mode = Field(Nullable(Choices(*MODES)), "Method for IPv6 addresses of guests; without it, guests set "
                              "them themselves.", default=None, on=FIXED, sample=None)
    ipv6_ra_mode = Field(Nullable(Choices(*MODES)), "Advertisements of a router: as O(ipv6_address_mode), or none.",
                         default=None, on=FIXED, sample=None)


class AddressScope(Resource):
    """A set of subnet pools whose prefixes are disjoint. Routers route between networks of one scope without NAT."""

    noun, plural = "address_scope", "address_scopes"
    sample_changes = {"description": ("", "known outside")}

    ip_version = Field(Integer(4, 6), "V(4) or V(6).", default=4, on=FIXED, sample=4)
    shared = Field(Boolean(), "Whether all projects may have pools of it; administrators say so.", default=False,
                   sample=False)


def _bits(doc: str, sample: int) -> Field:
    """Return a field for the prefix length of a subnet. *doc*: its description for users. *sample*: an example."""
    return Field(Integer(0, 128), doc, sample=sample)


class SubnetPool(Resource):
    """IP prefixes that are divided into non-overlapping subnets."""

    noun, plural = "subnet_pool", "subnet_pools"
    sample_changes = {"prefixes": (["10.20.0.0/16"], ["10.20.0.0/15"])}

    prefixes = Field(ListOf(PREFIX, 100, unique=True), "Its prefixes, of one IP version. Prefixes can be added, and "
                     "not removed.", required=True, sample=["10.20.0.0/16"])
    default_prefixlen = _bits("Length in bits of a subnet's prefix if its request names none. Default of a new "
                              "pool: O(min_prefixlen).", 26)
    min_prefixlen = _bits("Smallest length in bits of a subnet's prefix. Default of a new pool: V(8), for IPv6 "
                          "V(64).", 8)
    max_prefixlen = _bits("Largest length in bits of a subnet's prefix. Default of a new pool: the whole address.", 32)
    default_quota = Field(Nullable(Integer(0, 2**63 - 1)), "Quota of each project: addresses of IPv4, or networks of "
                          "64 bits of IPv6; no limit when omitted.", default=None, sample=None)
    address_scope = Field(OrNone(REFERENCE), "Its address scope, by name or uuid; V(none) for none.",
                          default=None, sample=None)
    shared = Field(Boolean(), "Whether all projects may have subnets of it; administrators say so.", default=False,
                   on=FIXED, sample=False)
    is_default = Field(Boolean(), "Whether it is the default pool; administrators say so.",
                       default=False, aliases=("default",), sample=False)
    ip_version = Field(Integer(4, 6), "V(4) or V(6).", on=READ, sample=4)


class NetworkPort(Resource):
    """A connection to a cloud's network that is created before a server uses it as a NIC."""

    noun, plural = "port", "ports"

    network = Field(REFERENCE, "The network, by name or uuid.", required=True, on=FIXED,
                    sample="5b6c0a4e-9f0a-4d0e-8a55-7b1f6a0c2d11")
    fixed_ips = Field(
        ListOf(Record(subnet=Field(REFERENCE, "The subnet, by name or uuid.", aliases=("subnet_id",)),
                      ip_address=Field(ADDRESS, "The address; chosen from the subnet's pools when omitted.")), MANY),
        "Its addresses: each an address, a subnet for an automatic address, or both. One address is chosen when "
        "omitted.",
        sample=[{"subnet": "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d", "ip_address": "10.1.0.7"}])
    mac_address = Field(Mac(), "MAC address; generated when omitted.", sample="fa:16:3e:12:34:56")
    security_groups = Field(ListOf(REFERENCE, MOST_GROUPS, unique=True), "Its security groups, by name or uuid. "
                            "V(default) when omitted.", sample=["0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10"])
    port_security_enabled = Field(Boolean(), "Whether it sends from its own addresses only, and security groups "
                                  "apply. Default: as the network has it.",
                                  aliases=("port_security", "is_port_security_enabled"), sample=True)
    allowed_address_pairs = Field(
        ListOf(Record(ip_address=Field(PREFIX, "An address, or a network of them.", required=True),
                      mac_address=Field(Mac(), "MAC address; the port's when omitted.")), MANY),
        "Further addresses that it may send from.", default=[], sample=[{"ip_address": "10.1.0.250"}])
    dns_name = Field(Text(0, 63, r"[A-Za-z0-9-]*", "may have letters, digits and - only"), "Its DNS name in the "
                     "domain of its network. A server that uses the port sets it to its host name.", sample="web1")
    vnic_type = Field(Choices("normal", *VNIC_TYPES), "V(normal), or a device of its server's host, on the physical "
                      "network of its network. Nothing filters V(direct), a virtual function (SR-IOV), V(macvtap), "
                      "a virtio NIC over one, and V(direct-physical), a whole card. OVN looks after V(vdpa), a virtio "
                      "NIC that the card makes, and V(remote-managed), a virtual function of a SmartNIC.",
                      default="normal", aliases=("binding_vnic_type",), sample="normal")
    qos_policy = qos_policy_field("Its QoS policy, by name or uuid; V(none) for the network's policy.")
    admin_state_up = Field(Boolean(), "Whether packets pass.", default=True, aliases=("is_admin_state_up",),
                           sample=True)
    status = Field(Text(), "V(ACTIVE) while a running server has it, otherwise V(DOWN).", on=READ, sample="ACTIVE")
    device_id = Field(Text(), "Uuid of the server that has it.", on=READ,
                      sample="4f1c9a0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    device_owner = Field(Text(), "Kind of its owner.", on=READ, sample="compute:nova")


class NetworkTrunk(Resource):
    """A port of a server that carries other ports as VLANs."""

    noun, plural = "trunk", "trunks"
    sample_changes = {"admin_state_up": (True, False)}

    port = Field(REFERENCE, "The parent port, which the server has, by name or uuid.", required=True, on=FIXED,
                 sample="0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10")
    subports = Field(
        ListOf(Record(port=Field(REFERENCE, "A port that no server has, by name or uuid.", required=True),
                      segmentation_id=Field(Integer(1, 4094), "The VLAN tag of its packets in the guest.",
                                            required=True)), 4094),
        "All ports that it has as VLANs: others are removed. They stay as they are when omitted.",
        sample=[{"port": "4f1c9a0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d", "segmentation_id": 101}])
    admin_state_up = Field(Boolean(), "Whether its subports may change, and it may be removed. Packets pass all the "
                           "same.", default=True, sample=True)
    status = Field(Text(), "V(ACTIVE) while a running server has its port, otherwise V(DOWN).", on=READ,
                   sample="ACTIVE")


class NetworkRouter(Resource):
    """A router between subnets, and to an external network."""

    noun, plural = "router", "routers"
    sample_changes = {"interfaces": ([], ["8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"])}

    external_network = Field(OrNone(REFERENCE), "The external network of the router, by name or uuid; V(none) for "
                             "none.", default=None, aliases=("network",),
                             sample="5b6c0a4e-9f0a-4d0e-8a55-7b1f6a0c2d11")
    enable_snat = Field(Boolean(), "Whether outgoing traffic of servers has the router's address (SNAT). Only admins "
                        "turn this off.", default=True, sample=True)
    interfaces = Field(ListOf(REFERENCE, MANY, unique=True), "The subnets that it is in, by name or uuid, all of them.",
                       default=[], sample=["8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"])
    routes = static_routes("Static routes.")
    admin_state_up = Field(Boolean(), "Whether packets pass.", default=True, aliases=("is_admin_state_up",),
                           sample=True)
    external_addresses = Field(ListOf(ADDRESS), "Its addresses in the external network.", on=READ,
                               sample=["192.0.2.9"])
    status = Field(Text(), "V(ACTIVE).", on=READ, sample="ACTIVE")


_OUTER = Integer(1, 65535)


class FloatingIp(Resource):
    """An address of an external network that makes a server reachable from outside."""

    noun, plural = "floating_ip", "floating_ips"
    sample_changes = {"port": (None, "0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10")}

    name = Field(NAME, "The name. One that was made without has its address for a name.", required=True,
                 on=FIXED, sample="web")
    network = Field(REFERENCE, "The external network, by name or uuid.", required=True, on=FIXED,
                    sample="5b6c0a4e-9f0a-4d0e-8a55-7b1f6a0c2d11")
    floating_ip_address = Field(ADDRESS, "The address; chosen automatically when omitted. Administrators may choose "
                                "it.", on=FIXED,
                                sample="192.0.2.10")
    server = Field(OrNone(REFERENCE), "The server that it reaches, by name or uuid: the first of its ports that a "
                   "router leads to; V(none) for none.", default=None, sample="4f1c9a0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    port = Field(OrNone(REFERENCE), "The port that it reaches, in place of O(server).", default=None,
                 sample="0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10")
    fixed_ip_address = Field(Nullable(ADDRESS), "Address of the port, if it has several.",
                             aliases=("fixed_address",), sample="10.1.0.7")
    port_forwardings = Field(
        ListOf(Record(
            protocol=Field(Choices("tcp", "udp", "sctp"), "V(tcp) when omitted."),
            external_port=Field(_OUTER, "The port of the floating IP.", required=True),
            internal_port=Field(_OUTER, "The port that it leads to; the same number when omitted."),
            server=Field(REFERENCE, "The server, by name or uuid: the first of its ports that a router leads to."),
            port=Field(REFERENCE, "The port of the network that has the address, in place of server."),
            fixed_ip_address=Field(Nullable(ADDRESS), "Its address, if it has several."),
            description=Field(Nullable(DESCRIPTION), "Free text.")), 100),
        "All port forwardings: each forwards one port of the floating IP to a port of a server, all behind one "
        "router. Other forwardings are removed. Excludes O(server) and O(port). Omitted, they stay as they are.",
        sample=[{"protocol": "tcp", "external_port": 2222, "internal_port": 22, "description": "",
                 "port": "0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10", "fixed_ip_address": "10.1.0.7"}])
    router = Field(Nullable(Text()), "Uuid of the router between.", on=READ,
                   sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    status = Field(Text(), "V(ACTIVE) while it reaches a port, otherwise V(DOWN).", on=READ, sample="ACTIVE")


_PORT = Nullable(Integer(0, 65535))


class SecurityGroup(Resource):
    """Rules for the traffic to and from the ports that use the group."""

    noun, plural = "security_group", "security_groups"

    stateful = Field(Boolean(), "Whether the group is stateful: replies to allowed traffic need no rule.", default=True,
                     sample=True)
    rules = Field(
        ListOf(Record(
            direction=Field(Choices("ingress", "egress"), "To the ports, or from them; V(ingress) when omitted."),
            ethertype=Field(Choices("IPv4", "IPv6"), "V(IPv4) when omitted.", aliases=("ether_type",)),
            protocol=Field(Nullable(Value()), "Name or number of the IP protocol; any when omitted."),
            port_range_min=Field(_PORT, "The first port, or the type of ICMP."),
            port_range_max=Field(_PORT, "The last port, or the code of ICMP."),
            remote_ip_prefix=Field(Nullable(PREFIX), "From or to these addresses only."),
            remote_group=Field(Nullable(REFERENCE), "From or to ports of this security group only, by name or uuid."),
            remote_address_group=Field(Nullable(REFERENCE), "From or to addresses of this address group only, by name "
                                       "or uuid."),
            description=Field(Nullable(DESCRIPTION), "Free text.")), MANY),
        "All of its rules: other rules are removed, and duplicates count once. An omitted port_range_max equals "
        "port_range_min. Without this option, a new group has the cloud's default rules, and an existing group keeps "
        "its rules.",
        sample=[{"direction": "ingress", "ethertype": "IPv4", "protocol": "tcp", "port_range_min": 22,
                 "port_range_max": 22, "remote_ip_prefix": "192.0.2.0/24", "remote_group": None,
                 "remote_address_group": None, "description": ""}])


class DefaultSecurityGroupRule(Kind):
    """A rule that new security groups start with. Its key is USES,DIRECTION,ETHERTYPE,PROTOCOL,MIN,MAX,REMOTE, or its
    uuid. USES: ``default``, ``other``, ``default+other`` or nothing; REMOTE: an IP network, ``group=`` or
    ``addresses=`` and a name or uuid, or nothing.
    """

    noun, plural = "default_security_group_rule", "default_security_group_rules"

    id = Field(Uuid(), "The uuid.", on=READ, sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    name = Field(Text(1, 600), "USES,DIRECTION,ETHERTYPE,PROTOCOL,MIN,MAX,REMOTE.", on=READ,
                 sample="other,ingress,IPv4,tcp,22,22,192.0.2.0/24")
    direction = Field(Choices("ingress", "egress"), "To the ports, or from them.", default="ingress", on=FIXED,
                      sample="ingress")
    ethertype = Field(Choices("IPv4", "IPv6"), "IP version.", default="IPv4", on=FIXED, sample="IPv4")
    protocol = Field(Nullable(Text(1, 40, r"[A-Za-z0-9-]+", "must be a name or number")), "Name or number of the IP "
                     "protocol; any when omitted.", default=None, on=FIXED, sample="tcp")
    port_range_min = Field(_PORT, "The first port, or the type of ICMP.", default=None, on=FIXED, sample=22)
    port_range_max = Field(_PORT, "The last port, or the code of ICMP. Defaults to O(port_range_min), except for ICMP.",
                           default=None, on=FIXED, sample=22)
    remote_ip_prefix = Field(Nullable(PREFIX), "From or to these addresses only.", default=None, on=FIXED,
                             sample="192.0.2.0/24")
    remote_group = Field(Nullable(REFERENCE), "From or to ports of this security group only, by name or uuid, which is "
                         "shared with all projects; V(PARENT) for the new group itself.", default=None, on=FIXED,
                         sample=None)
    remote_address_group = Field(Nullable(REFERENCE), "From or to addresses of this address group only, by name or "
                                 "uuid, which is shared with all projects.", default=None, on=FIXED, sample=None)
    used_in_default_sg = Field(Boolean(), "Whether the C(default) groups of projects that have none yet begin with "
                               "it.", default=False, on=FIXED, sample=False)
    used_in_non_default_sg = Field(Boolean(), "Whether other new groups begin with it.", default=True, on=FIXED,
                                   sample=True)
    description = Field(DESCRIPTION, "Free text of at most 255 characters.", default="", on=FIXED,
                        sample="SSH from the office")


class AddressGroup(Resource):
    """A named list of addresses, for rules of security groups."""

    noun, plural = "address_group", "address_groups"
    sample_changes = {"addresses": (["192.0.2.0/24"], ["198.51.100.7/32"])}

    addresses = Field(ListOf(PREFIX, MANY, unique=True), "All addresses and networks that it has: others are removed. "
                      "They stay as they are when omitted.", sample=["192.0.2.0/24"])


class QosPolicy(Resource):
    """Bandwidth limits, bandwidth guarantees and packet marks (DSCP) for ports."""

    noun, plural = "qos_policy", "qos_policies"
    sample_changes = {"shared": (False, True)}

    shared = Field(Boolean(), "Whether all projects may use it.", default=False, sample=False)
    is_default = Field(Boolean(), "Whether new networks of its project have it.", default=False, aliases=("default",),
                       sample=False)
    rules = Field(
        ListOf(Record(
            type=Field(Choices("bandwidth_limit", "dscp_marking", "minimum_bandwidth"), "The effect of the rule.",
                       required=True),
            direction=Field(Nullable(Choices("egress", "ingress")), "Direction of a limit or minimum: V(egress) "
                            "(outgoing traffic of ports, the default) or V(ingress)."),
            max_kbps=Field(Nullable(Integer(1, 2**31 - 1)), "The limit in kbit/s."),
            max_burst_kbps=Field(Nullable(Integer(0, 2**31 - 1)), "Size of a burst in kbit; V(0), the default, means "
                                 "the default of the engine."),
            dscp_mark=Field(Nullable(Integer(0, 56)), "The mark of packets that ports send."),
            min_kbps=Field(Nullable(Integer(1, 2**31 - 1)), "Guaranteed bandwidth of a port in kbit/s: the scheduler "
                           "chooses a host that has that much left.")), 10),
        "All rules that it has, one of a type and direction: others are removed. They stay as they are when omitted.",
        sample=[{"type": "bandwidth_limit", "direction": "egress", "max_kbps": 10000, "max_burst_kbps": 0,
                 "dscp_mark": None, "min_kbps": None}])


class RbacPolicy(Kind):
    """Permission for another project to use a resource. Its key is TYPE:ACTION:PROJECT:OBJECT, or its uuid."""

    noun, plural = "rbac_policy", "rbac_policies"

    id = Field(Uuid(), "The uuid.", on=READ, sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    name = Field(Text(1, 600), "TYPE:ACTION:PROJECT:OBJECT.", on=READ,
                 sample="network:access_as_shared:0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a:5b6c0a4e-9f0a-4d0e-8a55-7b1f6a0c2d11")
    object_type = Field(Choices("network", "security_group", "qos_policy", "address_group", "subnetpool",
                                "address_scope"), "Kind of the thing.", required=True, on=FIXED, sample="network")
    object = Field(REFERENCE, "The thing, by name or uuid.", required=True, on=FIXED, aliases=("object_id",),
                   sample="5b6c0a4e-9f0a-4d0e-8a55-7b1f6a0c2d11")
    action = Field(Choices("access_as_shared", "access_as_external"), "The permission of the project: use the object, "
                   "or (networks only, by administrators) use it as an external network.",
                   default="access_as_shared", on=FIXED,
                   sample="access_as_shared")
    target_project = Field(Text(1, 255, r"[^:]+", "must be a project by id or name, or *"), "The project, by id; for "
                           "administrators also by name. V(*) means all projects, for administrators only.",
                           required=True, on=FIXED, aliases=("target_project_id",),
                           sample="0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a")
