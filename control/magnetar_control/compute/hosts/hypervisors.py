# SPDX-License-Identifier: GPL-3.0-or-later
"""Hypervisors: the compute hosts, what they have, what is used of it, and for how long they are up."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import orjson

from magnetar_control.agents import Agents
from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.store.hosts import hosts, services
from magnetar_control.store.hosts.services import COMPUTE, Service
from magnetar_core.errors import InvalidRequest, MagnetarError, NotFound, NotSupported

from .services import read_all, uuid_of

log = logging.getLogger(__name__)
RULE = "os_compute_api:os-hypervisors:"
#: Seconds that a list waits for the uptimes of all of its hosts, and how many are asked at once.
PATIENCE, AT_ONCE = 5.0, 32
DAY, HOUR, MINUTE = 86400, 3600, 60
#: Seconds for which the address of a name is believed.
FRESH = 600.0
#: Of how many servers a host is, and to how many of them something is being done.
Workload = tuple[int, int]
#: What ``statistics`` sums.
SUMMED = ("vcpus", "vcpus_used", "memory_mb", "memory_mb_used", "free_ram_mb", "local_gb", "local_gb_used",
          "free_disk_gb", "disk_available_least", "running_vms", "current_workload")


@use_case(f"{RULE}list")
def page(caller: Caller, limit: int | None = None, marker: str | None = None, *, pattern: str | None = None,
         by_uuid: bool = True) -> list[Service]:
    """The compute services in the order of their numbers, after the one that *marker* names by uuid or number; or
    those with *pattern* in their names. Raises ``InvalidRequest`` when there is no such marker, ``NotFound`` when no
    name has the pattern."""
    found = _every(caller) if pattern is None else search.function(caller, pattern)
    if marker is None:
        return found[:limit]
    for at, one in enumerate(found):
        if marker == _id(one, by_uuid=by_uuid):
            return found[at + 1:][:limit]
    raise InvalidRequest(f"marker [{marker[:80]}] not found")


#: As ``page``, for those who may see all of them.
page_detail = use_case(f"{RULE}list-detail")(page.function)


def _every(caller: Caller) -> list[Service]:
    return [one for one in read_all(caller) if one.binary == COMPUTE]


def _id(one: Service, *, by_uuid: bool) -> str:
    return one.id if by_uuid else str(one.number)


@use_case(f"{RULE}search")
def search(caller: Caller, text: str) -> list[Service]:
    """Those with *text* in their names. Raises ``NotFound``."""
    found = [one for one in _every(caller) if text.lower() in one.host.lower()]
    if not found:
        raise NotFound(f"No hypervisor matching '{text[:255]}' could be found.")
    return found


#: As ``search``, for those who may see what is on them.
search_servers = use_case(f"{RULE}servers")(search.function)


@use_case(f"{RULE}show")
def show(caller: Caller, id: str, *, by_uuid: bool = True) -> Service:
    """The compute service of that uuid or number. Raises ``InvalidRequest`` for what is no uuid, ``NotFound``."""
    wanted = uuid_of(id) if by_uuid else id
    for one in _every(caller):
        if wanted == _id(one, by_uuid=by_uuid):
            return one
    raise NotFound(f"Hypervisor with ID '{wanted[:80]}' could not be found.")


@use_case(f"{RULE}list")
def rows(caller: Caller) -> list[Mapping[Any, Any]]:
    """The rows of all hosts."""
    return list(caller.fetch(hosts.every))


def servers_on(caller: Caller, found: Sequence[Service]) -> Mapping[str, Sequence[Any]]:
    """The servers (id, name) on each of these hosts, by the host's name."""
    return services.on_hosts(caller.cloud.store, [one.host for one in found])


def workloads(caller: Caller, found: Sequence[Service]) -> Mapping[str, Workload]:
    """By the host's name."""
    return services.workloads(caller.cloud.store, [one.host for one in found])


@use_case(f"{RULE}statistics")
def statistics(caller: Caller) -> dict[str, int]:
    """Sums over the hosts that are not disabled, and their count."""
    found = [one for one in _every(caller) if not one.disabled]
    loads = workloads(caller, found)
    total = {"count": len(found), **dict.fromkeys(SUMMED, 0)}
    for one in found:
        if one.row is not None:
            of_host = sizes(one.row, orjson.loads(one.row["info"]), loads.get(one.host, (0, 0)))
            for name in SUMMED:
                total[name] += of_host[name] or 0
    return total


