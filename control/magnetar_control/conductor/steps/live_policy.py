# SPDX-License-Identifier: GPL-3.0-or-later
"""How live migrations are steered: what the settings mean for a server of its size. Source: Nova's settings of live
migrations (``live_migration_*`` of its group libvirt)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.scheduler.request_spec import MIB_PER_GIB, needs
from magnetar_control.settings import Settings

#: GiB that a server counts as at least.
LEAST = 2
#: The longest ``time_limit`` and ``downtime_delay`` of agents, in seconds, and the longest downtime, in ms.
LONGEST, LONGEST_DELAY, LONGEST_DOWNTIME = 604800, 86400, 60000
#: Seconds beyond the limit in which the agents end a migration by themselves.
MARGIN = 600.0


def gibibytes(flavor: Mapping[str, Any], volume_backed: bool) -> int:
    """Memory and local disks of a server of *flavor*, which all go along: what its times are counted by."""
    amounts = needs(flavor, volume_backed)
    return max(LEAST, -(-amounts.memory_mb // MIB_PER_GIB) + amounts.disk_gb)


def options(settings: Settings, flavor: Mapping[str, Any], volume_backed: bool, volumes: bool) -> dict[str, Any]:
    """Options of a migration (``kinds.Migration``). *volumes*: whether the server has any. Those may lie on the host
    that it leaves, and have to change hands while the guest stands still, so there is no post-copy with them."""
    size = gibibytes(flavor, volume_backed)
    post_copy = settings.live_migration_permit_post_copy and not volumes
    limit = settings.live_migration_completion_timeout * size
    late = "abort" if settings.live_migration_timeout_action == "abort" else "post_copy" if post_copy else "pause"
    return {
        "max_downtime": min(settings.live_migration_downtime, LONGEST_DOWNTIME),
        "downtime_steps": settings.live_migration_downtime_steps,
        "downtime_delay": min(settings.live_migration_downtime_delay * size, LONGEST_DELAY),
        "bandwidth": settings.live_migration_bandwidth or None, "post_copy": post_copy,
        "auto_converge": settings.live_migration_permit_auto_converge, "on_time_limit": late,
        "time_limit": min(limit, LONGEST) or None}


def patience(settings: Settings, wish: Mapping[str, Any]) -> float:
    """Seconds for which the agents are waited for: longer than such a migration may take."""
    return max(settings.action_timeout, (wish.get("time_limit") or LONGEST) + MARGIN)
