# SPDX-License-Identifier: GPL-3.0-or-later
"""The module volume_backup, which backs up a volume, restores a backup, or removes one."""

from __future__ import annotations

from ..core.errors import InvalidField
from ..core.kinds import CloudVolumeBackup
from ..core.kinds.common import REFERENCE
from ..core.options import Option, name_options
from .module import PRESENT
from .resource import ResourceModule

RESTORED = "restored"


class VolumeBackupModule(ResourceModule):
    """The module volume_backup, which creates, restores or removes a backup of a volume."""

    kind = CloudVolumeBackup
    states = {PRESENT: {}, RESTORED: {}}
    state_doc = ("V(present) makes a missing backup of O(volume), and waits until it is complete. V(restored) gives "
                 "its content to the volume O(restore_to), unless that volume has been restored from it already. "
                 "V(absent) removes it.")
    on_immutable_doc = "V(recreate) removes the backup, and makes it again from the volume as it is now."
    own = name_options(restore_to=Option(
        REFERENCE, "With V(restored): the volume, by name or uuid, whose content is lost. If no volume has this name, "
        "a new one is created. A volume that was changed after the moment of the backup is refused, unless "
        "O(force)."))

    @property
    def rules(self):
        return dict(super().rules, required_if=[["state", RESTORED, ["restore_to"]]])

    def want(self, params):
        if params["state"] != RESTORED:
            if params.get("restore_to") is not None:
                raise InvalidField("restore_to", "goes with state restored")
            return super().want(params)
        for option in ("volume", "snapshot", "incremental", "container", "metadata", "description"):
            if params.get(option) is not None:
                raise InvalidField(option, "goes with state present; with restored, name the backup and restore_to")
        return {"restore": {"volume": params["restore_to"], "force": bool(params.get("force"))}}

    def merge(self, params):
        return [] if params["state"] == RESTORED else super().merge(params)
