# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the rules of security groups, including the default rules."""

from __future__ import annotations

from ipaddress import ip_network

from magnetar_core.document import Document
from magnetar_core.errors import InvalidField, InvalidRequest

#: Numbers of the protocols that Neutron names.
NUMBERS = {"tcp": 6, "udp": 17, "sctp": 132, "icmp": 1, "ah": 51, "dccp": 33, "egp": 8, "esp": 50, "gre": 47,
           "igmp": 2, "ipip": 4, "ipv6-encap": 41, "ipv6-frag": 44, "ipv6-nonxt": 59, "ipv6-opts": 60,
           "ipv6-route": 43, "ospf": 89, "pgm": 113, "rsvp": 46, "udplite": 136, "vrrp": 112, "icmpv6": 58,
           "ipv6-icmp": 58}
#: Names and numbers of the protocols with ports, and of those whose ports are an ICMP type and code.
WITH_PORTS = frozenset({"tcp", "udp", "sctp", "dccp", "udplite", "6", "17", "33", "132", "136"})
#: Protocols whose ports OVN does not match.
WITHOUT_MATCH = frozenset({"dccp", "udplite", "33", "136"})
ICMP = frozenset({"icmp", "icmpv6", "ipv6-icmp", "1", "58"})
#: Protocols that no IPv4 packet has here, as in Neutron.
OF_IPV6 = frozenset(protocol for name, number in NUMBERS.items() if name == "icmpv6" or name.startswith("ipv6-")
                    for protocol in (name, str(number)))
ETHERTYPES = ("IPv4", "IPv6")
#: Attributes that make two rules the same.
SAME = ("direction", "ethertype", "protocol", "port_range_min", "port_range_max", "remote_ip_prefix", "remote_group_id",
        "remote_address_group_id")


def check_rule_values(has_engine: bool, values: Document) -> None:
    """Check that the *values* of a rule are consistent. *has_engine*: whether there is a network engine (OVN); if so,
    it must support the rule. Raises ``InvalidRequest``, ``InvalidField``."""
    _check_remote(values)
    if values["ethertype"] == "IPv4" and values["protocol"] in OF_IPV6:
        raise InvalidRequest(f"Invalid ethertype IPv4 for protocol {values['protocol']}: it is of IPv6. Give the rule "
                             "ethertype IPv6.", type="SecurityGroupEthertypeConflictWithProtocol")
    _check_ports(values)
    if has_engine and values["port_range_min"] is not None and values["protocol"] in WITHOUT_MATCH:
        raise InvalidField("port_range_min", "must be left out: OVN looks at ports of tcp, udp or sctp, and the "
                                             f"protocol is {values['protocol']}", values["port_range_min"])
    if values["remote_address_group_id"] and not has_engine:
        raise InvalidField("remote_address_group_id", "must be null: address groups are for networks of OVN (setting "
                                                      "ovn_northbound)", values["remote_address_group_id"])


def _check_remote(values: Document) -> None:
    prefix = values["remote_ip_prefix"]
    if sum(bool(values[name]) for name in ("remote_ip_prefix", "remote_group_id", "remote_address_group_id")) > 1:
        raise InvalidRequest("Only one of remote_ip_prefix, remote_group_id or remote_address_group_id may be "
                             "provided.", type="SecurityGroupMultipleRemoteEntities")
    if prefix and f"IPv{ip_network(prefix).version}" != values["ethertype"]:
        raise InvalidRequest(f"Conflicting value ethertype {values['ethertype']} for CIDR {prefix}",
                             type="SecurityGroupRuleParameterConflict")


def _check_ports(values: Document) -> None:
    least, most, protocol = values["port_range_min"], values["port_range_max"], values["protocol"]
    if least is None and most is None:
        return
    if protocol is None:
        raise InvalidRequest("Must also specify protocol if port range is given.",
                             type="SecurityGroupProtocolRequiredWithPorts")
    if protocol in ICMP:
        if least is None or least > 255 or (most or 0) > 255:
            raise InvalidRequest("For ICMP port_range_min is the type and port_range_max the code, each from 0 to "
                                 "255; a code needs a type.", type="SecurityGroupInvalidIcmpValue")
    elif protocol in WITH_PORTS and 0 in (least, most):
        raise InvalidRequest("Invalid value for port 0: no packet has it. Ports are from 1 to 65535; leave both out "
                             "for all.", type="SecurityGroupInvalidPortValue")
    elif protocol not in WITH_PORTS or least is None or most is None or least > most:
        raise InvalidRequest("For TCP/UDP protocols, port_range_min must be <= port_range_max; other protocols have no "
                             "ports.", type="SecurityGroupInvalidPortRange")
