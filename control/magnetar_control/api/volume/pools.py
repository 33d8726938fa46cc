# SPDX-License-Identifier: GPL-3.0-or-later
"""Where volumes may lie: the pools of hosts, and what each host can do with them (Block Storage API v3, "Back-end
storage pools", "Capabilities")."""

from __future__ import annotations

from typing import Any

from magnetar_control.api.query import check_known
from magnetar_control.services import Document
from magnetar_control.services.volume import EmbeddedVolumes
from magnetar_control.services.volume.type_specs import BACKEND_NAME, CAPABILITIES, POOL, PROTOCOL, VENDOR
from magnetar_control.web import Request
from magnetar_control.web.application import Guarded, route
from magnetar_core.errors import NotFound

from .values import TRUTH

POOL_FILTERS = ("name", "volume_type")


class PoolRoutes:
    """All of it is for admins."""

    def __init__(self, service: EmbeddedVolumes) -> None:
        self.service = service

    def routes(self) -> list[Guarded]:
        """Where they are, below ``/v3``."""
        return [route("GET scheduler-stats/get_pools", self.pools, who="admin"),
                route("GET capabilities/{host}", self.capabilities, who="admin")]

    def pools(self, request: Request) -> Document:
        """Each pool of each host; ``detail=true`` says how large they are. That is the host's disk in each: what pools
        of other kinds hold is not known."""
        check_known(request, ("detail", *POOL_FILTERS))
        query = dict(request.query)
        pools = self.service.types.pools
        if "volume_type" in query:  # 3.35
            pools = (self.service.types.find(request.context, query["volume_type"]).pool,)
        detailed = TRUTH.check(query.get("detail", "false"), "detail")
        found = [_pool(host, pool, detailed) for host in self.service.reach.hosts()
                 for pool in pools]
        return {"pools": [one for one in found if query.get("name") in (None, one["name"])]}

    def capabilities(self, request: Request) -> Document:
        """What volumes of a host can be asked for by extra specs: nothing."""
        name, _at, backend = request.params["host"].partition("@")
        if backend not in ("", BACKEND_NAME) or all(host["name"] != name for host in self.service.reach.hosts()):
            raise NotFound(f"Host {request.params['host'][:80]} could not be found.")
        return {"namespace": f"OS::Storage::Capabilities::{name}@{BACKEND_NAME}", "vendor_name": VENDOR,
                "volume_backend_name": BACKEND_NAME, "pool_name": self.service.types.pools[0], "driver_version": "1",
                "storage_protocol": PROTOCOL, "display_name": f"Disks of {name}", "description": None,
                "visibility": "public", "replication_targets": [], "properties": {}}


def _pool(host: Any, pool: str, detailed: bool) -> Document:
    name = f"{host['name']}@{BACKEND_NAME}#{pool}"
    return {"name": name, "capabilities": {
        **CAPABILITIES, "multiattach": True, POOL: pool, "backend_state": "up" if host["up"] else "down",
        "total_capacity_gb": host["disk_gb"], "free_capacity_gb": host["disk_gb_free"],
        "reserved_percentage": 0}} if detailed else {"name": name}
