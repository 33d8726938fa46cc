# SPDX-License-Identifier: GPL-3.0-or-later
"""resource_provider: what operators set of what a host of a cloud has and is."""

from __future__ import annotations

from ..core.kinds import ResourceProvider
from .compute_service import ComputeServiceModule


class ResourceProviderModule(ComputeServiceModule):
    """Each host has one, as it has a service: it is changed, never made or removed."""

    kind = ResourceProvider
