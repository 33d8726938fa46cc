# SPDX-License-Identifier: GPL-3.0-or-later
"""The properties of a host that extra specs (``capabilities:NAME``) and the hint ``query`` may compare, under Nova's
names.

``core.hardware.flavor_specs`` lists Nova's names that have no number or text here, with their replacements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from .host_state import HostState


def host_stats(host: HostState) -> dict[str, int]:
    """Return the properties of a host that Nova calls ``stats``, such as ``num_instances``. Extra specs refer to such a
    property as ``capabilities:stats:num_instances``."""
    return {"num_instances": host.servers, "io_workload": host.io_ops, "failed_builds": host.failed_builds}


def host_limits(host: HostState) -> dict[str, int]:
    """Return the amounts that may be claimed on the host in total, such as ``vcpu``. Extra specs refer to such an
    amount as ``capabilities:limits:vcpu``."""
    return {"vcpu": host.limits.vcpus, "memory_mb": host.limits.memory_mb, "disk_gb": host.limits.disk_gb}


def host_allocation_ratio(host: HostState, name: str) -> float | None:
    """Return the host's allocation ratio for the resource *name*. This is the ratio set for the host itself, otherwise
    the ratio from its aggregates or the settings. A ratio from aggregates or settings is calculated back from the
    host's limit, so it may be rounded. Return ``None`` if the host has none of the resource."""
    row = host.columns
    if (own_ratio := row.own_ratio(name)) is not None:
        return own_ratio
    total, reserved, limit = (getattr(amounts, name) for amounts in (row.totals, row.reserved, row.limits))
    return round(limit / (total - reserved), 3) if total > reserved else None


def host_figure(host: HostState, path: Sequence[str]) -> Any:
    """Return a property of the host for a comparison by extra specs or hints. *path*: its name, split at colons; the
    first part is a key of ``FIGURES``. Only ``stats``, ``limits`` and ``metrics`` have a second part; return ``None``
    for an unknown second part."""
    figure: Any = FIGURES[path[0]](host)
    for name in path[1:]:
        figure = figure.get(name) if isinstance(figure, dict) else None
    return figure


#: Functions for the values of a host that ComputeCapabilitiesFilter and JsonFilter compare in addition to its profile's
#: capabilities.
FIGURES: dict[str, Callable[[HostState], Any]] = {
    **dict.fromkeys(("host", "hypervisor_hostname", "nodename"), attrgetter("name")),
    "host_ip": attrgetter("host_ip"), "mapped": lambda _host: 1,  # every host is in a cell
    "service_id": attrgetter("columns.number"), "updated": attrgetter("columns.updated_at"),
    **dict.fromkeys(("id", "uuid"), attrgetter("id")),
    **dict.fromkeys(("vcpus", "vcpus_total"), attrgetter("totals.vcpus")),
    "vcpus_used": attrgetter("used.vcpus"),
    **dict.fromkeys(("memory_mb", "total_usable_ram_mb"), attrgetter("totals.memory_mb")),
    "memory_mb_used": attrgetter("used.memory_mb"),
    "free_ram_mb": lambda host: host.totals.memory_mb - host.used.memory_mb,
    **dict.fromkeys(("local_gb", "total_usable_disk_gb"), attrgetter("totals.disk_gb")),
    "local_gb_used": attrgetter("used.disk_gb"),
    "disk_mb_used": lambda host: host.used.disk_gb * 1024,
    "free_disk_gb": lambda host: host.totals.disk_gb - host.used.disk_gb,
    "free_disk_mb": lambda host: (host.totals.disk_gb - host.used.disk_gb) * 1024,
    **dict.fromkeys(("num_instances", "running_vms"), attrgetter("servers")),
    **dict.fromkeys(("num_io_ops", "current_workload"), attrgetter("io_ops")),
    "failed_builds": attrgetter("failed_builds"), "cell_uuid": attrgetter("profile.cell_id"), "stats": host_stats,
    "limits": host_limits, "metrics": attrgetter("metrics"),
    **{f"{prefix}_allocation_ratio": partial(host_allocation_ratio, name=name) for prefix, name in (
        ("cpu", "vcpus"), ("ram", "memory_mb"), ("disk", "disk_gb"))}}
