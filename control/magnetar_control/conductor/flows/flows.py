# SPDX-License-Identifier: GPL-3.0-or-later
"""Which function does which action, in a cell and in cell0, and what an action needs whose server is deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.conductor.steps.cross_cell import leaves
from magnetar_control.conductor.steps.schedule import schedule, schedule_together
from magnetar_control.conductor.worker.conductor import Flow
from magnetar_core.actions import ACTIONS

from .interface_attach import attach_interface, detach_interface
from .server_backup import create_backup
from .server_confirm_resize import confirm
from .server_create import build
from .server_create_image import create_image, server_deleted
from .server_delete import delete_server
from .server_evacuate import evacuate
from .server_live_migrate import live_migrate
from .server_power import converge, crash_dump, reboot
from .server_rebuild import rebuild
from .server_rescue import rescue, unrescue
from .server_resize import migrate, resize
from .server_revert_resize import revert
from .server_shelve import offload, shelve
from .server_soft_delete import restore, soft_delete
from .server_unshelve import unshelve
from .share_attach import attach_share, detach_share
from .volume_attach import attach_volume, detach_volume
from .volume_swap import swap_volume

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
