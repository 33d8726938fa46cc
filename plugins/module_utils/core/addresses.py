# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of a network's ``cidr`` and DHCP range, the same for networks of a host and of a cloud."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address
from typing import Any, Dict, Optional

from .errors import InvalidField

#: Shortest and longest prefix.
PREFIXES = (8, 30)
#: Private networks (RFC 1918).
PRIVATE = (IPv4Network("10.0.0.0/8"), IPv4Network("172.16.0.0/12"), IPv4Network("192.168.0.0/16"))
#: Networks that guests cannot use.
SPECIAL = (
    (IPv4Network("0.0.0.0/8"), "unspecified"), (IPv4Network("127.0.0.0/8"), "loopback"),
    (IPv4Network("169.254.0.0/16"), "link-local"), (IPv4Network("224.0.0.0/3"), "multicast or reserved"),
)


def link_local(mac: str) -> str:
    """Return the link-local IPv6 address that belongs to the MAC address *mac* (EUI-64, RFC 4291)."""
    octets = bytes.fromhex(mac.replace(":", ""))
    return str(IPv6Address(b"\xfe\x80" + bytes(6) + bytes((octets[0] ^ 2,)) + octets[1:3] + b"\xff\xfe" + octets[3:]))


def normalize_cidr(want: Dict[str, Any]) -> IPv4Network:
    """Replace the field ``cidr`` of *want*, the desired state of a network, by its normal form (the address of the
    network, not of a host in it), and return the network. Raises ``InvalidField`` if the field is missing or not
    allowed.
    """
    if not want.get("cidr") and want.get("bridge"):
        raise InvalidField("mode", "must be bridge to use the bridge %s of the host; a network of mode %s has "
                           "addresses of its own, and needs cidr" % (want["bridge"], want["mode"]), want["mode"])
    if not want.get("cidr"):
        raise InvalidField("cidr", f"is required with mode {want['mode']}, such as 192.168.100.0/24")
    try:
        net = IPv4Network(want["cidr"], strict=False)
    except ValueError:
        raise InvalidField("cidr", "must be an IPv4 network such as 192.168.100.0/24", want["cidr"]) from None
    if not PREFIXES[0] <= net.prefixlen <= PREFIXES[1]:
        raise InvalidField("cidr", f"must have a prefix from /{PREFIXES[0]} to /{PREFIXES[1]}", want["cidr"])
    check_special_networks(net)
    want["cidr"] = str(net)
    return net


def check_special_networks(net: IPv4Network) -> None:
    """Raise ``InvalidField`` if *net* overlaps loopback, link-local, multicast or other special addresses
    (``SPECIAL``).
    """
    for bad, why in SPECIAL:
        if net.overlaps(bad):
            raise InvalidField("cidr", f"must not hold {why} addresses ({bad})", str(net))


def fill_dhcp_range(want: Dict[str, Any], net: IPv4Network) -> None:
    """Set ``dhcp_start`` and ``dhcp_end`` of *want*, the desired state of a network, if they are missing: to the second
    and the last usable address of *net*. The first usable address belongs to the host or the router. Raises
    ``InvalidField`` if a given ``dhcp_start`` or ``dhcp_end`` lies outside this range, or if ``dhcp_start`` comes after
    ``dhcp_end``.
    """
    first, last = net.network_address + 2, net.broadcast_address - 1
    start = _address("dhcp_start", want.get("dhcp_start"), first, last) or first
    end = _address("dhcp_end", want.get("dhcp_end"), first, last) or last
    if start > end:
        raise InvalidField("dhcp_start", f"must not come after dhcp_end ({end})", str(start))
    want.update(dhcp_start=str(start), dhcp_end=str(end))


def _address(name: str, text: Optional[str], first: IPv4Address, last: IPv4Address) -> Optional[IPv4Address]:
    if text is None:
        return None
    try:
        address = IPv4Address(text)
    except ValueError:
        raise InvalidField(name, "must be an IPv4 address", text) from None
    if not first <= address <= last:
        raise InvalidField(name, f"must lie in {first} to {last}; the address before is the host's", text)
    return address
