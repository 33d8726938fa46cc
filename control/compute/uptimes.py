# SPDX-License-Identifier: GPL-3.0-or-later
"""For how long hosts are up, in the words of uptime(1), as Nova has them; their agents are asked for it each time."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from magnetar_control.agents import Agents
from magnetar_control.store.services import Service
from magnetar_core.errors import MagnetarError

log = logging.getLogger(__name__)
#: Seconds that a list waits for all of its hosts, and how many are asked at once.
PATIENCE, AT_ONCE = 5.0, 32
DAY, HOUR, MINUTE = 86400, 3600, 60


def ask(agents: Agents, endpoint: str) -> str:
    """What one host says. Raises ``NotFound`` when its agent is too old to know."""
    with agents.client(endpoint) as client:
        return text(client.uptime(PATIENCE))


def of_hosts(agents: Agents, found: Sequence[Service]) -> dict[str, str]:
    """By name, of those that are up and answer in time."""
    asked = {one.host: str(one.row["endpoint"]) for one in found if one.up and one.row is not None}
    if not asked:
        return {}
    pool = ThreadPoolExecutor(min(AT_ONCE, len(asked)), thread_name_prefix="uptime")
    futures = {host: pool.submit(_told, agents, host, endpoint) for host, endpoint in asked.items()}
    wait(futures.values(), PATIENCE)
    pool.shutdown(wait=False, cancel_futures=True)
    told = {host: future.result() for host, future in futures.items() if future.done() and not future.cancelled()}
    return {host: words for host, words in told.items() if words is not None}


def _told(agents: Agents, host: str, endpoint: str) -> str | None:
    try:
        return ask(agents, endpoint)
    except MagnetarError as error:
        log.info("host %s does not tell for how long it is up: %s", host, error, extra={"host": host})
        return None


def text(told: Mapping[str, Any]) -> str:
    """`` 08:32:11 up 93 days, 18:25, 12 users,  load average: 0.20, 0.12, 0.14``."""
    days, rest = divmod(int(told["uptime"]), DAY)
    hours, minutes = rest // HOUR, rest % HOUR // MINUTE
    up = f"{days} {'day' if days == 1 else 'days'}, " if days else ""
    up += f"{hours:2}:{minutes:02}" if hours else f"{minutes} min"
    users = f"{told['users']:2} {'user' if told['users'] == 1 else 'users'}"
    load = ", ".join(f"{one:.2f}" for one in told["load_average"])
    return f" {told['time']} up {up}, {users},  load average: {load}"
