# SPDX-License-Identifier: GPL-3.0-or-later
"""resource_provider: operators' settings of the inventory and traits of a cloud's host."""

from __future__ import annotations

from ..core.kinds import ResourceProvider
from .compute_service import ComputeServiceModule


class ResourceProviderModule(ComputeServiceModule):
    """Changes the resource provider of a host; like a service it exists with the host, and is never made or removed."""

    kind = ResourceProvider
