# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules server_export and server_export_info, for copies of servers that run without Magnetar."""

from __future__ import annotations

from ..core.errors import InvalidField
from ..core.kinds import ServerExport
from .info import InfoModule
from .resource import ResourceModule


class ServerExportModule(ResourceModule):
    """The module server_export. It writes a stopped server to a folder of its host, or removes such a folder."""

    kind = ServerExport
    state_doc = ("V(present) writes a missing export of O(server), and waits until it is complete. V(absent) removes "
                 "its files; other files in the folder stay.")
    on_immutable_doc = "V(recreate) removes the export, and writes it again from the server as it is now."

    def execute(self, params, check_mode, diff_mode, client):
        refuse_clouds(client)
        return super().execute(params, check_mode, diff_mode, client)


class ServerExportInfoModule(InfoModule):
    """The module server_export_info, which reports the exports of a host."""

    kind = ServerExport

    def execute(self, params, check_mode, diff_mode, client):
        refuse_clouds(client)
        return super().execute(params, check_mode, diff_mode, client)


def refuse_clouds(client):
    """Raise ``InvalidField`` if *client* uses a cloud. An export is a directory of a host, and only the agent of this
    host writes it."""
    if client.of_cloud:
        raise InvalidField("cloud", "is not for exports, which are folders of a host. Name the agent of the "
                                    "server's host as endpoint")
