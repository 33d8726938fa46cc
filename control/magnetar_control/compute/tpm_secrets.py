# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may have a guest with a TPM started: the server's user alone, where the secret of the TPM is theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from magnetar_control.store.servers import server_hardware, servers
from magnetar_core.actions import ACTIONS
from magnetar_core.errors import Forbidden
from magnetar_core.hardware.merge import USER, tpm_security

from .caller import Caller


def check_starts(caller: Caller, server: servers.Found, key: str) -> None:
    """Raises ``Forbidden`` where the action *key*, which starts the guest, takes a secret of another user."""
    if server.user_id == caller.context.user_id:
        return
    if server_hardware.tpm_security(server) == USER:
        raise _forbidden(server, key)
    if key == "revertResize" and server.old_flavor:
        check_becomes(caller, server, key, orjson.loads(server.old_flavor), orjson.loads(server.image))


def check_becomes(caller: Caller, server: servers.Found, key: str, flavor: Mapping[str, Any],
                  image: Mapping[str, Any]) -> None:
    """The same for an action that gives the server this *flavor* and *image*."""
    if server.user_id != caller.context.user_id and tpm_security(flavor, image) == USER:
        raise _forbidden(server, key)


def _forbidden(server: servers.Found, key: str) -> Forbidden:
    return Forbidden(f"Operation '{ACTIONS[key].label}' not allowed for instance {server.id}: only the user who made "
                     "it may have its TPM opened (hw:tpm_secret_security is user, or not said).")
