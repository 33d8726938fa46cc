# SPDX-License-Identifier: GPL-3.0-or-later
"""Clients of the hosts' agents, pooled."""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_core.errors import (
    GuestSilent,
    HypervisorDown,
    HypervisorError,
    MagnetarError,
    StorageSilent,
    TimedOut,
    Unreachable,
)
from magnetar_core.http import transport
from magnetar_core.http.client import Client
from magnetar_core.http.endpoint import CLOUD

if TYPE_CHECKING:
    import ssl

#: Id of the API request for which this thread works. The agents log it too.
request_id: contextvars.ContextVar[str | None] = contextvars.ContextVar("request_id", default=None)
#: Clients that the pool keeps for each host; more are made when needed, and closed after use.
KEPT = 8
#: Endpoints for which there are such clients; of the one that was not used for longest they are closed.
ENDPOINTS = 5000
#: Messages for users about failures of a host; the original ones name hosts, paths and addresses, and tell in libvirt's
#: and QEMU's words what failed.
PLAIN = {MagnetarError.code: "The server's host failed to do it. An administrator finds why in its log.",
         HypervisorError.code: "The server's host failed to do it. An administrator finds why in its log.",
         HypervisorDown.code: "The server's host cannot do anything now. Try again later.",
         GuestSilent.code: "The guest does not answer: its virtual machine hangs, as when its storage does. Other "
                           "guests go on. Try again later; a hard reboot or a deletion ends it.",
         StorageSilent.code: "The storage does not answer. Other storage goes on. Try again later.",
         Unreachable.code: "The server's host does not answer. Try again later.",
         TimedOut.code: "The server's host did not answer in time. Try again later."}
#: Seconds that an agent has for an answer where its host counts as down, or where nobody is to wait for it.
PATIENCE = 5.0


def plain(error: MagnetarError) -> str:
    """The message of a failed call of an agent for users, who are not told which host it is."""
    return PLAIN.get(error.code, error.message)


class AgentClient(Client):
    """A client that sends the id of the API request for which it is used."""

    def _headers(self, request_id_: str, accept: str = "application/json") -> dict[str, str]:
        return super()._headers(request_id.get() or request_id_, accept)

    def _unreachable(self, error: Exception, connected: bool) -> MagnetarError:
        """An agent that is connected to and says nothing (it hangs, its host lost power, the network drops packets) is
        not there, as one that nobody can connect to."""
        found = super()._unreachable(error, connected)
        return Unreachable(found.message) if isinstance(found, TimedOut) else found

    def diagnostics(self, server_id: str) -> dict[str, Any]:
        """Usage figures of a server since its guest was started."""
        return self._call("GET", f"/v1/server/{server_id}/diagnostics")

    def uptime(self, patience: float) -> dict[str, Any]:
        """Uptime and load of the host; retried for *patience* seconds while its agent restarts."""
        return self._call("GET", "/v1/host/uptime", deadline=time.monotonic() + patience)


class Agents:
    """A pool of clients by endpoint, such as ``unix:/run/magnetar/agent.sock`` or ``https://kvm1:6553``."""

    def __init__(self, ca_cert: Path | None = None, client_cert: Path | None = None, client_key: Path | None = None,
                 timeout: float = 600.0) -> None:
        files = {"ca_cert": ca_cert, "client_cert": client_cert, "client_key": client_key}
        self.tls = {name: str(path) if path else None for name, path in files.items()}
        self.timeout = timeout
        self._lock = threading.Lock()
        self._free: dict[str, list[AgentClient]] = {}

    def _free_clients(self, endpoint: str) -> list[AgentClient]:
        """Those of the pool for *endpoint*; hold the lock."""
        free = self._free.pop(endpoint, [])
        self._free[endpoint] = free  # the last one now
        if len(self._free) > ENDPOINTS:
            for client in self._free.pop(next(iter(self._free))):
                client.close()
        return free

    @contextlib.contextmanager
    def client(self, endpoint: str, patience: float | None = None) -> Iterator[AgentClient]:
        """A client that no other thread uses meanwhile. *patience*: seconds after which an agent that says nothing
        counts as unreachable; ``None``: the usual."""
        with self._lock:
            free = self._free_clients(endpoint)
            client = free.pop() if free else None
        client = client or self.make(endpoint)  # which may take a while
        client.patience = patience
        try:
            yield client
        except BaseException:
            client.close()
            raise
        with self._lock:
            if len(free) < KEPT and self._free.get(endpoint) is free:
                free.append(client)
                return
        client.close()

    def make(self, endpoint: str) -> AgentClient:
        """A client outside of the pool. By its name the agents know that a cloud asks."""
        tls = self.tls if endpoint.startswith("https") else {}
        return AgentClient(endpoint, timeout=self.timeout, agent_name=CLOUD, **tls)  # type: ignore[arg-type]

    def context(self) -> ssl.SSLContext:
        """TLS as the clients have it, for other connections to agents."""
        return transport.tls(self.tls["ca_cert"], self.tls["client_cert"], self.tls["client_key"])

    def close(self) -> None:
        """Close the pooled clients."""
        with self._lock:
            kept, self._free = [c for free in self._free.values() for c in free], {}
        for client in kept:
            client.close()
