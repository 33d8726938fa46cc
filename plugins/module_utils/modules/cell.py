# SPDX-License-Identifier: GPL-3.0-or-later
"""The module cell, which creates, changes or removes a cell of a cloud, identified only by its name."""

from __future__ import annotations

from ..core.kinds import Cell
from ..core.options import Option, name_options
from ..core.values import Text
from .resource import ResourceModule


class CellModule(ResourceModule):
    """The module cell. It never recreates a cell, because that would lose the servers of the cell."""

    kind = Cell
    rules = {}
    replaced = ("name",)
    own = name_options(name=Option(Text(1, 255), "The name.", required=True))
    on_immutable = ("fail", "ignore")
    on_immutable_doc = "though a cell has none."

    def execute(self, params, check_mode, diff_mode, client):
        return super().execute(dict(params, id=None), check_mode, diff_mode, client)
