# SPDX-License-Identifier: GPL-3.0-or-later
"""os-server-password: the password that a server's guest has left, encrypted with its user's key."""

from __future__ import annotations

from magnetar_control.api.nova.operation import ApiOperation
from magnetar_control.compute.servers import server_passwords

PATH = "/servers/{server_id}/os-server-password"

OPERATIONS = (
    ApiOperation(method="GET", path=PATH, name="servers.os-server-password.list", strict=102,
                 use=server_passwords.show_server_password, target="server", shown=lambda _call,
                 password: {"password": password}),
    ApiOperation(method="DELETE", path=PATH, name="servers.os-server-password.delete_all", status=204,
                 use=server_passwords.delete_server_password, target="server", waits=True),
)
