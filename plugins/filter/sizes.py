# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters for sizes and flavors."""

from __future__ import annotations

import re
from fractions import Fraction

from ansible.errors import AnsibleFilterError

#: Bytes of each unit. As in libvirt, K, M and so on are binary, and KB, MB decimal.
UNITS = {"": 1, "B": 1, **{letter + ending: base ** power for power, letter in enumerate("KMGTP", 1)
                           for ending, base in (("", 1024), ("IB", 1024), ("B", 1000))}}
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([A-Za-z]{0,3})")


def bytes_of_size(size):
    """Return the number of bytes of *size*, a text such as ``1.5 GiB``, as an exact ``Fraction``. Raises
    ``AnsibleFilterError`` for anything else.
    """
    match = _SIZE.fullmatch(str(size).strip()) if isinstance(size, (str, int, float)) and (
        not isinstance(size, bool)) else None
    if match is None or match[2].upper() not in UNITS:
        raise AnsibleFilterError("%r is no size: write a number and a unit, such as 512 MiB, 4G or 1.5 TB." % (size,))
    return Fraction(match[1]) * UNITS[match[2].upper()]


def mib(size):
    """Return *size*, such as ``1.5 GiB``, in MiB (the unit of a flavor's ``ram``), rounded up."""
    return _rounded_up(size, 1024**2)


def gib(size):
    """Return *size*, such as ``1.5 TiB``, in GiB (the unit of disks and volumes), rounded up."""
    return _rounded_up(size, 1024**3)


def _rounded_up(size, unit):
    return -int(-bytes_of_size(size) // unit)


def smallest_flavor(flavors, vcpus=1, ram=0, disk=0):
    """Return the smallest of *flavors* that has at least *vcpus* CPUs, *ram* (in MiB, or a text with a unit) and *disk*
    (in GiB, or a text with a unit). The smallest has the least memory; among equal ones the fewest CPUs, then the
    smallest disk. *flavors*: as flavor_info returns them. Raises ``AnsibleFilterError`` if none is large enough.
    """
    least = {"vcpus": vcpus, "ram": ram if isinstance(ram, int) else mib(ram),
             "disk": disk if isinstance(disk, int) else gib(disk)}
    try:
        fitting = [flavor for flavor in flavors
                   if all(int(flavor.get(name) or 0) >= int(size) for name, size in least.items())]
        if fitting:
            return min(fitting, key=lambda flavor: (flavor["ram"], flavor["vcpus"], flavor.get("disk") or 0,
                                                    flavor["name"]))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise AnsibleFilterError("smallest_flavor needs the flavors that flavor_info returns, and whole numbers or "
                                 "sizes.") from None
    raise AnsibleFilterError("No flavor has %(vcpus)s CPUs, %(ram)s MiB of memory and %(disk)s GiB of disk." % least)


class FilterModule:
    """The filter plugins ``mib``, ``gib`` and ``smallest_flavor``."""

    def filters(self):
        """Return the filter functions by name."""
        return {"mib": mib, "gib": gib, "smallest_flavor": smallest_flavor}
