# SPDX-License-Identifier: GPL-3.0-or-later
"""A compute host as os-hypervisors shows it."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import orjson

from magnetar_control.store.services import Service

#: Gates.
CPU_OBJECT, BY_UUID, SERVERS_ALWAYS, PLAIN = 28, 53, 75, 88
#: Seconds for which the address of a name is believed.
FRESH = 600.0
#: What /statistics sums.
SUMMED = ("vcpus", "vcpus_used", "memory_mb", "memory_mb_used", "free_ram_mb", "local_gb", "local_gb_used",
          "free_disk_gb", "disk_available_least", "running_vms", "current_workload")
Workload = tuple[int, int]


def brief(one: Service, version: int, servers: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The keys of a list. *servers*: by host, where they are asked for."""
    shown: dict[str, Any] = {
        "id": one.id if version >= BY_UUID else one.number, "hypervisor_hostname": one.host,
        "state": "up" if one.up else "down", "status": "disabled" if one.disabled else "enabled"}
    if servers is not None and (servers.get(one.host) or version >= SERVERS_ALWAYS):
        shown["servers"] = [{"uuid": row.id, "name": row.name} for row in servers.get(one.host) or ()]
    return shown


def full(one: Service, version: int, servers: Mapping[str, Any] | None = None, workload: Workload = (0, 0),
         uptime: str | None = None) -> dict[str, Any]:
    """All keys. *workload*: servers, and those that something is being done to."""
    row: Any = one.row
    info = orjson.loads(row["info"])
    shown = {**brief(one, version, servers), "host_ip": address(row["endpoint"]),
             "hypervisor_type": info.get("hypervisor_type") or "unknown",
             "hypervisor_version": number(str(info.get("hypervisor_version") or "")),
             "service": {"id": one.id if version >= BY_UUID else one.number, "host": one.host,
                         "disabled_reason": one.disabled_reason}}
    if version >= PLAIN:
        shown["uptime"] = uptime
        return shown
    shown.update(sizes(row, info, workload))
    cpu = processor(row["vcpus"], info)
    shown["cpu_info"] = cpu if version >= CPU_OBJECT else orjson.dumps(cpu).decode()
    return shown


def processor(vcpus: int, info: Mapping[str, Any]) -> dict[str, Any]:
    """What the agent tells of the CPUs; where it tells no topology, all of them in one socket, as libvirt has it."""
    return {"arch": info.get("architecture") or "unknown", "model": info.get("cpu_model") or "unknown",
            "vendor": "unknown", "features": [], "topology": {"sockets": 1, "cores": vcpus, "threads": 1},
            **(info.get("cpu_info") or {})}


def sizes(row: Any, info: Mapping[str, Any], workload: Workload) -> dict[str, Any]:
    """What the host has, and what is used: claimed by servers, and kept from them."""
    used = {name: row[f"{name}_used"] + row[f"{name}_reserved"] for name in ("vcpus", "memory_mb", "disk_gb")}
    servers, busy = workload
    return {"vcpus": row["vcpus"], "vcpus_used": row["vcpus_used"], "memory_mb": row["memory_mb"],
            "memory_mb_used": used["memory_mb"], "free_ram_mb": row["memory_mb"] - used["memory_mb"],
            "local_gb": row["disk_gb"], "local_gb_used": used["disk_gb"],
            "free_disk_gb": row["disk_gb"] - used["disk_gb"], "disk_available_least": info.get("disk_gb_free"),
            "running_vms": servers, "current_workload": busy}


def number(version: str) -> int:
    """7.2.22 as Nova has it: 7002022."""
    words = [int(word) if word.isdigit() else 0 for word in version.split(".")[:3]] + [0, 0, 0]
    return words[0] * 1000000 + words[1] * 1000 + words[2]


def address(endpoint: str) -> str | None:
    """The IP address of an agent; that of this machine for one on a socket, ``None`` when its name is not known."""
    name = urlsplit(endpoint).hostname or "127.0.0.1"
    try:
        return str(ip_address(name))
    except ValueError:
        return _resolved(name, int(time.monotonic() / FRESH))


@lru_cache(maxsize=20000)
def _resolved(name: str, _period: int) -> str | None:
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return None
