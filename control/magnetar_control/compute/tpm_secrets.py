# SPDX-License-Identifier: GPL-3.0-or-later
"""Permission to start a guest with a TPM: a TPM secret that belongs to the server's user lets only that user start
it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.documents import FlavorOfServer
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.actions import ACTIONS
from magnetar_core.errors import Forbidden
from magnetar_core.hardware.merge import USER, tpm_secret_owner

from .caller import Caller


def check_tpm_start(caller: Caller, server: ServerRow, key: str) -> None:
    """Raise ``Forbidden`` when the action *key* starts the guest and needs the secret of its TPM, but the secret
    belongs to another user than the caller."""
    if server.user_id == caller.context.user_id:
        return
    if servers.server_tpm_security(server) == USER:
        raise _forbidden(server, key)
    if key == "revertResize" and server.stored.old_flavor:
        check_tpm_change(caller, server, key, server.old_flavor, server.image)


def check_tpm_change(caller: Caller, server: ServerRow, key: str, flavor: FlavorOfServer,
                     image: Mapping[str, Any]) -> None:
    """Raise ``Forbidden`` when the server, with the new *flavor* and *image*, has a TPM whose secret belongs to the
    server's user, and the caller is another user. *key*: the action, for the error message."""
    if server.user_id != caller.context.user_id and tpm_secret_owner(flavor, image) == USER:
        raise _forbidden(server, key)


def _forbidden(server: ServerRow, key: str) -> Forbidden:
    return Forbidden(f"Operation '{ACTIONS[key].label}' not allowed for instance {server.id}: only the user who made "
                     "it may have its TPM opened (hw:tpm_secret_security is user, or not said).")
