# SPDX-License-Identifier: GPL-3.0-or-later
"""limits: what a project of a cloud may use, and uses; read only."""

from __future__ import annotations

from ..fields import READ, Field, Kind
from ..values import Integer, Text


class Limits(Kind):
    """Limits of the project of the token; -1 is none."""

    noun, plural = "limits", "limits"
    selectable = False

    name = Field(Text(), "The project.", on=READ, sample="shop")
    instances = Field(Integer(), "Servers.", on=READ, sample=10)
    instances_used = Field(Integer(), "Servers that there are.", on=READ, sample=3)
    cores = Field(Integer(), "CPUs of all servers.", on=READ, sample=20)
    cores_used = Field(Integer(), "CPUs that they have.", on=READ, sample=6)
    ram = Field(Integer(), "Memory of all servers in MiB.", on=READ, sample=51200)
    ram_used = Field(Integer(), "Memory that they have in MiB.", on=READ, sample=6144)
    metadata_items = Field(Integer(), "Metadata keys of a server.", on=READ, sample=128)
    key_pairs = Field(Integer(), "Key pairs of a user.", on=READ, sample=100)
    server_groups = Field(Integer(), "Server groups.", on=READ, sample=10)
    server_groups_used = Field(Integer(), "Server groups that there are.", on=READ, sample=0)
    server_group_members = Field(Integer(), "Members of a server group.", on=READ, sample=10)
