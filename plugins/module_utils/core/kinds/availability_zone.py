# SPDX-License-Identifier: GPL-3.0-or-later
"""availability_zone: where servers of a cloud may be asked to be; read only."""

from __future__ import annotations

from ..fields import READ, Field, Kind
from ..values import Boolean, ListOf, Text


class AvailabilityZone(Kind):
    """A zone."""

    noun, plural = "availability_zone", "availability_zones"
    selectable = False

    name = Field(Text(), "The name.", on=READ, sample="nova")
    available = Field(Boolean(), "Whether one of its hosts gets new servers.", on=READ, sample=True)
    hosts = Field(ListOf(Text()), "Names of its hosts; for administrators, else empty.", on=READ,
                  sample=["kvm1", "kvm2"])
