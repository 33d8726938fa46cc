# SPDX-License-Identifier: GPL-3.0-or-later
"""volume_type: properties of volumes of a cloud."""

from __future__ import annotations

from ..fields import FIXED, READ, Field, Kind, Record
from ..values import Boolean, Choices, Integer, ListOf, MapOf, Nullable, Text, Uuid
from .common import DESCRIPTION, NAME

#: Encryption providers of volume types, and ciphers.
PROVIDERS, CIPHERS = ("luks",), ("aes-xts-plain64",)


class CloudVolumeType(Kind):
    """A volume type of a cloud. A new cloud has one volume type for each pool, derived from the cloud's settings."""

    noun, plural = "volume_type", "volume_types"
    sample_changes = {"description": ("", "for databases")}

    id = Field(Uuid(), "The uuid; the cloud generates it.", on=FIXED, sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    name = Field(NAME, "The name; volumes refer to it.", required=True, sample="fast")
    description = Field(DESCRIPTION, "Free text of at most 255 characters.", default="", sample="for databases")
    is_public = Field(Boolean(), "Whether all projects may use it.", default=True, sample=False)
    projects = Field(ListOf(Text(1, 255), 1000, unique=True), "Projects that may use a type that is not public, by id "
                     "or name; reported by id, to administrators.", default=[],
                     sample=["0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a"])
    extra_specs = Field(MapOf(Text(1, 255), Text(0, 255)), "Extra specs, keys to strings: C(pool_name), the pool of "
                        "its volumes; C(multiattach), whether several servers may use one at the same time; "
                        "C(volume_backend_name) and C(capabilities:KEY), by which each volume gets the pool with the "
                        "most free space among those that match. A volume is refused when no pool matches. They "
                        "cannot change while volumes have the type. Users without the role admin see C(multiattach) "
                        "only.",
                        default={}, sample={"pool_name": "default", "multiattach": "<is> True"})
    encryption = Field(
        Record(provider=Field(Choices(*PROVIDERS), "Encryption provider; required."),
               cipher=Field(Nullable(Choices(*CIPHERS)), "The cipher; the only one when omitted."),
               key_size=Field(Nullable(Integer(256, 512)), "Bits of the key: V(256), or V(512), which counts both keys "
                              "of XTS.")),
        "Encryption of its volumes; empty for none. It cannot change while volumes have the type. Reported to "
        "administrators.", default={}, sample={"provider": "luks", "cipher": "aes-xts-plain64", "key_size": 256})
    pool = Field(Text(), "The pool that its volumes lie in; empty if the extra specs choose one for each volume.",
                 on=READ, sample="default")
    multiattach = Field(Boolean(), "Whether several servers may use one of its volumes at the same time.", on=READ,
                        sample=True)
