# SPDX-License-Identifier: GPL-3.0-or-later
"""The resource usage of a server, as ``GET /v1/server/KEY/diagnostics`` returns it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar_agent.reconcile import reconcile
from magnetar_core.kinds import Server
from magnetar_core.power import RUNNING

if TYPE_CHECKING:
    from magnetar_agent.drivers import Drivers

#: Statistics of a server that is off.
NOTHING: dict[str, Any] = {"virt_type": None, "uptime": None, "cpus": [], "memory": {}, "disks": [], "nics": []}


def collect_diagnostics(drivers: Drivers, key: str) -> dict[str, Any]:
    """Return the diagnostics of the server *key* (uuid or name): its power state, and counters from
    ``LocalHypervisor.statistics``. Raises ``NotFound`` or ``Ambiguous``."""
    shown = reconcile.show_resource(drivers, Server, key)
    statistics = drivers.host.hypervisor.statistics(str(shown["id"]))
    if statistics is None and shown["power_state"] == RUNNING:  # it has stopped in between
        shown = reconcile.show_resource(drivers, Server, str(shown["id"]))
    base_fields = {name: shown[name] for name in ("id", "power_state", "config_drive")}
    return {**base_fields, **(statistics or NOTHING)}
