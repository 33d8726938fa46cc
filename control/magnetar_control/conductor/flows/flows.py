# SPDX-License-Identifier: GPL-3.0-or-later
"""The map of each action to its flow: in a cell, in cell0, and for deleted servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.conductor.steps.cross_cell import relocate_if_leaving
from magnetar_control.conductor.steps.schedule import run_joint_scheduling, run_scheduling
from magnetar_control.conductor.worker.action_runner import Flow
from magnetar_core.actions import ACTIONS

from .interface_attach import run_nic_attachment, run_nic_detachment
from .server_backup import run_backup
from .server_confirm_resize import run_resize_confirmation
from .server_create import run_server_build
from .server_create_image import fail_deleted_server_image, run_image_creation
from .server_delete import run_server_deletion
from .server_evacuate import run_evacuation
from .server_live_migrate import run_live_migration
from .server_power import run_crash_dump, run_power_action, run_reboot
from .server_rebuild import run_rebuild
from .server_rescue import run_rescue, run_unrescue
from .server_resize import run_cold_migration, run_resize
from .server_revert_resize import run_resize_revert
from .server_shelve import run_offload, run_shelve
from .server_soft_delete import run_restore, run_soft_deletion
from .server_unshelve import run_unshelve
from .share_attach import run_share_attachment, run_share_detachment
from .volume_attach import run_volume_attachment, run_volume_detachment
from .volume_swap import run_volume_swap

CELL: Mapping[str, Flow] = {
    **{key: run_power_action for key, action in ACTIONS.items() if action.want},
    "create": run_server_build, "delete": run_server_deletion, "forceDelete": run_server_deletion,
    "rebuild": run_rebuild, "rescue": run_rescue,
    "unrescue": run_unrescue, "attach_volume": run_volume_attachment, "detach_volume": run_volume_detachment,
    "swap_volume": run_volume_swap, "attach_share": run_share_attachment, "detach_share": run_share_detachment,
    "attach_interface": run_nic_attachment, "detach_interface": run_nic_detachment, "createImage": run_image_creation,
    "createBackup": run_backup, "evacuate": run_evacuation,
    "reboot-soft": run_reboot, "reboot-hard": run_reboot, "trigger_crash_dump": run_crash_dump,
    "os-migrateLive": run_live_migration,
    "softDelete": run_soft_deletion, "restore": run_restore, "shelve": run_shelve, "shelveOffload": run_offload,
    "unshelve": run_unshelve,
    "resize": run_resize, "migrate": run_cold_migration, "confirmResize": run_resize_confirmation,
    "revertResize": run_resize_revert}
FLOWS: Mapping[str, Mapping[str, Any]] = {
    "cell": CELL,
    "cell0": {"create": run_scheduling, "delete": run_server_deletion, "forceDelete": run_server_deletion},
    "leaves": {"*": relocate_if_leaving},  # runs before any other flow, for a server that moves to another cell
    "gone": {"createImage": fail_deleted_server_image, "createBackup": fail_deleted_server_image},
    # Flows for several actions of cell0 together; they take actions at their first attempt only.
    "together": {"create": run_joint_scheduling}}
