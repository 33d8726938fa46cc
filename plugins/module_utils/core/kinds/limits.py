# SPDX-License-Identifier: GPL-3.0-or-later
"""limits: limits and usage of a project of a cloud; read only."""

from __future__ import annotations

from ..fields import READ, Field, Kind
from ..values import Integer, Text


class Limits(Kind):
    """Limits of the token's project; -1 means no limit."""

    noun, plural = "limits", "limits"
    selectable = False
    report_doc = "The limits of the project, as the only item."

    name = Field(Text(), "The project.", on=READ, sample="shop")
    instances = Field(Integer(), "Limit of servers.", on=READ, sample=10)
    instances_used = Field(Integer(), "Existing servers.", on=READ, sample=3)
    cores = Field(Integer(), "Limit of the CPUs of all servers.", on=READ, sample=20)
    cores_used = Field(Integer(), "CPUs of the existing servers.", on=READ, sample=6)
    ram = Field(Integer(), "Limit of the memory of all servers in MiB.", on=READ, sample=51200)
    ram_used = Field(Integer(), "Memory of the existing servers in MiB.", on=READ, sample=6144)
    metadata_items = Field(Integer(), "Metadata keys of a server.", on=READ, sample=128)
    key_pairs = Field(Integer(), "Key pairs of a user.", on=READ, sample=100)
    server_groups = Field(Integer(), "Server groups.", on=READ, sample=10)
    server_groups_used = Field(Integer(), "Existing server groups.", on=READ, sample=0)
    server_group_members = Field(Integer(), "Members of a server group.", on=READ, sample=10)
