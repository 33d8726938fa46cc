# SPDX-License-Identifier: GPL-3.0-or-later
"""Which function does which action, in a cell and in cell0, and what an action needs whose server is deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_core.actions import ACTIONS

from .attach_interface import attach_interface, detach_interface
from .attach_share import attach_share, detach_share
from .attach_volume import attach_volume, detach_volume
from .backup import create_backup
from .build import build
from .conductor import Flow
from .confirm_resize import confirm
from .cross_cell import leaves
from .delete_server import delete_server
from .evacuate import evacuate
from .live_migration import live_migrate
from .power import converge, crash_dump, reboot
from .rebuild import rebuild
from .rescue import rescue, unrescue
from .resize import migrate, resize
from .revert_resize import revert
from .schedule import schedule, schedule_together
from .shelve import offload, shelve
from .snapshot import create_image, server_deleted
from .soft_delete import restore, soft_delete
from .swap_volume import swap_volume
from .unshelve import unshelve

CELL: Mapping[str, Flow] = {
    **{key: converge for key, action in ACTIONS.items() if action.want},
    "create": build, "delete": delete_server, "forceDelete": delete_server, "rebuild": rebuild, "rescue": rescue,
    "unrescue": unrescue, "attach_volume": attach_volume, "detach_volume": detach_volume,
    "swap_volume": swap_volume, "attach_share": attach_share, "detach_share": detach_share,
    "attach_interface": attach_interface, "detach_interface": detach_interface, "createImage": create_image,
    "createBackup": create_backup, "evacuate": evacuate,
    "reboot-soft": reboot, "reboot-hard": reboot, "trigger_crash_dump": crash_dump, "os-migrateLive": live_migrate,
    "softDelete": soft_delete, "restore": restore, "shelve": shelve, "shelveOffload": offload, "unshelve": unshelve,
    "resize": resize, "migrate": migrate, "confirmResize": confirm, "revertResize": revert}
FLOWS: Mapping[str, Mapping[str, Any]] = {
    "cell": CELL,
    "cell0": {"create": schedule, "delete": delete_server, "forceDelete": delete_server},
    "leaves": {"*": leaves},  # before any other, for a server that goes into another cell
    "gone": {"createImage": server_deleted, "createBackup": server_deleted},
    # Flows for several actions of cell0 at once; they take actions at their first attempt only.
    "together": {"create": schedule_together}}
