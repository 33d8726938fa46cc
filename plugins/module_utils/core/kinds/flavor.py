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


def sizes(required: bool = True) -> dict[str, Field]:
    """The size fields, alike in a flavor and in a server's inline flavor."""
    return {
        "vcpus": Field(VCPUS, "Number of virtual CPUs.", required=required, on=FIXED, sample=1),
        "ram": Field(RAM, "Memory in MiB.", required=required, on=FIXED, sample=512),
        "disk": Field(DISK, "Root disk in GiB; 0 keeps the size of the image.", default=0, on=FIXED, sample=10),
        "ephemeral": Field(DISK, "Ephemeral disk in GiB; 0 for none.", default=0, on=FIXED, sample=0),
        "swap": Field(SWAP, "Swap disk in MiB; 0 for none.", default=0, on=FIXED, sample=0),
    }


def completed(given: Mapping[str, Any], old: Optional[Mapping[str, Any]]) -> dict[str, Any]:
    """The sizes *given* in place of a flavor, with those of *old*, which the server has, where they are left out."""
    found = dict(old or {}, **given)
    for name in ("vcpus", "ram"):
        if name not in found:
            raise InvalidField("flavor." + name, "is required to make a server: give vcpus and ram, or a flavor")
    return found


class Flavor(Resource):
    """The size of a server: CPUs, memory and disks. Servers keep the sizes they were made with."""

    noun, plural = "flavor", "flavors"

    vcpus, ram, disk, ephemeral, swap = sizes().values()
    extra_specs = Field(MapOf(Text(1, 255, r"[\w.:\- ]+", "may have letters, digits, and . : - _ only"), Text(0, 255)),
                        "Extra specs, keys to strings: what its servers have besides sizes, and which hosts suit them.",
                        default={}, sample={"hw:watchdog_action": "reset"})
