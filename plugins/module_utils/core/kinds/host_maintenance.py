# SPDX-License-Identifier: GPL-3.0-or-later
"""host_maintenance: the drain of a cloud's host, whose servers move to other hosts."""

from __future__ import annotations

from ..fields import FIXED, READ, Field, Kind
from ..values import Choices, Integer, ListOf, Nullable, Text, Value

SAMPLE_ID = "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"


class HostMaintenance(Kind):
    """The maintenance of a compute host: its servers leave it, and it gets no new ones."""

    noun, plural = "host_maintenance", "host_maintenances"
    sample_changes = {"state": ("enabled", "maintenance")}
    sample_actions = ("record", "disable")

    id = Field(Text(1, 64), "The uuid of the host's compute service.", on=READ, sample=SAMPLE_ID)
    name = Field(Text(1, 255), "The host's name.", on=FIXED, required=True, aliases=("host",), sample="kvm1")
    state = Field(Choices("maintenance", "enabled"), "V(maintenance) disables the host's compute service and moves its "
                  "servers to other hosts; V(enabled) enables the service again, and moves nothing back. Reported as "
                  "V(disabled) for a service that was disabled without a drain.", required=True, sample="maintenance")
    reason = Field(Nullable(Text(1, 255)), "The reason that lists of services show; only with V(maintenance).",
                   sample="new memory")
    drain = Field(Nullable(Text()), "Progress of the drain: V(draining), V(drained), or V(ending) while its last moves "
                  "continue after the host was enabled. Null without a drain.", on=READ, sample="drained")
    message = Field(Nullable(Text()), "The reason why the drain does not proceed.", on=READ, sample=None)
    moved = Field(ListOf(Value()), "Servers that have left the host: {id, name, how, to}. V(how) is live, cold or "
                  "offload.", on=READ, sample=[{"id": SAMPLE_ID, "name": "web1", "how": "live", "to": "kvm2"}])
    stays = Field(ListOf(Value()), "Servers that stay: {id, name, reason}.", on=READ, sample=[])
    moving = Field(ListOf(Value()), "Servers that are being moved: {id, name, how}.", on=READ, sample=[])
    waiting = Field(ListOf(Value()), "Servers on the host that are not moved yet: {id, name}.", on=READ, sample=[])
    volumes = Field(Integer(), "Number of volumes that the host stores. They stay there.", on=READ, sample=0)
    started_at = Field(Nullable(Text()), "When the drain was last requested.", on=READ, sample="2026-11-20T20:00:00Z")
    finished_at = Field(Nullable(Text()), "When nothing was left to do.", on=READ, sample="2026-11-20T20:04:00Z")
