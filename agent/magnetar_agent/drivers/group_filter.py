# SPDX-License-Identifier: GPL-3.0-or-later
"""group_filter: a document, of which ``port_security`` makes what the kernel filters by."""

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
    """Security groups of a cloud. What is older than what the host knows changes nothing: two conductors may tell."""

    def __init__(self) -> None:
        super().__init__(GroupFilter)

    def complete(self, host: LocalHost, want: Fields, document: Document | None) -> Fields:
        """Check what the kernel will be told, and write addresses in normal form. Raises ``InvalidField``."""
        if document is not None and want["revision"] < document.want["revision"]:
            return {**document.want, "name": want["name"]}
        rules = [_checked(one, f"rules[{at}]") for at, one in enumerate(want["rules"])]
        members = {_address(one, f"members[{at}]") for at, one in enumerate(want["members"])}
        return {**want, "rules": rules, "members": sorted(members)}


def _address(given: str, field: str) -> str:
    try:
        return str(ip_address(given))
    except ValueError:
        raise InvalidField(field, "must be an IP address", given) from None


def _network(given: str, field: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(given, strict=False)
    except ValueError:
        raise InvalidField(field, "must be an IP address or network", given) from None


def _checked(rule: Fields, field: str) -> Fields:
    found, prefix = dict(rule), rule.get("remote_ip_prefix")
    if prefix is not None:
        network = _network(prefix, f"{field}.remote_ip_prefix")
        if network.version != VERSIONS[rule["ethertype"]]:
            raise InvalidField(f"{field}.remote_ip_prefix", f"must be of {rule['ethertype']}", prefix)
        if rule.get("remote_group") is not None:
            raise InvalidField(f"{field}.remote_group", "cannot be given with remote_ip_prefix", rule["remote_group"])
        found["remote_ip_prefix"] = str(network)
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
    return found


def rule(said: Fields) -> GroupRule:
    """The rule of a document, as the kernel is told of it."""
    return GroupRule(said["direction"], VERSIONS[said["ethertype"]], *(said.get(name) for name in (
        "protocol", "port_range_min", "port_range_max", "remote_ip_prefix", "remote_group")))
