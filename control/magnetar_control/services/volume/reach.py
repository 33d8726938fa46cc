# SPDX-License-Identifier: GPL-3.0-or-later
"""Access of the volume service to the hosts that store volumes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from magnetar_control.agents import PATIENCE, AgentClient, Agents
from magnetar_control.services import Images, KeyManager
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, HypervisorDown, TimedOut, Unavailable, Unreachable

from .pools import UP, PoolOnHost

#: Errors of hosts that do not answer now.
ABROAD = (Unreachable, TimedOut, HypervisorDown, Unavailable)
Hosts = Callable[[], Iterable[Mapping[str, Any]]]


@dataclass(frozen=True)
class Reach:
    """Access to the hosts, for the tasks of volumes. *hosts*: a function that returns [{name, endpoint, disk_gb,
    disk_gb_free, up}]. *agents*: creates clients of the hosts' agents. *ensure_image*: a function (host, uuid of an
    image) that copies the image to the host if it is missing there. *images*: the image service, for uploads. *keys*:
    the key manager of encrypted volumes. *pools*: a function that returns the pools that hosts have reported."""

    hosts: Hosts
    agents: Agents
    ensure_image: Callable[[str, str], None]
    images: Images | None = None
    keys: KeyManager | None = None
    pools: Callable[[], Iterable[PoolOnHost]] = list

    def client(self, name: str) -> AbstractContextManager[AgentClient]:
        """Return a client of the agent on the host *name*. If the host is down, the client has a short timeout, so that
        tasks for its volumes do not block other tasks. Raises ``Unreachable``."""
        for host in self.hosts():
            if host["name"] == name:
                return self.agents.client(host["endpoint"], None if host["up"] else PATIENCE)
        raise Unreachable(f"There is no host {name!r} in this cloud now.")

    def encryption_fields(self, row: Mapping[Any, Any], verb: str) -> Document:
        """Return the fields {format, key} for a request to an agent about the encrypted volume *row*; empty for an
        unencrypted volume. *verb*: what the request does with the volume, for the error. Raises ``Conflict`` if there
        is no key manager."""
        if not row["encryption_key_id"]:
            return {}
        if self.keys is None:
            raise Conflict(f"There is no key manager here, so an encrypted volume cannot {verb}.")
        return {"format": "luks", "key": self.keys.create_key(row["encryption_key_id"], None)}

    def roomiest(self, pool: str, fits: Callable[[str], bool] | None = None) -> str | None:
        """Return the host with the most free space in its pool called *pool*, among all hosts that are up. Return
        ``None`` if there is no such host. *fits*: a function that returns whether a host is allowed. For a host that
        has not reported its pools, the free space of its disk counts."""
        reported: dict[str, dict[str, PoolOnHost]] = {}
        for reported_pool in self.pools():
            reported.setdefault(reported_pool.host, {})[reported_pool.name] = reported_pool
        free = {}
        for host in self.hosts():
            name = host["name"]
            if not host["up"] or not (fits is None or fits(name)):
                continue
            if name not in reported:
                free[name] = host["disk_gb_free"]
            elif (pool_there := reported[name].get(pool)) is not None and pool_there.state == UP:
                free[name] = pool_there.free_gb or 0
        return max(free, key=lambda name: (free[name], name)) if free else None
