# SPDX-License-Identifier: GPL-3.0-or-later
"""Secrets of servers' TPMs, which the key manager has. ``hw:tpm_secret_security`` says who gets one: with ``user`` the
server's user alone, with ``host`` the host once, which keeps it, with ``deployment`` any conductor.

A server's secret has a uuid that follows from the server's. That there may be one, and whose, is noted in the request
that made the server before it is drawn: it goes with the server whatever flavor that has by then, and never to others.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from typing import Any

from magnetar_control.conductor.worker.environment import Environment
from magnetar_control.conductor.worker.work import ROLES, Work
from magnetar_control.services import Context
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.server_hardware import TPM_DRAWN, tpm_security
from magnetar_core.errors import MagnetarError
from magnetar_core.hardware.merge import DEPLOYMENT, SECURITY, USER

log = logging.getLogger(__name__)
#: Namespace of the uuids of secrets; the field of the agent's server.
NAMESPACE = uuid.UUID("5f5b3f0e-6f0c-5c1e-8a2b-2f4d7b1c9e63")
FIELD = "tpm_secret"


def given(work: Work, hardware: Mapping[str, Any] | None = None) -> dict[str, str]:
    """The field by which the server's host starts a guest with a TPM; nothing for one without. *hardware*: what it is
    to have, where that is not what its flavor says. Raises ``Forbidden`` where another user asks than whose it is."""
    security = tpm_security(work.server) if hardware is None else hardware.get(SECURITY)
    if not security:
        return {}
    drawn = DEPLOYMENT if security == DEPLOYMENT else USER
    if TPM_DRAWN not in work.request:
        work.note(request=servers.text({**work.request, TPM_DRAWN: drawn}))
    asks = Context(work.action.user_id, work.action.project_id, ROLES) if security == USER else work.context()
    return {FIELD: work.conductor.services.key_manager.create_key(
        _id(work.id), owner=None if drawn == DEPLOYMENT else work.server.user_id, asks=asks)}


def after_boot(conductor: Environment, server: Any) -> dict[str, str]:
    """The same for a server (its row) whose host was booted, which nobody asks for: where any conductor may. Without
    its secret it does not start, and its host says why."""
    if tpm_security(server) != DEPLOYMENT:
        return {}
    try:
        return {FIELD: conductor.services.key_manager.key(
            Context(server.user_id, server.project_id, ROLES), _id(server.id))}
    except MagnetarError as error:
        log.warning("server %s: the secret of its TPM: %s", server.id, error.message, extra={"server": server.id})
        return {}


def forget(work: Work) -> None:
    """The server is removed, and so is what was drawn for it."""
    if TPM_DRAWN in work.request:
        work.confirm_lease()
        work.conductor.services.key_manager.delete_key(_id(work.id))


def _id(server: str) -> str:
    return str(uuid.uuid5(NAMESPACE, server))
