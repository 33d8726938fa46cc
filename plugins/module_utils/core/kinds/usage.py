# SPDX-License-Identifier: GPL-3.0-or-later
"""usage: the usage of a cloud's project in a period; read only."""

from __future__ import annotations

from ..fields import READ, Field, Kind
from ..values import ListOf, Text, Value


class Usage(Kind):
    """The servers that a project had in a period, including deleted ones, and for how long."""

    noun, plural = "usage", "usages"
    report_doc = "The usage of each project; empty when none had a server."

    name = Field(Text(), "The id of the project.", on=READ, sample="0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a")
    begin = Field(Text(), "When the period begins, in UTC.", on=READ, sample="2026-11-01T00:00:00Z")
    end = Field(Text(), "When it ends.", on=READ, sample="2026-12-01T00:00:00Z")
    hours = Field(Value(), "Hours of all servers.", on=READ, sample=72.5)
    vcpu_hours = Field(Value(), "The same, times the CPUs of each.", on=READ, sample=145.0)
    memory_mb_hours = Field(Value(), "The same, times the memory of each in MiB.", on=READ, sample=37120.0)
    disk_gb_hours = Field(Value(), "The same, times the disk of each in GiB.", on=READ, sample=725.0)
    servers = Field(ListOf(Value(), 2**31), "The servers: {id, name, flavor, vcpus, memory_mb, disk_gb, started_at, "
                    "ended_at, state, hours, uptime}, the last in seconds.", on=READ,
                    sample=[{"id": "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d", "name": "web1", "flavor": "small",
                             "vcpus": 2, "memory_mb": 512, "disk_gb": 10, "started_at": "2026-11-20T20:00:00Z",
                             "ended_at": None, "state": "active", "hours": 72.5, "uptime": 261000}])
