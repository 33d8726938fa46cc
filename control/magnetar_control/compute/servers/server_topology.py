# SPDX-License-Identifier: GPL-3.0-or-later
"""NUMA topologies of servers: what the guest has follows from flavor and image; what it has of its host, its agent
tells. Source: Nova's GET /servers/{id}/topology (microversion 2.78)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import orjson

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.target import Target, of_server
from magnetar_control.scheduler.request_spec import placed_hardware
from magnetar_core.errors import MagnetarError
from magnetar_core.hardware import numa

from .server_actions import asked

HOST = "compute:server:topology:host:index"


@of_server(rule="compute:server:topology:index")
def topology(caller: Caller, target: Target) -> dict[str, Any]:
    """The NUMA nodes of the guest, and the size of its pages in KiB (``None`` where flavor and image say none); no node
    for a guest that may be anywhere. For those who may know, where the host answers, each with the host's node and
    CPUs."""
    row = target.row
    flavor, image = orjson.loads(row.flavor), orjson.loads(row.image)
    needs = numa.needs(placed_hardware(flavor, image), int(flavor["vcpus"]), int(flavor["ram"]))
    if needs is None:
        return {"nodes": [], "pagesize_kb": None}
    nodes: list[dict[str, Any]] = [
        {"memory_mb": cell.memory_mb, "siblings": [], "vcpu_set": list(cell.cpus)} for cell in needs.cells]
    there = _placed(caller, target) if needs.page or caller.allows(HOST, row) else []
    if caller.allows(HOST, row):
        for node, cell in zip(nodes, there, strict=False):
            node.update(host_node=cell["host"], cpu_pinning=cell["pins"])
    page = there[0]["page"] if there else int(needs.page) if needs.page.isdigit() else None
    return {"nodes": nodes, "pagesize_kb": page if needs.page else None}


def _placed(caller: Caller, target: Target) -> list[dict[str, Any]]:
    """What the server has of its host; nothing where nobody can tell now."""
    host = caller.cloud.hosts.get(target.row.host) if target.row.host else None
    with suppress(MagnetarError):
        if host is not None and host.up:
            with asked(caller, host) as client:
                found: list[dict[str, Any]] = client.get("server", target.row.id).get("placement", {}).get("cells", [])
                return found
    return []
