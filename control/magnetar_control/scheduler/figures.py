# SPDX-License-Identifier: GPL-3.0-or-later
"""The numbers and names of a host that extra specs (``capabilities:NAME``) and the hint ``query`` may ask for, by
Nova's names (spec rows C4.8, C4.9). Those of them that no host has as a number or word are in
``core.hardware.flavor_specs``, which says what asks for that instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from .host_state import HostState


def stats(host: HostState) -> dict[str, int]:
    """Nova's ``stats``, such as ``capabilities:stats:num_instances``."""
    return {"num_instances": host.servers, "io_workload": host.io_ops, "failed_builds": host.failed_builds}


def limits(host: HostState) -> dict[str, int]:
    """What may be claimed of the host, such as ``capabilities:limits:vcpu``."""
    return {"vcpu": host.limits.vcpus, "memory_mb": host.limits.memory_mb, "disk_gb": host.limits.disk_gb}


def ratio(host: HostState, name: str) -> float | None:
    """How many times what the host has of a resource may be claimed: of its own, its aggregates or the settings. What
    may be claimed is a whole number, of which it is reckoned back."""
    columns = host.columns
    own = columns.get(f"{name}_ratio")
    there = columns.get(name, 0) - columns.get(f"{name}_reserved", 0)
    return own if own is not None else round(columns[f"{name}_limit"] / there, 3) if there > 0 else None


def figure(host: HostState, path: Sequence[str]) -> Any:
    """The one at a *path*, of which only ``stats``, ``limits`` and ``metrics`` have more than a name."""
    found: Any = FIGURES[path[0]](host)
    for name in path[1:]:
        found = found.get(name) if isinstance(found, dict) else None
    return found


#: What ComputeCapabilitiesFilter and JsonFilter find in a host beside its profile's capabilities (spec row FIL-11).
FIGURES: dict[str, Callable[[HostState], Any]] = {
    **dict.fromkeys(("host", "hypervisor_hostname", "nodename"), attrgetter("name")),
    "host_ip": attrgetter("host_ip"), "mapped": lambda _host: 1,  # each is in a cell
    "service_id": lambda host: host.columns.get("number"), "updated": lambda host: host.columns.get("updated_at"),
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
    "failed_builds": attrgetter("failed_builds"), "cell_uuid": attrgetter("profile.cell_id"), "stats": stats,
    "limits": limits, "metrics": attrgetter("metrics"),
    **{f"{word}_allocation_ratio": partial(ratio, name=name) for word, name in (
        ("cpu", "vcpus"), ("ram", "memory_mb"), ("disk", "disk_gb"))}}
