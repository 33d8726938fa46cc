# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults of a simulated day: hosts that die and come back, and an upgrade of the control plane."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from .cloud import DayCloud
from .record import DayRecord


@dataclass(frozen=True)
class FaultPlan:
    """The faults of a day: *deaths*, in each of which a *share* of the hosts is dead for *dead_seconds*; and *upgrade*,
    the part of the day after which the control plane is upgraded (0: never)."""

    deaths: int
    share: float
    dead_seconds: float
    upgrade: float


async def cause_faults(cloud: DayCloud, record: DayRecord, plan: FaultPlan, seconds: float,
                       tell: Callable[[str], None]) -> None:
    """Cause the faults of *plan* during a day that lasts *seconds*; the deaths are spread evenly over the day. *tell*
    prints a text about each fault. All hosts are up at the end."""
    moments = [(seconds * (at + 0.5) / (plan.deaths + 1), False) for at in range(plan.deaths)]
    if plan.upgrade:
        moments.append((seconds * plan.upgrade, True))
    began = time.monotonic()
    for moment, is_upgrade in sorted(moments):
        await asyncio.sleep(max(0.0, began + moment - time.monotonic()))
        if is_upgrade:
            await _upgrade_control_plane(cloud, record, tell)
        else:
            names = await asyncio.to_thread(cloud.set_condition, "dead", share=plan.share, seconds=min(
                plan.dead_seconds, seconds / (plan.deaths + 1) / 2))
            tell(f"{len(names)} hosts die: {', '.join(names[:3])} …")


async def _upgrade_control_plane(cloud: DayCloud, record: DayRecord, tell: Callable[[str], None]) -> None:
    record.upgrading = True
    try:
        began = time.monotonic()
        await asyncio.to_thread(cloud.stop_serve)
        stopped = time.monotonic()
        await asyncio.to_thread(cloud.start_serve)
        tell(f"the control plane was upgraded: it ended after {stopped - began:.1f} s, the new one answered after "
             f"{time.monotonic() - stopped:.1f} s")
        await asyncio.sleep(2)  # requests that met the end of the old one get their failure
    finally:
        record.upgrading = False
