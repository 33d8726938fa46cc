# SPDX-License-Identifier: GPL-3.0-or-later
"""availability_zone: zones of a cloud that servers can be requested in; read only."""

from __future__ import annotations

from ..fields import READ, Field, Kind
from ..values import Boolean, ListOf, Text


class AvailabilityZone(Kind):
    """An availability zone: a named group of a cloud's hosts, as in Nova."""

    noun, plural = "availability_zone", "availability_zones"
    selectable = False
    report_doc = "The availability zones of the cloud."

    name = Field(Text(), "The name.", on=READ, sample="nova")
    available = Field(Boolean(), "Whether one of its hosts gets new servers.", on=READ, sample=True)
    hosts = Field(ListOf(Text()), "Names of its hosts; empty unless the caller is an administrator.", on=READ,
                  sample=["kvm1", "kvm2"])
