# SPDX-License-Identifier: GPL-3.0-or-later
"""os-server-password: the password that a guest has stored for its user through the metadata service, encrypted with
the user's key."""

from __future__ import annotations

import contextlib

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.target import Target, server_use_case
from magnetar_control.store.servers import server_passwords
from magnetar_core.errors import MagnetarError

from .server_actions import agent_of_host

RULE = "os_compute_api:os-server-password:"
SHOW_PASSWORD = f"{RULE}show"


@server_use_case(rule=SHOW_PASSWORD)
def show_server_password(_caller: Caller, target: Target) -> str:
    """Return the encrypted password; "" when there is none."""
    return target.row.password or ""


@server_use_case(rule=f"{RULE}clear")
def delete_server_password(caller: Caller, target: Target) -> None:
    """Delete the password in the server's row and at its host, so that the guest may store another one. If the host
    does not answer now, the password there is deleted when the host next reports it."""
    if not target.row.password:
        return
    with target.database.write() as connection:
        server_passwords.clear_password_columns(connection, target.row.id, target.row.password)
    host = caller.cloud.hosts.get(target.row.host)
    if host is not None and host.up:
        with contextlib.suppress(MagnetarError), agent_of_host(caller, host) as client:
            client.event("server", target.row.id, "clear_password", {}, request_id=caller.request_id)