def sizes(row: Any, info: Mapping[str, Any], workload: Workload) -> dict[str, Any]:
    """What the host has, and what is used: claimed by servers, and kept from them."""
    used = {name: row[f"{name}_used"] + row[f"{name}_reserved"] for name in ("vcpus", "memory_mb", "disk_gb")}
    servers, busy = workload
    return {"vcpus": row["vcpus"], "vcpus_used": row["vcpus_used"], "memory_mb": row["memory_mb"],
            "memory_mb_used": used["memory_mb"], "free_ram_mb": row["memory_mb"] - used["memory_mb"],
            "local_gb": row["disk_gb"], "local_gb_used": used["disk_gb"],
            "free_disk_gb": row["disk_gb"] - used["disk_gb"], "disk_available_least": info.get("disk_gb_free"),
            "running_vms": servers, "current_workload": busy}


def processor(vcpus: int, info: Mapping[str, Any]) -> dict[str, Any]:
    """What the agent tells of the CPUs; where it tells no topology, all of them in one socket, as libvirt has it."""
    return {"arch": info.get("architecture") or "unknown", "model": info.get("cpu_model") or "unknown",
            "vendor": "unknown", "features": [], "topology": {"sockets": 1, "cores": vcpus, "threads": 1},
            **(info.get("cpu_info") or {})}


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


# For how long they are up -----------------------------------------------------------------------------------------
@use_case(f"{RULE}uptime")
def uptime(caller: Caller, id: str, *, by_uuid: bool = True) -> tuple[Service, str]:
    """The compute service of that uuid or number, and for how long its host is up. Raises ``NotFound``,
    ``InvalidRequest`` when the host does not answer, ``NotSupported`` when its agent is too old to know."""
    one = show.function(caller, id, by_uuid=by_uuid)
    away = InvalidRequest(f"Compute service of {one.host} is unavailable at this time.")
    if not one.up or one.row is None:
        raise away
    try:
        return one, _ask_uptime(caller.cloud.agents, one.row["endpoint"])
    except NotFound:
        raise NotSupported(f"The agent of host {one.host} is too old to tell for how long the host is up. "
                           "Update it.") from None
    except MagnetarError:
        raise away from None


def _ask_uptime(agents: Agents, endpoint: str) -> str:
    """What one host says. Raises ``NotFound`` when its agent is too old to know."""
    with agents.client(endpoint, PATIENCE) as client:
        return uptime_text(client.uptime(PATIENCE))


def uptimes(caller: Caller, found: Sequence[Service]) -> Mapping[str, str]:
    """For how long hosts are up, by name: of those that answer in time. Their agents are asked each time."""
    agents = caller.cloud.agents
    asked = {one.host: str(one.row["endpoint"]) for one in found if one.up and one.row is not None}
    if not asked:
        return {}
    pool = ThreadPoolExecutor(min(AT_ONCE, len(asked)), thread_name_prefix="uptime")
    futures = {host: pool.submit(_uptime, agents, host, endpoint) for host, endpoint in asked.items()}
    wait(futures.values(), PATIENCE)
    pool.shutdown(wait=False, cancel_futures=True)
    told = {host: future.result() for host, future in futures.items() if future.done() and not future.cancelled()}
    return {host: words for host, words in told.items() if words is not None}


def _uptime(agents: Agents, host: str, endpoint: str) -> str | None:
    try:
        return _ask_uptime(agents, endpoint)
    except MagnetarError as error:
        log.info("host %s does not tell for how long it is up: %s", host, error, extra={"host": host})
        return None


def uptime_text(told: Mapping[str, Any]) -> str:
    """As uptime(1) says it, which Nova shows: `` 08:32:11 up 93 days, 18:25, 12 users,  load average: 0.20, 0.12,
    0.14``."""
    days, rest = divmod(int(told["uptime"]), DAY)
    hours, minutes = rest // HOUR, rest % HOUR // MINUTE
    up = f"{days} {'day' if days == 1 else 'days'}, " if days else ""
    up += f"{hours:2}:{minutes:02}" if hours else f"{minutes} min"
    users = f"{told['users']:2} {'user' if told['users'] == 1 else 'users'}"
    load = ", ".join(f"{one:.2f}" for one in told["load_average"])
    return f" {told['time']} up {up}, {users},  load average: {load}"
