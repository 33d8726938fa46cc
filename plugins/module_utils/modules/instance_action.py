# SPDX-License-Identifier: GPL-3.0-or-later
"""The module instance_action_info, which reports the requests for one server of a cloud."""

from __future__ import annotations

from ..core.kinds import InstanceAction
from ..core.options import Option, name_options
from ..core.values import Integer, Text
from .info import InfoModule


class InstanceActionInfoModule(InfoModule):
    """The module instance_action_info, which reports the actions that were requested for a server, or one of them with
    its events.
    """

    kind = InstanceAction

    def selecting(self):
        return name_options(
            server=Option(Text(1, 255), "The server, by name or uuid; a deleted one by uuid.", required=True,
                          aliases=("name",)),
            id=Option(Text(), "Only the request of this id, with its events.", aliases=("request_id",)),
            limit=Option(Integer(1), "Report this many at most, the latest."),
        )

    def execute(self, params, check_mode, diff_mode, client):
        query = {name: params[name] for name in ("server", "id", "limit")}
        return {"changed": False, self.kind.plural: client.list(self.kind.noun, **query)}
