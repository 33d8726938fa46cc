# SPDX-License-Identifier: GPL-3.0-or-later
"""os-server-password: what a guest has left for its user by the metadata service, encrypted with the user's key."""

from __future__ import annotations

import contextlib

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.target import Target, of_server
from magnetar_control.store.servers import server_passwords
from magnetar_core.errors import MagnetarError

from .server_actions import asked

RULE = "os_compute_api:os-server-password:"
SHOW_PASSWORD = f"{RULE}show"


@of_server(rule=SHOW_PASSWORD)
def show(_caller: Caller, target: Target) -> str:
    """The encrypted password; "" when there is none."""
    return target.row.password or ""


@of_server(rule=f"{RULE}clear")
def clear(caller: Caller, target: Target) -> None:
    """Forget it, here and at the host, so that the guest may leave another. A host that does not answer now is told
    when it tells of the password again."""
    if not target.row.password:
        return
    with target.database.write() as connection:
        server_passwords.clear(connection, target.row.id, target.row.password)
    host = caller.cloud.hosts.get(target.row.host)
    if host is not None and host.up:
        with contextlib.suppress(MagnetarError), asked(caller, host) as client:
            client.event("server", target.row.id, "clear_password", {}, request_id=caller.request_id)
