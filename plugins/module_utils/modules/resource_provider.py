# SPDX-License-Identifier: GPL-3.0-or-later
"""The module resource_provider, which changes operators' settings of the inventory and traits of a cloud's host."""

from __future__ import annotations

from ..core.kinds import ResourceProvider
from .compute_service import HostSettingsModule


class ResourceProviderModule(HostSettingsModule):
    """The module resource_provider, which changes the resource provider of a host. The provider exists as long as the
    host, so the module never creates or removes it.
    """

    kind = ResourceProvider
