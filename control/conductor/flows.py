# SPDX-License-Identifier: GPL-3.0-or-later
"""Which function does which action, in a cell and in cell0, and what is left to do where the server is deleted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from magnetar_core.actions import ACTIONS

from . import attach, build, interfaces, live, power, remove, resize, schedule, snapshot
from .conductor import Flow
from .work import Work

CELL: Mapping[str, Flow] = {
    **{key: power.converge for key, action in ACTIONS.items() if action.want},
    "attach_volume": attach.attach_volume, "detach_volume": attach.detach_volume,
    "attach_interface": interfaces.attach_interface, "detach_interface": interfaces.detach_interface,
    "create": build.build, "delete": remove.remove, "forceDelete": remove.remove,
    "reboot-soft": power.reboot, "reboot-hard": power.reboot, "rebuild": power.rebuild,
    "rescue": power.rescue, "unrescue": power.unrescue, "trigger_crash_dump": power.crash_dump,
    "createImage": snapshot.create_image,
    "resize": resize.resize, "migrate": resize.migrate, "confirmResize": resize.confirm, "revertResize": resize.revert,
    "os-migrateLive": live.live,
}
CELL0: Mapping[str, Flow] = {"create": schedule.schedule, "delete": remove.remove, "forceDelete": remove.remove}
GONE: Mapping[str, Flow] = {"createImage": snapshot.given_up}
#: Of several actions in cell0 that nobody began before.
TOGETHER: Mapping[str, Callable[[Sequence[Work]], list[Work]]] = {"create": schedule.together}
FLOWS: Mapping[str, Mapping[str, Any]] = {"cell": CELL, "cell0": CELL0, "gone": GONE, "together": TOGETHER}
