# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules balance and balance_info, which even out the load of a cloud's hosts, and report it."""

from __future__ import annotations

from ..core.kinds import Balance
from ..core.options import Option, name_options
from ..core.values import Text
from .compute_service import HostSettingsModule
from .info import InfoModule


class BalanceModule(HostSettingsModule):
    """The module balance, which migrates servers to balance the load of a cell's hosts. The resource ``balance`` exists
    as long as the cell, so the module never creates or removes it.
    """

    kind = Balance
    own = name_options(name=Option(Text(1, 255), "The cell's name.", required=True, aliases=("cell",)))


class BalanceInfoModule(InfoModule):
    """The module balance_info, which reports the load of hosts and the proposed migrations."""

    kind = Balance

    def selecting(self):
        return name_options(
            name=Option(Text(1, 255), "Report only this cell.", aliases=("cell",)),
            free_host=Option(Text(1, 255), "Propose moves that free this host, instead of moves that even out the "
                             "load."))

    def execute(self, params, check_mode, diff_mode, client):
        return {"changed": False, self.kind.plural: client.list(self.kind.noun, name=params["name"],
                                                                free_host=params["free_host"])}
