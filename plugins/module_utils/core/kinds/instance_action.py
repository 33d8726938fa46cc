# SPDX-License-Identifier: GPL-3.0-or-later
"""instance_action: requests for a server of a cloud; read only."""

from __future__ import annotations

from ..fields import READ, Field, Kind
from ..values import ListOf, Nullable, Text, Value


class InstanceAction(Kind):
    """An action that was requested for a server, such as a reboot, and its outcome."""

    noun, plural = "instance_action", "instance_actions"
    report_doc = "The requests for the server, latest first; empty when there are none."

    id = Field(Text(1, 64), "The id of the request.", on=READ, sample="req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11")
    server = Field(Text(1, 64), "Uuid of the server.", on=READ, sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    action = Field(Text(), "The requested action.", on=READ, sample="create")
    message = Field(Nullable(Text()), "V(Error) when it failed.", on=READ, sample=None)
    user_id = Field(Text(), "The user who sent the request.", on=READ, sample="4f1c9a0e5d0f4a2b9d0e0c6c8a1f2b3d")
    project_id = Field(Text(), "The project of the request.", on=READ, sample="0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a")
    started_at = Field(Text(), "When it was asked.", on=READ, sample="2026-11-20T20:00:00Z")
    updated_at = Field(Nullable(Text()), "When it last went on.", on=READ, sample="2026-11-20T20:00:01Z")
    events = Field(ListOf(Value()), "Its steps: {event, started_at, finished_at, result}, and for admins {host, "
                   "details}. Only for the request that O(id) names.", on=READ,
                   sample=[{"event": "compute__do_build_and_run_instance", "host": "kvm1", "result": "Success",
                            "started_at": "2026-11-20T20:00:00Z", "finished_at": "2026-11-20T20:00:01Z"}])
