# SPDX-License-Identifier: GPL-3.0-or-later
"""The module volume_transfer, which offers a volume to other projects, accepts an offer, or withdraws one."""

from __future__ import annotations

from ..core.errors import InvalidField
from ..core.kinds import VolumeTransfer
from ..core.options import Option, name_options
from ..core.values import Text
from .module import PRESENT
from .resource import ResourceModule

ACCEPTED = "accepted"


class VolumeTransferModule(ResourceModule):
    """The module volume_transfer, which offers a volume to other projects, accepts such an offer, or withdraws it."""

    kind = VolumeTransfer
    states = {PRESENT: {}, ACCEPTED: {}}
    state_doc = ("V(present) offers O(volume) to other projects. V(accepted) takes the volume of the transfer O(id) "
                 "into the login's project. V(absent) withdraws an offer; a volume that was accepted stays where it "
                 "is.")
    on_immutable_doc = "V(recreate) withdraws the transfer, and creates it again with another key."
    own = name_options(auth_key=Option(Text(1, 255), "Key of the transfer, for V(accepted).", secret=True))

    @property
    def rules(self):
        return dict(super().rules, required_if=[["state", ACCEPTED, ["id", "auth_key"]]])

    def want(self, params):
        if params["state"] == ACCEPTED:
            volume = {} if params.get("volume") is None else {"volume": params["volume"]}
            return dict(volume, accept=params["auth_key"])
        if params.get("auth_key") is not None:
            raise InvalidField("auth_key", "goes with state accepted; the key of a new transfer is generated")
        return super().want(params)
