# SPDX-License-Identifier: GPL-3.0-or-later
"""quota: the limits of a cloud's project."""

from __future__ import annotations

from ..fields import READ, Field, Kind
from ..values import Integer, Text

_MOST = Integer(-1)


class Quota(Kind):
    """Limits of one project on servers; -1 means no limit. Unset limits are the defaults of the cloud."""

    noun, plural = "quota", "quotas"
    sample_changes = {"instances": (10, 20)}

    name = Field(Text(1, 255), "The id of the project.", on=READ,
                 sample="0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a")
    instances = Field(_MOST, "Limit of servers.", sample=10)
    cores = Field(_MOST, "Limit of the CPUs of all servers.", sample=20)
    ram = Field(_MOST, "Limit of the memory of all servers in MiB.", sample=51200)
    metadata_items = Field(_MOST, "Metadata keys of a server.", sample=128)
    key_pairs = Field(_MOST, "Key pairs of a user.", sample=100)
    server_groups = Field(_MOST, "Server groups.", sample=10)
    server_group_members = Field(_MOST, "Servers in a server group.", sample=10)
    instances_used = Field(Integer(), "Existing servers.", on=READ, sample=3)
    cores_used = Field(Integer(), "CPUs of the existing servers.", on=READ, sample=6)
    ram_used = Field(Integer(), "Memory of the existing servers in MiB.", on=READ, sample=6144)
    server_groups_used = Field(Integer(), "Existing server groups.", on=READ, sample=0)
