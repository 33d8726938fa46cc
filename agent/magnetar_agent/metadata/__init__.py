# SPDX-License-Identifier: GPL-3.0-or-later
"""The metadata service: guests ask http://169.254.169.254 (or fe80::a9fe:a9fe) what they are (MD-07, MDS-01).

Three parts, each of which trusts the next one less:

* ``service`` is the agent's: it knows which tap belongs to which server, and answers what a guest is told.
* ``steering`` is the kernel's part: a device on each bridge, and a table of nftables that leads requests there, gives
  each an address by the tap that it came from, and lets answers out at that tap only.
* ``process`` runs as a user without rights (``guest_process`` has it started), in network namespaces of its own, and
  speaks HTTP with guests (``guest_http``).
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

ADDRESS, ADDRESS6, PORT = "169.254.169.254", "fe80::a9fe:a9fe", 80
#: Within the service's namespaces each tap has an address of these networks, to which its requests are led. No guest
#: has such addresses itself.
TAPS, TAPS6 = IPv4Address("240.0.0.0"), IPv6Address("fd4d:6167::")
#: How many addresses there are.
MOST_TAPS = 1 << 22


def addresses(number: int) -> tuple[str, str]:
    """The IPv4 and IPv6 address by which tap *number* is known."""
    return str(TAPS + number), str(TAPS6 + number)
