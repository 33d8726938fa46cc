# SPDX-License-Identifier: GPL-3.0-or-later
"""compute_service: operators' settings of a cloud's compute host: whether it gets new servers, and counts as down."""

from __future__ import annotations

from ..fields import FIXED, READ, Field, Kind
from ..values import Boolean, Choices, Nullable, Text


class ComputeService(Kind):
    """The compute service of a host. It exists as long as the host, and cannot be created."""

    noun, plural = "compute_service", "compute_services"
    sample_changes = {"status": ("enabled", "disabled")}

    id = Field(Text(1, 64), "The uuid.", on=READ, sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    name = Field(Text(1, 255), "The host's name.", on=FIXED, required=True, aliases=("host",), sample="kvm1")
    binary = Field(Text(), "Nova's word for the kind of service.", on=READ, sample="nova-compute")
    status = Field(Choices("enabled", "disabled"), "Whether the host gets new servers.", sample="enabled")
    disabled_reason = Field(Nullable(Text(1, 255)), "The reason; only with V(disabled).", sample=None)
    forced_down = Field(Boolean(), "Whether it counts as down whatever its agent reports, so that its servers can be "
                        "evacuated. Only for a host that is certainly off.", sample=False)
    state = Field(Choices("up", "down"), "Whether its agent has reported recently.", on=READ, sample="up")
    zone = Field(Text(), "Its availability zone.", on=READ, sample="nova")
    updated_at = Field(Nullable(Text()), "When its agent was last heard.", on=READ, sample="2026-11-20T20:00:00Z")
