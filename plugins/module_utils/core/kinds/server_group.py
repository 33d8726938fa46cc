# SPDX-License-Identifier: GPL-3.0-or-later
"""server_group: servers of a cloud that the scheduler places together or apart."""

from __future__ import annotations

from ..fields import FIXED, READ, Field, Kind
from ..values import Choices, Integer, ListOf, MapOf, Text, Uuid
from .common import NAME, TIME

POLICIES = ("affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity")


class ServerGroup(Kind):
    """A group of servers with a placement policy, such as anti-affinity. A scheduler hint puts a server into the group.
    """

    noun, plural = "server_group", "server_groups"

    id = Field(Uuid(), "The uuid; the cloud generates it.", on=FIXED, sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    name = Field(NAME, "The name.", on=FIXED, required=True, sample="frontends")
    policy = Field(Choices(*POLICIES), "V(affinity) places its servers on one host, V(anti-affinity) each on its own "
                   "host; the soft policies do so if possible.", on=FIXED, required=True, sample="anti-affinity")
    rules = Field(MapOf(Choices("max_server_per_host"), Integer(1)), "For V(anti-affinity) only. "
                  "C(max_server_per_host): the maximum number of its servers per host.", on=FIXED, default={},
                  sample={"max_server_per_host": 2})
    members = Field(ListOf(Text(), 10000), "Uuids of its servers.", on=READ,
                    sample=["4f1c9a0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"])
    project_id = Field(Text(), "The project that it belongs to.", on=READ, sample="0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a")
    user_id = Field(Text(), "The user who created it.", on=READ, sample="4f1c9a0e5d0f4a2b9d0e0c6c8a1f2b3d")
    created_at = Field(TIME, "When it was created, ISO 8601 in UTC.", on=READ, sample="2026-11-20T20:00:00Z")
