# SPDX-License-Identifier: GPL-3.0-or-later
"""The module resource_provider, which changes operators' settings of the inventory and traits of a cloud's host."""

from __future__ import annotations

from ..core.kinds import ResourceProvider
from .compute_service import ComputeServiceModule


class ResourceProviderModule(ComputeServiceModule):
    """The module that changes the resource provider of a host. The provider exists with the host, so it is never
    created or removed.
    """

    kind = ResourceProvider
