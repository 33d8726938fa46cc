# SPDX-License-Identifier: GPL-3.0-or-later
"""The host's pools as it reports them (``pools`` of ``kinds.Host``): identity, size and state.

The identity says which storage a pool is, whatever its name or path on a host: two hosts that report the same identity
reach the same content.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from magnetar_core.errors import MagnetarError

from . import GIB, backup_target, pools

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Fields

    from .backup_target import BackupTarget
    from .pools import Pool

UP, DOWN = "up", "down"
#: Seconds that a pool may take to answer before it counts as down.
SLOW = 30.0


def report_pools(host: LocalHost) -> list[Fields]:
    """Return a report of each pool (capacity, free space, state and so on), and of the target of backups, which has
    the kind ``backup``. A pool that hangs does not delay the others: after ``SLOW`` seconds it is reported as down."""
    found: dict[str, Pool | BackupTarget] = {pool.name: pool for pool in pools.all_pools(host)}
    if target := backup_target.find_backup_target(host):
        found[target.name] = target
    latest = host.pool_reads.latest({name: partial(_read_pool, host, pool) for name, pool in found.items()})
    reports = []
    for name, pool in found.items():
        values, seconds = latest[name]
        if values is None or seconds > SLOW:
            values = {**(values or {}), "state": DOWN, "reason": f"It has not answered for {seconds:.0f} s."
                      if seconds > SLOW else "It was not read yet."}
        reports.append({"name": name, "kind": pool.kind, "identity": None, "shared": pool.shared, "total_gb": None,
                        "free_gb": None, **values})
    return reports


def seconds_of_silence(host: LocalHost, pool: Pool | BackupTarget) -> float:
    """Return for how many seconds *pool* has not answered the latest read of its capacity; 0 if it has answered. Start
    a new read if the latest is too old."""
    return host.pool_reads.latest({pool.name: partial(_read_pool, host, pool)})[pool.name][1]


def _read_pool(host: LocalHost, pool: Pool | BackupTarget) -> Fields:
    try:
        pool.check_usable()
        identity = f"{pool.kind}:{pool.identity(host.name)}"
        room = pool.room()
    except MagnetarError as error:
        return {"state": DOWN, "reason": error.message}
    except OSError as error:
        return {"state": DOWN, "reason": f"It cannot be read: {error.strerror}."}
    total, free = (None, None) if room is None else (room[0] // GIB, room[1] // GIB)
    return {"identity": identity, "total_gb": total, "free_gb": free, "state": UP, "reason": ""}
