# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of storage pools of hosts, and of the capabilities of each host (Block Storage API v3, "Back-end storage
pools", "Capabilities")."""

from __future__ import annotations

from typing import Any

from magnetar_control.api.query import check_known
from magnetar_control.services.volume import EmbeddedVolumes
from magnetar_control.services.volume.pool_choice import list_pool_options
from magnetar_control.services.volume.pools import UP, PoolOnHost
from magnetar_control.services.volume.type_specs import (
    BACKEND_NAME,
    PROTOCOL,
    VENDOR,
    pool_capabilities,
    unfulfilled_capabilities,
)
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, guarded_route
from magnetar_core.document import Document
from magnetar_core.errors import NotFound

from .values import TRUTH

POOL_FILTERS = ("name", "volume_type")


class PoolRoutes:
    """The routes of storage pools and capabilities in the Block Storage API. Only for administrators."""

    def __init__(self, service: EmbeddedVolumes) -> None:
        self.service = service

    def routes(self) -> list[Guarded]:
        """Return the routes of pools and capabilities, relative to ``/v3``."""
        return [guarded_route("GET scheduler-stats/get_pools", self.pools, who="admin"),
                guarded_route("GET capabilities/{host}", self.capabilities, who="admin")]

    def pools(self, request: Request) -> Document:
        """Return the storage pools of all hosts; with ``detail=true`` also their sizes. A pool that several hosts share
        is listed once for each of these hosts, always with the same ``location_info``. A host that has not reported its
        pools is listed with all configured pools, each with the size of the host's disk."""
        check_known(request, ("detail", *POOL_FILTERS))
        query = dict(request.query)
        pools = self.service.types.pools
        chosen = self.service.types.find(request.context, query["volume_type"]) if "volume_type" in query else None
        if chosen is not None:  # 3.35
            pools = chosen.pools if chosen.chooses else (chosen.pool,)
        detailed = TRUTH.check(query.get("detail", "false"), "detail")
        reported = {(pool.host, pool.name): pool for pool in self.service.host_pools()}
        reporting = {host for host, _name in reported}
        pool_documents = [_pool(host, pool, detailed, reported.get((host["name"], pool)))
                          for host in self.service.reach.hosts() for pool in pools
                          if host["name"] not in reporting or (host["name"], pool) in reported]
        if chosen is not None and chosen.chooses:
            fitting = {f"{option.host}@{BACKEND_NAME}#{option.name}" for option in list_pool_options(
                self.service.reach, pools) if not [*unfulfilled_capabilities(chosen.extra_specs, option.capabilities)]}
            pool_documents = [document for document in pool_documents if document["name"] in fitting]
        return {"pools": [document for document in pool_documents if query.get("name") in (None, document["name"])]}

    def capabilities(self, request: Request) -> Document:
        """Return the backend capabilities of a host, for GET /capabilities/{host}. The list of properties for extra
        specs in the answer is empty."""
        name, _at, backend = request.params["host"].partition("@")
        if backend not in ("", BACKEND_NAME) or all(host["name"] != name for host in self.service.reach.hosts()):
            raise NotFound(f"Host {request.params['host'][:80]} could not be found.")
        return {"namespace": f"OS::Storage::Capabilities::{name}@{BACKEND_NAME}", "vendor_name": VENDOR,
                "volume_backend_name": BACKEND_NAME, "pool_name": self.service.types.pools[0], "driver_version": "1",
                "storage_protocol": PROTOCOL, "display_name": f"Disks of {name}", "description": None,
                "visibility": "public", "replication_targets": [], "properties": {}}


def _pool(host: Any, name: str, detailed: bool, reported: PoolOnHost | None) -> Document:
    """Return the pool *name* of *host* in Cinder's format. *detailed*: include its capabilities; otherwise return only
    its name. *reported*: the agent's report about the pool; ``None`` if there is none."""
    full_name = f"{host['name']}@{BACKEND_NAME}#{name}"
    if not detailed:
        return {"name": full_name}
    up = host["up"] and (reported is None or reported.state == UP)
    size = {"total_capacity_gb": host["disk_gb"], "free_capacity_gb": host["disk_gb_free"]} if reported is None else {
        "total_capacity_gb": reported.total_gb, "free_capacity_gb": reported.free_gb, "pool_id": reported.id,
        "location_info": reported.identity, "shared": reported.shared}
    return {"name": full_name, "capabilities": {
        **pool_capabilities(name, reported.kind if reported else None), "multiattach": True,
        "backend_state": "up" if up else "down", **size, "reserved_percentage": 0}}
