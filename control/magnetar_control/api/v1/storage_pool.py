# SPDX-License-Identifier: GPL-3.0-or-later
"""storage_pool: the pools of volumes that agents report, for administrators."""

from __future__ import annotations

from itertools import groupby

from magnetar_control.compute.caller import Caller
from magnetar_control.services.volume.pools import DOWN, UP, PoolOnHost
from magnetar_control.services.volume.rows import check_admin
from magnetar_core.document import Document
from magnetar_core.kinds import CloudStoragePool

from .driver import CloudDriver


class StoragePools(CloudDriver):
    """The driver of the v1 API for storage pools. It is read-only, because storage pools are configured in the settings
    of agents."""

    kind, makeable = CloudStoragePool, False

    def every(self, caller: Caller) -> list[Document]:
        check_admin(caller.context, "storage_pool:list")
        service = caller.cloud.services.volume
        usage = service.pool_usage()
        by_pool = sorted(service.host_pools(), key=lambda pool: (pool.id, pool.host, pool.name))
        return [_storage_pool(list(pools), *usage.get(id, (0, 0)))
                for id, pools in groupby(by_pool, key=lambda pool: str(pool.id))]


def _storage_pool(on_hosts: list[PoolOnHost], volumes: int, volumes_gb: int) -> Document:
    """Return one storage pool in the format of the v1 API. *on_hosts*: the reports of all hosts that have access to the
    pool, at least one. *volumes*, *volumes_gb*: the number of volumes in the pool, and their total size in GiB."""
    first = on_hosts[0]
    return {"id": first.id, "name": first.name, "type": first.kind, "identity": first.identity,
            "shared": first.shared, "total_gb": first.total_gb, "free_gb": first.free_gb, "volumes": volumes,
            "volumes_gb": volumes_gb, "state": UP if any(pool.state == UP for pool in on_hosts) else DOWN,
            "hosts": [{"host": pool.host, "name": pool.name, "state": pool.state, "reason": pool.reason}
                      for pool in on_hosts]}
