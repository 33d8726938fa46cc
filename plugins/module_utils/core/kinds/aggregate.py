# SPDX-License-Identifier: GPL-3.0-or-later
"""aggregate: hosts of a cloud that belong together."""

from __future__ import annotations

from ..fields import FIXED, READ, Field, Kind
from ..values import Integer, ListOf, MapOf, Nullable, Text, Uuid
from .common import NAME, TIME


class HostAggregate(Kind):
    """A host aggregate: a group of a cloud's hosts with metadata, as in Nova."""

    noun, plural = "aggregate", "aggregates"
    sample_changes = {"hosts": ([], ["kvm1"])}

    id = Field(Uuid(), "The uuid; the cloud generates it.", on=FIXED, sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    name = Field(NAME, "The name.", required=True, sample="fast")
    availability_zone = Field(Nullable(Text(1, 255, r"[^\s:](?:[^:]*[^\s:])?", "must be text without a colon, and "
                                            "without a blank at the beginning or the end")),
                              "The availability zone of its hosts; null for none of its own. That of hosts that have "
                              "servers cannot change.", default=None, sample="rack1")
    hosts = Field(ListOf(Text(1, 255), 5000, unique=True), "Names of its hosts.", default=[], sample=["kvm1", "kvm2"])
    metadata = Field(MapOf(Text(1, 255), Text(0, 255)), "Metadata, keys to strings, which filters of the scheduler and "
                     "flavors refer to. The zone is none of it.", default={}, sample={"ssd": "true"})
    number = Field(Integer(), "Its id in the Compute API.", on=READ, sample=1)
    created_at = Field(TIME, "When it was created, ISO 8601 in UTC.", on=READ, sample="2026-11-20T20:00:00Z")
    updated_at = Field(Nullable(TIME), "When it was last changed.", on=READ, sample="2026-11-20T20:00:00Z")
