# SPDX-License-Identifier: GPL-3.0-or-later
"""The choice of the pool of a volume by the extra specs of its type. Among the pools that fulfil them, the one with the
most free space wins."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from magnetar_core.errors import InvalidRequest

from .pools import UP, PoolOnHost
from .reach import Reach
from .type_specs import no_pool_error, pool_capabilities, unfulfilled_capabilities
from .types import VolumeType

#: Pools that an error names at most.
MOST_NAMES = 20


@dataclass(frozen=True)
class PoolOption:
    """A storage pool on a host that may be chosen for a volume. *free_gb*: the pool's free GiB; ``None`` if not known.
    *down*: why the pool cannot be used now; empty if it can."""

    host: str
    name: str
    capabilities: dict[str, Any]
    free_gb: int | None
    down: str = ""


def list_pool_options(reach: Reach, names: Collection[str]) -> list[PoolOption]:
    """Return the pools with these *names* on all hosts. *reach*: access to the hosts. A host that has not reported its
    pools is treated as if it had all these pools, each with the free space of the host's disk."""
    reported: dict[str, dict[str, PoolOnHost]] = {}
    for pool in reach.pools():
        reported.setdefault(pool.host, {})[pool.name] = pool
    options = []
    for host in reach.hosts():
        down = "" if host["up"] else "the host is down"
        for name in names:
            pool_there = reported.get(host["name"], {}).get(name)
            if pool_there is not None:
                options.append(_reported_option(pool_there, down))
            elif host["name"] not in reported:
                sizes = {"total_capacity_gb": host["disk_gb"], "free_capacity_gb": host["disk_gb_free"]}
                options.append(PoolOption(host["name"], name, pool_capabilities(name, **sizes), host["disk_gb_free"],
                                          down))
    return options


def _reported_option(pool: PoolOnHost, down: str) -> PoolOption:
    if not down and pool.state != UP:
        down = f"it is down: {pool.reason or 'its host does not say why'}".rstrip(".")
    sizes = {"total_capacity_gb": pool.total_gb or 0, "free_capacity_gb": pool.free_gb or 0}
    return PoolOption(pool.host, pool.name, pool_capabilities(pool.name, pool.kind, shared=pool.shared, **sizes),
                      pool.free_gb, down)


def refusals_of_pool(volume_type: VolumeType, option: PoolOption, size: int) -> list[str]:
    """Return the reasons why the pool *option* cannot have a volume of *size* GiB with this type; empty if it can."""
    reasons = [*unfulfilled_capabilities(volume_type.extra_specs, option.capabilities)]
    if volume_type.encryption and not option.capabilities["encryption_support"]:
        reasons.append("its volumes cannot be encrypted")
    if option.capabilities["thick_provisioning_support"] and option.free_gb is not None and option.free_gb < size:
        reasons.append(f"it has {option.free_gb} GiB free, and the volume is to have {size} GiB")
    return [*reasons, *([option.down] if option.down else [])]


def choose_pool(reach: Reach, volume_type: VolumeType, size: int,
                fits: Callable[[str], bool] = lambda _host: True) -> PoolOption | None:
    """Return the pool with the most free space that can have a volume of *size* GiB with the type *volume_type*;
    ``None`` if there are no hosts yet. *fits*: a function that returns whether a host is allowed. Raises
    ``InvalidRequest`` with the reasons for each pool if there are hosts, but no suitable pool."""
    options = list_pool_options(reach, volume_type.pools)
    refused, best = [], None
    for option in options:
        reasons = refusals_of_pool(volume_type, option, size)
        if not fits(option.host):
            reasons.append("the volume cannot be on this host")
        if reasons:
            refused.append((option, reasons))
        elif best is None or _preference(option) > _preference(best):
            best = option
    if best is None and (options or any(True for _host in reach.hosts())):
        raise _no_pool(volume_type, refused)
    return best


def _preference(option: PoolOption) -> tuple[int, str, str]:
    return option.free_gb or 0, option.host, option.name


def _no_pool(volume_type: VolumeType, refused: list[tuple[PoolOption, list[str]]]) -> InvalidRequest:
    if not refused:
        return no_pool_error(volume_type.name, [f"no host has a pool called {' or '.join(volume_type.pools)}"])
    texts = [f"pool {option.name} of host {option.host}: {', '.join(reasons)}"
             for option, reasons in refused[:MOST_NAMES]]
    return no_pool_error(volume_type.name,
                         [*texts, *([f"and {len(refused) - MOST_NAMES} more"] if len(refused) > MOST_NAMES
                                                      else [])])
