# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers' disks in folders that hosts share, after an evacuation."""

from __future__ import annotations

import logging

from magnetar_control.agents import PATIENCE
from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_core.errors import MagnetarError

log = logging.getLogger(__name__)


def confirm_disks(conductor: Conductor, host: str, id: str, evacuation: str) -> None:
    """Tell *host* that the *evacuation* (its uuid) of the server *id* has succeeded, so that its disks go with the
    server from now on. May be repeated, and fail: then a removal of the server leaves the disks to its former host."""
    try:
        with conductor.client(host, PATIENCE) as client:
            client.event("server", id, "keep_disks", {}, request_id=f"keep-disks-{evacuation}")
    except MagnetarError as error:
        log.warning("host %s does not know yet that it keeps the disks of server %s: %s", host, id, error.message,
                    extra={"server": id, "host": host})
