# SPDX-License-Identifier: GPL-3.0-or-later
"""host_maintenance drains a host of a cloud, or enables it again; host_fence switches it off, or on."""

from __future__ import annotations

from ..core.kinds import HostFence, HostMaintenance
from .compute_service import HostSettingsModule


class HostMaintenanceModule(HostSettingsModule):
    """The module host_maintenance, which drains a host of a cloud or enables it again. The resource
    ``host_maintenance`` exists as long as the host, so the module never creates or removes it.
    """

    kind = HostMaintenance


class HostFenceModule(HostSettingsModule):
    """The module host_fence, which fences or unfences a host of a cloud. The resource ``host_fence`` exists as long as
    the host, so the module never creates or removes it.
    """

    kind = HostFence
