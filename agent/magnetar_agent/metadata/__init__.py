# SPDX-License-Identifier: GPL-3.0-or-later
"""The metadata service: guests read their metadata at http://169.254.169.254 (or fe80::a9fe:a9fe), as in Nova.

It has three parts; each trusts the next one less:

* ``service`` is part of the agent: it maps taps to servers, and answers with a guest's data.
* ``steering`` is the kernel's part: a device on each bridge, and a table of nftables that redirects requests to it,
  replaces their destination by the address of the tap that they came from, and sends answers to that tap only.
* ``process`` runs as an unprivileged user (``guest_process`` starts it), in its own network namespaces, and speaks
  HTTP with guests (``guest_http``).
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

ADDRESS, ADDRESS6, PORT = "169.254.169.254", "fe80::a9fe:a9fe", 80
#: Networks of the taps' addresses within the service's namespaces; the destination of a tap's requests
#: becomes its address. No guest has such an address itself.
TAPS, TAPS6 = IPv4Address("240.0.0.0"), IPv6Address("fd4d:6167::")
#: Number of such addresses.
MOST_TAPS = 1 << 22


def tap_addresses(number: int) -> tuple[str, str]:
    """Return the IPv4 and IPv6 address that identify a guest's tap device in the metadata service: nftables rules
    replace the destination address of the guest's requests by them. *number*: the number that the service has given to
    the tap."""
    return str(TAPS + number), str(TAPS6 + number)
