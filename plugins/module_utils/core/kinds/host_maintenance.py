# SPDX-License-Identifier: GPL-3.0-or-later
"""Kinds about compute hosts of a cloud that servers must leave: host_maintenance (the drain of a host), incident (the
death of a host), and host_fence (the power of a host).
"""

from __future__ import annotations

from ..fields import FIXED, READ, Field, Kind
from ..values import Boolean, Choices, Integer, ListOf, Nullable, Text, Value

SAMPLE_ID = "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d"


class HostMaintenance(Kind):
    """The maintenance of a compute host: its servers move to other hosts, and no new servers are placed on it."""

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


class Incident(Kind):
    """The failure of a host and its handling: the host is fenced, and its servers are evacuated."""

    noun, plural = "incident", "incidents"
    report_doc = "The last 200 incidents, newest first."

    id = Field(Text(1, 64), "The incident's uuid.", on=READ, sample=SAMPLE_ID)
    name = Field(Text(1, 255), "The host's name; the cell's name for an incident of a whole cell.", on=READ,
                 sample="kvm1")
    host = Field(Nullable(Text()), "The host; null for an incident of a whole cell.", on=READ, sample="kvm1")
    cell = Field(Text(), "The name of the host's cell.", on=READ, sample="cell1")
    state = Field(Text(), "Open: V(noticed), V(fencing), V(evacuating); V(blocked) by a rule, or V(failed), until "
                  "people help. Closed: V(done), V(returned) before the fence, V(closed) by an operator.", on=READ,
                  sample="done")
    message = Field(Text(), "What has happened, and what to do.", on=READ,
                    sample="Of 3 servers of host kvm1, 2 were evacuated, 0 could not be, and 1 remain.")
    noticed_at = Field(Nullable(Text()), "When the host was noticed to be silent.", on=READ,
                       sample="2026-11-20T20:00:00Z")
    fencing_at = Field(Nullable(Text()), "When its fencing was decided.", on=READ, sample="2026-11-20T20:00:02Z")
    fenced_at = Field(Nullable(Text()), "When it was off for certain.", on=READ, sample="2026-11-20T20:00:09Z")
    finished_at = Field(Nullable(Text()), "When the incident was closed.", on=READ, sample="2026-11-20T20:01:00Z")
    moved = Field(Integer(), "Number of servers that are on other hosts now.", on=READ, sample=2)
    failed = Field(Integer(), "Number of servers that could not be evacuated.", on=READ, sample=0)
    remaining = Field(Integer(), "Number of servers with the policy never, or deleted meanwhile.", on=READ, sample=1)
    servers = Field(ListOf(Value(), 2**31), "The servers, in the order of their evacuation: {id, name, policy, "
                    "priority, state, attempts, to, reason}. C(state) is waiting, moving, moved, failed or remains.",
                    on=READ,
                    sample=[{"id": SAMPLE_ID, "name": "web1", "policy": "always", "priority": 9, "state": "moved",
                             "attempts": 1, "to": "kvm2", "reason": None}])


class HostFence(Kind):
    """The fencing of a compute host. A fenced host is powered off, and stays disabled and down."""

    noun, plural = "host_fence", "host_fences"
    sample_changes = {"state": ("unfenced", "fenced")}
    sample_actions = ("record", "fence")

    id = Field(Text(1, 64), "The uuid of the host's compute service.", on=READ, sample=SAMPLE_ID)
    name = Field(Text(1, 255), "The host's name.", on=FIXED, required=True, aliases=("host",), sample="kvm1")
    state = Field(Choices("fenced", "unfenced"), "V(fenced) switches the host off by its fence agent, confirms that, "
                  "and keeps it disabled and down. V(unfenced) switches it on, and gives it back its earlier status. "
                  "Reported as V(requested) while an attempt works or after it was interrupted, and as "
                  "V(failed) if the host is not off for certain.", required=True, sample="fenced")
    confirmed = Field(Boolean(), "Whether the host was switched off by hand, or will be switched on by hand, so that "
                      "no fence agent is run.", on="create update", default=False, compared=False)
    agent = Field(Nullable(Text()), "The fence agent of the last fencing; V(by hand) for a confirmed one.", on=READ,
                  sample="fence_redfish")
    message = Field(Nullable(Text()), "The result of the last attempt, or the reason of its failure.", on=READ,
                    sample="Fenced at 2026-11-20T20:00:00 for ann@admin. Switched off by fence_redfish. Use it again "
                    "with: magnetar host unfence kvm1")
    requested_by = Field(Nullable(Text()), "The user or evacuation that requested the last fencing.", on=READ,
                         sample="ann@admin")
    requested_at = Field(Nullable(Text()), "When the last fencing was requested.", on=READ,
                         sample="2026-11-20T20:00:00Z")
    confirmed_at = Field(Nullable(Text()), "When the fence agent last said that the host is off.", on=READ,
                         sample="2026-11-20T20:00:04Z")
    ended_at = Field(Nullable(Text()), "When the last attempt ended.", on=READ, sample="2026-11-20T20:00:04Z")
