# SPDX-License-Identifier: GPL-3.0-or-later
"""The module server_topology_info, which reports the NUMA topology of one server of a cloud."""

from __future__ import annotations

from ..core.kinds import ServerTopology
from ..core.options import Option, name_options
from ..core.values import Text
from .info import InfoModule


class ServerTopologyInfoModule(InfoModule):
    """The module server_topology_info, which reports the NUMA topology of one server."""

    kind = ServerTopology

    def selecting(self):
        return name_options(server=Option(Text(1, 255), "The server, by name or uuid.", required=True,
                                          aliases=("name",)))

    def execute(self, params, check_mode, diff_mode, client):
        return {"changed": False, self.kind.plural: client.list(self.kind.noun, server=params["server"])}
