# SPDX-License-Identifier: GPL-3.0-or-later
"""NUMA topologies of servers: the guest's follows from flavor and image; the agent reports the placement on the host.
Source: Nova's GET /servers/{id}/topology (microversion 2.78)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.target import ServerTarget, server_use_case
from magnetar_control.scheduler.request_spec import placed_hardware
from magnetar_core.errors import MagnetarError
from magnetar_core.hardware import numa

from .server_actions import agent_of_host

HOST = "compute:server:topology:host:index"


@server_use_case(rule="compute:server:topology:index")
def show_server_topology(caller: Caller, target: ServerTarget) -> dict[str, Any]:
    """Return {nodes, pagesize_kb}: the guest's NUMA nodes (empty without NUMA placement), and its page size in KiB
    (``None`` unless flavor or image specify one). If the policy allows it and the host answers, each node also has the
    host's NUMA node and the pinned CPUs."""
    row = target.row
    flavor, image = row.flavor, row.image
    needs = numa.numa_needs(placed_hardware(flavor, image), int(flavor["vcpus"]), int(flavor["ram"]))
    if needs is None:
        return {"nodes": [], "pagesize_kb": None}
    nodes: list[dict[str, Any]] = [
        {"memory_mb": cell.memory_mb, "siblings": [], "vcpu_set": list(cell.cpus)} for cell in needs.cells]
    host_cells = _host_placement(caller, target) if needs.page or caller.allows(HOST, row) else []
    if caller.allows(HOST, row):
        for node, cell in zip(nodes, host_cells, strict=False):
            node.update(host_node=cell["host"], cpu_pinning=cell["pins"])
    page = host_cells[0]["page"] if host_cells else int(needs.page) if needs.page.isdigit() else None
    return {"nodes": nodes, "pagesize_kb": page if needs.page else None}


def _host_placement(caller: Caller, target: ServerTarget) -> list[dict[str, Any]]:
    """Return the NUMA cells of the server on its host, as the host's agent reports them; [] when the host does not
    answer."""
    host = caller.cloud.hosts.get(target.row.host) if target.row.host else None
    with suppress(MagnetarError):
        if host is not None and host.up:
            with agent_of_host(caller, host) as client:
                cells: list[dict[str, Any]] = client.get("server", target.row.id).get("placement", {}).get("cells", [])
                return cells
    return []
