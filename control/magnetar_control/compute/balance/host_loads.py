# SPDX-License-Identifier: GPL-3.0-or-later
"""The real load of hosts and their servers, as the hosts' agents measure it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import NamedTuple

from magnetar_control.agents import PATIENCE, Agents
from magnetar_core.document import Document
from magnetar_core.errors import MagnetarError, NotFound

log = logging.getLogger(__name__)
#: Hosts that are asked at the same time, and the seconds that all of them together may take for each ``MOST_PARALLEL``.
MOST_PARALLEL = 32
#: Seconds for which an agent must have measured before its averages count.
MEASURED = 60.0
SILENT = "Its agent does not answer."
OLD = "Its agent is too old to measure the load. Upgrade it."
YOUNG = "Its agent has measured for less than a minute since its start. Try again in a minute."
UNKNOWN = "Its agent cannot measure the load of this host."


class HostLoad(NamedTuple):
    """The measured load of a host. *servers*: maps the uuid of a server to (CPUs in use, MiB in use); the CPUs are
    ``None`` if they are not measured yet."""

    cpus: int
    memory_mb: int
    cpus_used: float
    memory_mb_used: int
    servers: Mapping[str, tuple[float | None, int]]


def read_host_loads(agents: Agents, endpoints: Mapping[str, str]) -> dict[str, HostLoad | str]:
    """Ask the agent of each host for the load of the host, once. *endpoints*: URLs of the agents by host name. Return,
    by host name, the load or a text that says why it is unknown."""
    if not endpoints:
        return {}
    pool = ThreadPoolExecutor(min(MOST_PARALLEL, len(endpoints)), thread_name_prefix="load")
    futures = {host: pool.submit(_read_load, agents, host, endpoint) for host, endpoint in endpoints.items()}
    wait(futures.values(), PATIENCE * (1 + len(endpoints) / MOST_PARALLEL))
    pool.shutdown(wait=False, cancel_futures=True)
    return {host: future.result() if future.done() and not future.cancelled() else SILENT
            for host, future in futures.items()}


def _read_load(agents: Agents, host: str, endpoint: str) -> HostLoad | str:
    try:
        with agents.client(endpoint, PATIENCE) as client:
            return parse_host_load(client.load(PATIENCE))
    except NotFound:
        return OLD
    except MagnetarError as error:
        log.info("host %s does not report its load: %s", host, error, extra={"host": host})
        return SILENT


def parse_host_load(report: Document) -> HostLoad | str:
    """Return the load in *report*, an agent's answer, or a text that says why the load is unknown."""
    if report["seconds"] < MEASURED:
        return YOUNG
    if report["cpus_used"] is None or not report["memory_mb"]:
        return UNKNOWN
    return HostLoad(int(report["cpus"]), int(report["memory_mb"]), float(report["cpus_used"]),
                    int(report["memory_mb_used"]), {
                        str(server["id"]): (server["cpus_used"], int(server["memory_mb_used"]))
                        for server in report["servers"]})
