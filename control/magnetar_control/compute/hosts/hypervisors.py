# SPDX-License-Identifier: GPL-3.0-or-later
"""Hypervisors: the compute hosts, their sizes, usage and uptimes."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, TypeVar
from urllib.parse import urlsplit

from magnetar_control.agents import Agents
from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.store.hosts import hosts, services
from magnetar_control.store.hosts.host_row import HostRow, ResourceSums, ServiceHost, SizedHost
from magnetar_control.store.hosts.services import ServerOnHost, Service
from magnetar_core.errors import InvalidRequest, MagnetarError, NotFound, NotSupported

from .services import parse_uuid

log = logging.getLogger(__name__)
RULE = "os_compute_api:os-hypervisors:"
#: Seconds that a list waits for the uptimes of all of its hosts, and the number of hosts that are asked at the same
#: time.
PATIENCE, MOST_PARALLEL = 5.0, 32
DAY, HOUR, MINUTE = 86400, 3600, 60
#: Seconds for which the address of a name is cached.
FRESH = 600.0
#: The number of servers on a host, and the number of those with a task in progress.
Workload = tuple[int, int]
HostSelection = TypeVar("HostSelection", bound=ServiceHost)
#: The fields that ``show_hypervisor_statistics`` sums.
SUMMED = ("vcpus", "vcpus_used", "memory_mb", "memory_mb_used", "free_ram_mb", "local_gb", "local_gb_used",
          "free_disk_gb", "disk_available_least", "running_vms", "current_workload")


@dataclass(frozen=True)
class HypervisorPage:
    """The selection of hosts for a list. Without *pattern*: at most *limit* hosts that follow the host *marker*,
    ordered by their integer ids. The marker is a uuid with *by_uuid*, otherwise an integer id. With *pattern*: all
    hosts with this text in their names."""

    limit: int | None = None
    marker: str | None = None
    by_uuid: bool = True
    pattern: str | None = None


@dataclass(frozen=True)
class SizedHypervisor:
    """A compute host. *service*: its nova-compute service. *row*: its database row with the resources and the agent's
    report."""

    service: Service
    row: SizedHost


@use_case(f"{RULE}list")
def list_hypervisors(caller: Caller, page: HypervisorPage) -> list[Service]:
    """Return the compute services of the hosts on *page*. Raises ``InvalidRequest`` when the marker does not exist,
    ``NotFound`` when no host's name contains the pattern."""
    return _services_of(caller, _hosts_of_page(caller, page, ServiceHost))


@use_case(f"{RULE}list-detail")
def list_hypervisors_detail(caller: Caller, page: HypervisorPage) -> list[SizedHypervisor]:
    """Return the hosts on *page* with their resources. Raises ``InvalidRequest`` when the marker does not exist,
    ``NotFound`` when no host's name contains the pattern."""
    return _hypervisors_of(caller, _hosts_of_page(caller, page, SizedHost))


def _hosts_of_page(caller: Caller, page: HypervisorPage, row_class: type[HostSelection]) -> list[HostSelection]:
    if page.pattern is not None:
        return _find_named_hosts(caller, page.pattern, row_class)
    after = None
    if page.marker is not None:
        marked = _find_host(caller, page.marker, ServiceHost, by_uuid=page.by_uuid)
        if marked is None:
            raise InvalidRequest(f"marker [{page.marker[:80]}] not found")
        after = marked.number
    return caller.fetch(hosts.fetch_host_page, row_class, limit=page.limit, after=after)


def _services_of(caller: Caller, rows: Sequence[ServiceHost]) -> list[Service]:
    return services.fetch_compute_services(caller.cloud.store, caller.settings.host_down_after, rows)


def _hypervisors_of(caller: Caller, rows: Sequence[SizedHost]) -> list[SizedHypervisor]:
    return list(map(SizedHypervisor, _services_of(caller, rows), rows))


def _find_host(caller: Caller, id: str, row_class: type[HostSelection], *, by_uuid: bool) -> HostSelection | None:
    """Return the host with the id *id*; ``None`` when there is none. *by_uuid*: *id* is a uuid; otherwise it is an
    integer id. *row_class*: the class of the returned row, which selects the columns to read."""
    if by_uuid:
        rows = caller.fetch(hosts.fetch_host_page, row_class, column="id", values=[id])
    elif id.isascii() and id.isdigit() and len(id) < 10 and str(int(id)) == id:
        rows = caller.fetch(hosts.fetch_host_page, row_class, column="number", values=[int(id)])
    else:
        return None
    return rows[0] if rows else None


