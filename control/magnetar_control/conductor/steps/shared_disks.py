# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers' disks on storage that hosts share, after an evacuation."""

from __future__ import annotations

import logging

from magnetar_control.agents import PATIENCE
from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_core.errors import MagnetarError

log = logging.getLogger(__name__)


def confirm_disks(conductor: Conductor, host: str, id: str, evacuation: str) -> None:
    """Confirm to the agent of *host* that the *evacuation* (a migration's uuid) of the server *id* has succeeded. From
    then on, the agent deletes the server's disks on the shared storage when it deletes the server. A failure is only
    logged, since the call can be repeated. Until the agent has this confirmation, it keeps the disks, because they may
    belong to the former host."""
    try:
        with conductor.client(host, PATIENCE) as client:
            client.event("server", id, "keep_disks", {}, request_id=f"keep-disks-{evacuation}")
    except MagnetarError as error:
        log.warning("host %s does not know yet that it keeps the disks of server %s: %s", host, id, error.message,
                    extra={"server": id, "host": host})
