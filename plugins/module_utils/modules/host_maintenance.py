# SPDX-License-Identifier: GPL-3.0-or-later
"""host_maintenance drains a host of a cloud, or enables it again; host_fence switches it off, or on."""

from __future__ import annotations

from ..core.kinds import HostFence, HostMaintenance
from .compute_service import ComputeServiceModule


class HostMaintenanceModule(ComputeServiceModule):
    """The module that drains a host of a cloud. The maintenance exists with the host, so it is never created or
    removed.
    """

    kind = HostMaintenance


class HostFenceModule(ComputeServiceModule):
    """The module that fences a host of a cloud, or unfences it. The fence exists with the host, so it is never created
    or removed.
    """

    kind = HostFence
