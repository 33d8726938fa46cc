# SPDX-License-Identifier: GPL-3.0-or-later
"""os-server-password: the password that a guest has stored for its user through the metadata service, encrypted with
the user's key."""

from __future__ import annotations

import contextlib

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.target import ServerTarget, server_use_case
from magnetar_control.store.servers import server_passwords
from magnetar_core.errors import MagnetarError

from .server_actions import agent_of_host

RULE = "os_compute_api:os-server-password:"
SHOW_PASSWORD = f"{RULE}show"


@server_use_case(rule=SHOW_PASSWORD)
def show_server_password(_caller: Caller, target: ServerTarget) -> str:
    """Return the encrypted password that the guest has published; "" when there is none."""
    return target.row.password or ""


@server_use_case(rule=f"{RULE}clear")
def delete_server_password(caller: Caller, target: ServerTarget) -> None:
    """Delete the guest's encrypted password from the server's row and from the server's host, so that the guest can
    publish a new one. If the host does not answer, a conductor deletes the password on the host when the host reports
    the password again."""
    if not target.row.password:
        return
    with target.database.write() as connection:
        server_passwords.clear_password_columns(connection, target.row.id, target.row.password)
    host = caller.cloud.hosts.get(target.row.host)
    if host is not None and host.up:
        with contextlib.suppress(MagnetarError), agent_of_host(caller, host) as client:
            client.event("server", target.row.id, "clear_password", {}, request_id=caller.request_id)
