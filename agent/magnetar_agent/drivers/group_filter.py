# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the resource type group_filter: stores security groups, from which ``port_security`` makes the kernel's
filter."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING

from magnetar_agent.host.networks import GroupRule
from magnetar_core.errors import InvalidField
from magnetar_core.kinds import GroupFilter

from .document import DocumentDriver

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields

VERSIONS = {"IPv4": 4, "IPv6": 6}


class GroupFilterDriver(DocumentDriver):
    """The resource driver of a cloud's security groups. A request with an older revision than the stored one changes
    nothing, because several conductors may send the same group in any order."""

    def __init__(self) -> None:
        super().__init__(GroupFilter)

    def complete(self, host: LocalHost, want: Fields, document: Document | None) -> Fields:
        """Return the requested fields *want* with checked rules and normalized IP addresses. If *want* has an older
        revision than *document*, return the stored fields with the requested name. *document*: the stored group;
        ``None`` for a new one. Raises ``InvalidField``."""
        if document is not None and want["revision"] < document.want["revision"]:
            return {**document.want, "name": want["name"]}
        rules = [_checked(rule, f"rules[{at}]") for at, rule in enumerate(want["rules"])]
        members = {_address(member, f"members[{at}]") for at, member in enumerate(want["members"])}
        return {**want, "rules": rules, "members": sorted(members)}


def _address(address: str, field: str) -> str:
    try:
        return str(ip_address(address))
    except ValueError:
        raise InvalidField(field, "must be an IP address", address) from None


def _network(prefix: str, field: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(prefix, strict=False)
    except ValueError:
        raise InvalidField(field, "must be an IP address or network", prefix) from None


def _checked(rule: Fields, field: str) -> Fields:
    checked, prefix = dict(rule), rule.get("remote_ip_prefix")
    if prefix is not None:
        network = _network(prefix, f"{field}.remote_ip_prefix")
        if network.version != VERSIONS[rule["ethertype"]]:
            raise InvalidField(f"{field}.remote_ip_prefix", f"must be of {rule['ethertype']}", prefix)
        if rule.get("remote_group") is not None:
            raise InvalidField(f"{field}.remote_group", "cannot be given with remote_ip_prefix", rule["remote_group"])
        checked["remote_ip_prefix"] = str(network)
    least, most = rule.get("port_range_min"), rule.get("port_range_max")
    if rule.get("protocol") is None and (least, most) != (None, None):
        raise InvalidField(f"{field}.port_range_min", "needs a protocol", least)
    if rule.get("protocol") in (1, 58):
        if max(least or 0, most or 0) > 255:
            raise InvalidField(f"{field}.port_range_min", "must be a type of ICMP, and port_range_max a code, each "
                                                          "from 0 to 255", least)
    elif (least is None) != (most is None) or (least or 0) > (most or 0):
        raise InvalidField(f"{field}.port_range_min", "must be at most port_range_max, and both be given or none",
                           least)
    return checked


def parse_group_rule(rule_fields: Fields) -> GroupRule:
    """Return the ``GroupRule`` for one stored rule of a security group. *rule_fields*: direction, ethertype, and
    optional protocol, ports and remote."""
    return GroupRule(rule_fields["direction"], VERSIONS[rule_fields["ethertype"]], *(rule_fields.get(name) for name in (
        "protocol", "port_range_min", "port_range_max", "remote_ip_prefix", "remote_group")))
