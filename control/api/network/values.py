# SPDX-License-Identifier: GPL-3.0-or-later
"""Value types of Neutron's bodies."""

from __future__ import annotations

from ipaddress import IPv4Network, ip_network
from typing import Any

from magnetar_control.api.values import Address, OrEmpty, Truth, record
from magnetar_core.errors import InvalidField
from magnetar_core.values import ListOf, Text, Value
from magnetar_core.versions import Version

TRUTH = Truth(("true", "1", "yes", "on"), ("false", "0", "no", "off"), any_case=True)
#: Names of IP protocols that Neutron knows, besides numbers up to 255.
PROTOCOLS = frozenset({"ah", "dccp", "egp", "esp", "gre", "icmp", "icmpv6", "igmp", "ipip", "ipv6-encap", "ipv6-frag",
                       "ipv6-icmp", "ipv6-nonxt", "ipv6-opts", "ipv6-route", "ospf", "pgm", "rsvp", "sctp", "tcp",
                       "udp", "udplite", "vrrp"})


class Word(Value):
    """One of *words*, in any case."""

    def __init__(self, *words: str) -> None:
        self.words = {word.lower(): word for word in words}

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        """The word as it was declared."""
        if str(value).lower() not in self.words:
            raise InvalidField(path, f"must be one of {', '.join(self.words.values())}", value)
        return self.words[str(value).lower()]


class Version4(Value):
    """The IP version 4, also as text."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        """The number."""
        if str(value) != "4":
            raise InvalidField(path, "must be 4: embedded networking has IPv4 only", value)
        return 4


class Cidr(Value):
    """An IPv4 subnet with a prefix of 8 to 30 bits; normal form has no bits of hosts."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        """The subnet as text."""
        try:
            found = IPv4Network(str(value), strict=False)
        except ValueError:
            raise InvalidField(path, "must be an IPv4 subnet such as 10.1.0.0/24", value) from None
        if "/" not in str(value) or not 8 <= found.prefixlen <= 30:
            raise InvalidField(path, "must have a prefix length between 8 and 30", value)
        return str(found)


class Prefix(Value):
    """An IPv4 or IPv6 network; normal form has no bits of hosts."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        """The network as text."""
        try:
            return str(ip_network(str(value), strict=False))
        except ValueError:
            raise InvalidField(path, "must be an IP network such as 10.1.0.0/24", value) from None


class Protocol(Value):
    """The name or number of an IP protocol; ``None`` for any."""

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        """In lower case."""
        word = str(value).lower()
        if value is None or word in ("any", "0"):
            return None
        if word not in PROTOCOLS and not (word.isdecimal() and int(word) <= 255):
            raise InvalidField(path, "must be the name of an IP protocol, or a number from 0 to 255", value)
        return word


class FixedIp(Value):
    """An address that a port asks for: {subnet_id, ip_address}, or one of the two."""

    def __init__(self, *fields: Value) -> None:
        self.value = record(dict(zip(("subnet_id", "ip_address"), fields, strict=True)))

    def check(self, value: Any, path: str, version: Version | None = None) -> Any:
        """The object."""
        found = self.value.check(value, path, version)
        if not found:
            raise InvalidField(path, "must have subnet_id, ip_address or both")
        return found


TEXT = OrEmpty(Text(0, 255), "")
#: The agents' networks have no other addresses.
ADDRESS = Address(4)


def items(item: Value) -> Value:
    """A list; null is the empty one."""
    return OrEmpty(ListOf(item, 10_000), [])
