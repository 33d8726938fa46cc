# SPDX-License-Identifier: GPL-3.0-or-later
"""flavor: the size of a server; flavor_access: the permission of a project to use a flavor that is not public."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from ..errors import InvalidField
from ..fields import FIXED, READ, Field, Kind
from ..values import Boolean, Integer, MapOf, Text
from .common import REFERENCE, Resource

VCPUS = Integer(1, 4096)
RAM = Integer(1, 2**26)
DISK = Integer(0, 2**20)
SWAP = Integer(0, 2**26)


def size_fields(required: bool = True) -> dict[str, Field]:
    """Return the fields with the sizes of a server (CPUs, memory, disks), by name, as flavors have them. *required*:
    whether CPUs and memory must be set.
    """
    return {
        "vcpus": Field(VCPUS, "Number of virtual CPUs.", required=required, on=FIXED, sample=1),
        "ram": Field(RAM, "Memory in MiB.", required=required, on=FIXED, sample=512),
        "disk": Field(DISK, "Root disk in GiB; 0 keeps the size of the image.", default=0, on=FIXED, sample=10),
        "ephemeral": Field(DISK, "Ephemeral disk in GiB; 0 for none.", default=0, on=FIXED, sample=0),
        "swap": Field(SWAP, "Swap disk in MiB; 0 for none.", default=0, on=FIXED, sample=0),
    }


def complete_sizes(requested: Mapping[str, Any], old: Optional[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the complete sizes of a server that has no flavor: the *requested* sizes, and for omitted ones its current
    sizes *old* (``None``: a new server). Raises ``InvalidField`` if ``vcpus`` or ``ram`` is missing.
    """
    sizes = dict(old or {}, **requested)
    for name in ("vcpus", "ram"):
        if name not in sizes:
            raise InvalidField("flavor." + name, "is required to make a server: give vcpus and ram, or a flavor")
    return sizes


class Flavor(Resource):
    """The size of a server: CPUs, memory and disks. A server stores a copy of the sizes."""

    noun, plural = "flavor", "flavors"
    of_clouds = frozenset(("is_public",))

    vcpus, ram, disk, ephemeral, swap = size_fields().values()
    extra_specs = Field(MapOf(Text(1, 255, r"[\w.:\- ]+", "may have letters, digits, and . : - _ only"), Text(0, 255)),
                        "Extra specs, keys to strings: hardware of its servers in addition to sizes, and suitable "
                        "hosts.",
                        default={}, sample={"hw:watchdog_action": "reset"})
    is_public = Field(Boolean(), "Whether all projects of a cloud may use it; V(true) when omitted for a new flavor.",
                      on=FIXED, sample=True)


class FlavorAccess(Kind):
    """The permission of a project to use a flavor that is not public. Its key is PROJECT:FLAVOR, or its uuid."""

    noun, plural = "flavor_access", "flavor_accesses"
    sample_changes = {"flavor": (None, "large")}

    id = Field(Text(), "The uuid, derived from project and flavor.", on=READ,
               sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    name = Field(Text(1, 600), "PROJECT:FLAVOR.", on=READ, sample="0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a:large")
    flavor = Field(REFERENCE, "The flavor, by name or id; reported by name.", required=True, on=FIXED,
                   aliases=("name",), sample="large")
    flavor_id = Field(Text(), "The flavor's id.", on=READ, sample="5b6c0a4e-9f0a-4d0e-8a55-7b1f6a0c2d11")
    project = Field(Text(1, 255, r"[^:]+", "must be a project by id or name"), "The project, by id or name; reported "
                    "by id.", required=True, on=FIXED, sample="0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a")