def _find_named_hosts(caller: Caller, text: str, row_class: type[HostSelection]) -> list[HostSelection]:
    """Return the hosts with *text* in their names. *row_class*: the class of the returned rows, which selects the
    columns to read. Raises ``NotFound`` if there are none."""
    ids = [row.id for row in caller.fetch(hosts.fetch_every_host, ServiceHost) if text.lower() in row.name.lower()]
    if not ids:
        raise NotFound(f"No hypervisor matching '{text[:255]}' could be found.")
    return caller.fetch(hosts.fetch_host_page, row_class, column="id", values=ids)


@use_case(f"{RULE}search")
def search_hypervisors(caller: Caller, text: str) -> list[Service]:
    """Return the compute services of the hosts with *text* in their names. Raises ``NotFound`` if there are none."""
    return _services_of(caller, _find_named_hosts(caller, text, ServiceHost))


#: As ``search_hypervisors``, for callers who may see the servers on them.
search_hypervisor_servers = use_case(f"{RULE}servers")(search_hypervisors.function)


@use_case(f"{RULE}show")
def show_hypervisor(caller: Caller, id: str, *, by_uuid: bool = True) -> SizedHypervisor:
    """Return the hypervisor with the id *id*. *by_uuid*: *id* is a uuid; otherwise it is an integer id. Raises
    ``InvalidRequest`` for a malformed uuid, ``NotFound``."""
    identifier = parse_uuid(id) if by_uuid else id
    row = _find_host(caller, identifier, SizedHost, by_uuid=by_uuid)
    if row is None:
        raise NotFound(f"Hypervisor with ID '{identifier[:80]}' could not be found.")
    return _hypervisors_of(caller, [row])[0]


@use_case(f"{RULE}list")
def list_host_rows(caller: Caller) -> list[HostRow]:
    """Return the rows of all hosts."""
    return caller.fetch(hosts.fetch_host_rows)


def servers_of_hypervisors(caller: Caller, names: Sequence[str]) -> Mapping[str, Sequence[ServerOnHost]]:
    """Return the servers on each of the hosts *names*, by the host's name."""
    return services.fetch_servers_on_hosts(caller.cloud.store, names)


def hypervisor_workloads(caller: Caller, names: Sequence[str]) -> Mapping[str, Workload]:
    """Return, by name of each of the hosts *names*, a pair: the number of servers on the host, and how many of these
    have a task state."""
    return services.fetch_host_workloads(caller.cloud.store, names)


@use_case(f"{RULE}statistics")
def show_hypervisor_statistics(caller: Caller) -> dict[str, int]:
    """Return the statistics of Nova's API: the number of hosts that are not disabled, and the sums of their resources
    and usage. ``running_vms`` is the number of servers that have claimed resources on these hosts."""
    with caller.cloud.store.api.read() as connection:
        sums, disabled = hosts.sum_host_resources(connection), hosts.fetch_disabled_hosts(connection)
        moving = hosts.count_move_claims(connection)
    busy = sum(count for host, count in services.count_busy_servers(caller.cloud.store).items()
               if host and host not in disabled)
    total = hypervisor_sizes(sums, {"disk_gb_free": sums.disk_gb_free}, (sums.servers - moving, busy))
    return {"count": sums.hosts, **{name: int(total[name]) for name in SUMMED}}


def hypervisor_sizes(row: SizedHost | ResourceSums, info: Mapping[str, Any], workload: Workload) -> dict[str, Any]:
    """Return the resources and usage of *row* (one host, or the sums of several) under the names of Nova's API. The
    usage includes reserved amounts. *info*: the agent's report. *workload*: the number of servers, and how many of them
    have a task state."""
    memory_mb, disk_gb = row.memory_mb_used + row.memory_mb_reserved, row.disk_gb_used + row.disk_gb_reserved
    servers, busy = workload
    return {"vcpus": row.vcpus, "vcpus_used": row.vcpus_used, "memory_mb": row.memory_mb, "memory_mb_used": memory_mb,
            "free_ram_mb": row.memory_mb - memory_mb, "local_gb": row.disk_gb, "local_gb_used": disk_gb,
            "free_disk_gb": row.disk_gb - disk_gb, "disk_available_least": info.get("disk_gb_free"),
            "running_vms": servers, "current_workload": busy}


