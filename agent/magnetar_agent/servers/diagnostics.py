# SPDX-License-Identifier: GPL-3.0-or-later
"""What a server has used, as ``GET /v1/server/KEY/diagnostics`` tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar_agent.reconcile import reconcile
from magnetar_core.kinds import Server
from magnetar_core.power import RUNNING

if TYPE_CHECKING:
    from magnetar_agent.drivers import Drivers

#: Of a server that is off.
NOTHING: dict[str, Any] = {"virt_type": None, "uptime": None, "cpus": [], "memory": {}, "disks": [], "nics": []}


def diagnostics(drivers: Drivers, key: str) -> dict[str, Any]:
    """The state of the server and what its hypervisor has counted. Raises ``NotFound``, ``Ambiguous``."""
    shown = reconcile.show(drivers, Server, key)
    found = drivers.host.hypervisor.statistics(str(shown["id"]))
    if found is None and shown["power_state"] == RUNNING:  # it has stopped in between
        shown = reconcile.show(drivers, Server, str(shown["id"]))
    known = {name: shown[name] for name in ("id", "power_state", "config_drive")}
    return {**known, **(found or NOTHING)}
