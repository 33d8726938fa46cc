# SPDX-License-Identifier: GPL-3.0-or-later
"""flavor: the size of a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from ..errors import InvalidField
from ..fields import FIXED, Field
from ..values import Integer, MapOf, Text
from .common import Resource

VCPUS = Integer(1, 4096)
RAM = Integer(1, 2**26)
DISK = Integer(0, 2**20)
SWAP = Integer(0, 2**26)


def size_fields(required: bool = True) -> dict[str, Field]:
    """Return the size fields of flavors and of servers without one, by name. *required*: CPUs and memory must be set.
    """
    return {
        "vcpus": Field(VCPUS, "Number of virtual CPUs.", required=required, on=FIXED, sample=1),
        "ram": Field(RAM, "Memory in MiB.", required=required, on=FIXED, sample=512),
        "disk": Field(DISK, "Root disk in GiB; 0 keeps the size of the image.", default=0, on=FIXED, sample=10),
        "ephemeral": Field(DISK, "Ephemeral disk in GiB; 0 for none.", default=0, on=FIXED, sample=0),
        "swap": Field(SWAP, "Swap disk in MiB; 0 for none.", default=0, on=FIXED, sample=0),
    }


def complete_sizes(requested: Mapping[str, Any], old: Optional[Mapping[str, Any]]) -> dict[str, Any]:
    """Return complete sizes of a server without a flavor: those *requested*, and for omitted ones those of *old*, the
    server's current sizes. Raises ``InvalidField`` when ``vcpus`` or ``ram`` is missing.
    """
    sizes = dict(old or {}, **requested)
    for name in ("vcpus", "ram"):
        if name not in sizes:
            raise InvalidField("flavor." + name, "is required to make a server: give vcpus and ram, or a flavor")
    return sizes


class Flavor(Resource):
    """The size of a server: CPUs, memory and disks. Servers keep the sizes that they were made with."""

    noun, plural = "flavor", "flavors"

    vcpus, ram, disk, ephemeral, swap = size_fields().values()
    extra_specs = Field(MapOf(Text(1, 255, r"[\w.:\- ]+", "may have letters, digits, and . : - _ only"), Text(0, 255)),
                        "Extra specs, keys to strings: hardware of its servers in addition to sizes, and suitable "
                        "hosts.",
                        default={}, sample={"hw:watchdog_action": "reset"})