def processor_info(vcpus: int, info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of the CPUs from *info*, the agent's report, in the form of Nova's cpu_info. If the report
    has no CPU topology, all *vcpus* are in one socket, as in libvirt."""
    return {"arch": info.get("architecture") or "unknown", "model": info.get("cpu_model") or "unknown",
            "vendor": "unknown", "features": [], "topology": {"sockets": 1, "cores": vcpus, "threads": 1},
            **(info.get("cpu_info") or {})}


def agent_address(endpoint: str) -> str | None:
    """Return the IP address of the agent at the URL *endpoint*: for a Unix socket, the address of the local machine;
    ``None`` when the host name in *endpoint* cannot be resolved."""
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


# Uptimes ---------------------------------------------------------------------------------------------------------
@use_case(f"{RULE}uptime")
def show_uptime(caller: Caller, id: str, *, by_uuid: bool = True) -> tuple[Service, str]:
    """Return the compute service of the hypervisor with the id *id*, and the uptime of the host as a text. *by_uuid*:
    *id* is a uuid; otherwise it is an integer id.

    Raises ``NotFound``, ``InvalidRequest`` if the host does not answer, ``NotSupported`` if the host's agent is too
    old.
    """
    hypervisor = show_hypervisor.function(caller, id, by_uuid=by_uuid)
    service = hypervisor.service
    away = InvalidRequest(f"Compute service of {service.host} is unavailable at this time.")
    if not service.up:
        raise away
    try:
        return service, _ask_uptime(caller.cloud.agents, hypervisor.row.endpoint)
    except NotFound:
        raise NotSupported(f"The agent of host {service.host} is too old to tell for how long the host is up. "
                           "Update it.") from None
    except MagnetarError:
        raise away from None


def _ask_uptime(agents: Agents, endpoint: str) -> str:
    """Return the uptime text that the agent at the URL *endpoint* reports. Raises ``NotFound`` when the agent is too
    old to report it."""
    with agents.client(endpoint, PATIENCE) as client:
        return uptime_text(client.uptime(PATIENCE))


def list_uptimes(caller: Caller, hypervisors: Sequence[SizedHypervisor]) -> Mapping[str, str]:
    """Return the uptime texts of those *hypervisors* whose agents answer in time, by the host's name. Nothing is
    cached: each call asks the agents."""
    agents = caller.cloud.agents
    endpoints = {hypervisor.row.name: hypervisor.row.endpoint for hypervisor in hypervisors if hypervisor.service.up}
    if not endpoints:
        return {}
    pool = ThreadPoolExecutor(min(MOST_PARALLEL, len(endpoints)), thread_name_prefix="uptime")
    futures = {host: pool.submit(_uptime_or_none, agents, host, endpoint) for host, endpoint in endpoints.items()}
    wait(futures.values(), PATIENCE)
    pool.shutdown(wait=False, cancel_futures=True)
    answers = {host: future.result() for host, future in futures.items() if future.done() and not future.cancelled()}
    return {host: words for host, words in answers.items() if words is not None}


def _uptime_or_none(agents: Agents, host: str, endpoint: str) -> str | None:
    try:
        return _ask_uptime(agents, endpoint)
    except MagnetarError as error:
        log.info("host %s does not tell for how long it is up: %s", host, error, extra={"host": host})
        return None


def uptime_text(report: Mapping[str, Any]) -> str:
    """Return *report*, the agent's answer about uptime and load, in the format of uptime(1), which Nova shows: ``
    08:32:11 up 93 days, 18:25, 12 users, load average: 0.20, 0.12, 0.14``."""
    days, seconds = divmod(int(report["uptime"]), DAY)
    hours, minutes = seconds // HOUR, seconds % HOUR // MINUTE
    up = f"{days} {'day' if days == 1 else 'days'}, " if days else ""
    up += f"{hours:2}:{minutes:02}" if hours else f"{minutes} min"
    users = f"{report['users']:2} {'user' if report['users'] == 1 else 'users'}"
    load = ", ".join(f"{average:.2f}" for average in report["load_average"])
    return f" {report['time']} up {up}, {users},  load average: {load}"
