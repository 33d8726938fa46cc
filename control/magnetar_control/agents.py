# SPDX-License-Identifier: GPL-3.0-or-later
"""Clients of the hosts' agents, pooled."""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_core.document import Document
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
from magnetar_core.http.client import Client, new_request_id
from magnetar_core.http.endpoint import CLOUD, Endpoint

if TYPE_CHECKING:
    import ssl

#: The id of the API request that this thread works for. The agents log it too.
request_id: contextvars.ContextVar[str | None] = contextvars.ContextVar("request_id", default=None)
#: Clients that the pool keeps for each host. More are made when needed, and closed after use.
IDLE_CLIENTS = 8
#: Seconds after which an unused client is closed.
IDLE = 30.0
#: Endpoints with pooled clients. When there are more, the clients of the least recently used one are closed.
ENDPOINTS = 5000
#: Messages for users about failures of a host. The original messages name hosts, paths and addresses, and contain
#: libvirt's and QEMU's texts.
PLAIN = {MagnetarError.code: "The server's host failed to do it. An administrator finds why in its log.",
         HypervisorError.code: "The server's host failed to do it. An administrator finds why in its log.",
         HypervisorDown.code: "The server's host cannot do anything now. Try again later.",
         GuestSilent.code: "The guest does not answer: its virtual machine hangs, as when its storage does. Other "
                           "guests go on. Try again later; a hard reboot or a deletion ends it.",
         StorageSilent.code: "The storage does not answer. Other storage goes on. Try again later.",
         Unreachable.code: "The server's host does not answer. Try again later.",
         TimedOut.code: "The server's host did not answer in time. Try again later."}
#: Seconds for an agent's answer when its host counts as down, or when no user should wait for it.
PATIENCE = 5.0


def user_message(error: MagnetarError) -> str:
    """Return the message for users about *error*, a failed call to an agent. The message does not name the host."""
    return PLAIN.get(error.code, error.message)


class AgentClient(Client):
    """A client for the HTTP API of one host's agent. Each call sends the header X-Request-Id with the id of the API
    request that caused the call. *context*: a function that returns the TLS context."""

    def __init__(self, endpoint: str, *, context: Callable[[], ssl.SSLContext], **more: Any) -> None:
        super().__init__(endpoint, **more)
        self._context = context
        #: When the client was last used; the pool sets it.
        self.used_at = 0.0

    def _tls_context(self) -> ssl.SSLContext:
        return self._context()

    def _headers(self, request_id_: str, accept: str = "application/json") -> dict[str, str]:
        return super()._headers(request_id.get() or request_id_, accept)

    def _unreachable(self, error: Exception, connected: bool) -> MagnetarError:
        """Override ``Client._unreachable``: return ``Unreachable`` instead of ``TimedOut`` if the agent does not answer
        in time: it hangs, its host has lost power, or the network drops packets. *connected*: whether the connection
        was already open when *error* occurred."""
        failure = super()._unreachable(error, connected)
        return Unreachable(failure.message) if isinstance(failure, TimedOut) else failure

    # For connections in an event loop, which the client does not open itself.

    @property
    def address(self) -> Endpoint:
        """The parts of the endpoint URL of the agent: scheme, host and port, or the path of a Unix socket."""
        return self._address

    def request_text(self, target: str, accept: str = "application/json") -> bytes:
        """Return a complete HTTP GET request for the path *target*, as bytes for a caller that opens its own
        connection. *accept*: the value of the header ``Accept``."""
        host = self._address.host or "localhost"
        headers = {"Host": f"[{host}]" if ":" in host else host, **super()._headers(new_request_id(), accept)}
        lines = [f"GET {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode()

    def answer_document(self, status: int, content: bytes) -> Document:
        """Return the JSON document in the *content* of an agent's HTTP answer with *status*. Raises the
        ``MagnetarError`` that an error answer describes."""
        return self._answer(status, content)

    def connection_error(self, error: Exception, connected: bool) -> MagnetarError:
        """Return the error to raise for *error*, the failure of a connection that the caller has opened itself.
        *connected*: whether the connection was already open when *error* occurred."""
        return self._unreachable(error, connected)

    def diagnostics(self, server_id: str) -> dict[str, Any]:
        """Return the resource usage of a server's guest, as the agent reports it: a dict with counters of CPUs, disks
        and NICs since the guest was started, and the guest's memory."""
        return self._call("GET", f"/v1/server/{server_id}/diagnostics")

    def load(self, patience: float) -> dict[str, Any]:
        """Return the CPU and memory usage of the agent's host and of the guests on this host, as the agent reports it:
        averages over ten minutes. *patience*: seconds to retry while the agent restarts."""
        return self._call("GET", "/v1/host/load", deadline=time.monotonic() + patience)

    def pool_content(self, pool: str) -> list[dict[str, Any]]:
        """Return the files or images in the storage pool *pool* of the host, each as {name, size, format, volume,
        reason}. *size*: in GiB. *volume*: the uuid of the volume with this content, ``None`` for none. *reason*: why no
        new volume can be made of the content; ``None`` if one can."""
        content: list[dict[str, Any]] = self._call("GET", "/v1/host/content", {"pool": pool})["content"]
        return content

    def uptime(self, patience: float) -> dict[str, Any]:
        """Return the uptime and the load averages of the agent's host, as the agent reports them. *patience*: seconds
        to retry while the agent restarts."""
        return self._call("GET", "/v1/host/uptime", deadline=time.monotonic() + patience)

    def reaches(self, address: str, port: int) -> bool | None:
        """Return whether this agent's host can connect to the TCP *port* at *address*, an address of another host; a
        refused connection counts as reached. Return ``None`` if the agent cannot tell."""
        query = {"address": address, "port": port}
        answer = self._call("GET", "/v1/host/reach", query, deadline=time.monotonic() + PATIENCE)["reached"]
        return None if answer is None else bool(answer)


class Agents:
    """A pool of ``AgentClient`` objects, grouped by the endpoint of the agent, such as
    ``unix:/run/magnetar/agent.sock`` or ``https://kvm1:6553``."""

    def __init__(self, ca_cert: Path | None = None, client_cert: Path | None = None, client_key: Path | None = None,
                 timeout: float = 600.0) -> None:
        files = {"ca_cert": ca_cert, "client_cert": client_cert, "client_key": client_key}
        self.tls = {name: str(path) if path else None for name, path in files.items()}
        self.timeout = timeout
        self._lock = threading.Lock()
        self._free: dict[str, list[AgentClient]] = {}
        #: The context of ``shared_context``, and the times of its files.
        self._context: tuple[list[int], ssl.SSLContext] | None = None

    def _free_clients(self, endpoint: str) -> list[AgentClient]:
        """Return the unused pooled clients of *endpoint*; the caller may modify this list. The caller must hold the
        lock of the pool."""
        free = self._free.pop(endpoint, [])
        self._free[endpoint] = free  # now the most recently used
        if len(self._free) > ENDPOINTS:
            for client in self._free.pop(next(iter(self._free))):
                client.close()
        return free

    @contextlib.contextmanager
    def client(self, endpoint: str, patience: float | None = None) -> Iterator[AgentClient]:
        """Yield a client of the agent at *endpoint* for use by the calling thread only, and put the client back into
        the pool if the caller's block raises no error; otherwise close it. *patience*: the agent counts as unreachable
        after this number of seconds without an answer; ``None``: the default."""
        with self._lock:
            free = self._free_clients(endpoint)
            client = free.pop() if free else None
        client = client or self.make(endpoint)  # outside the lock, as it may take a while
        client.patience = patience
        try:
            yield client
        except BaseException:
            client.close()
            raise
        client.used_at = time.monotonic()
        with self._lock:
            if len(free) < IDLE_CLIENTS and self._free.get(endpoint) is free:
                free.append(client)
                return
        client.close()

    def make(self, endpoint: str) -> AgentClient:
        """Return a new client of the agent at *endpoint*, outside the pool. The client sends the User-Agent header
        ``CLOUD``, which tells the agent that the control plane calls."""
        tls = self.tls if endpoint.startswith("https") else {}
        return AgentClient(endpoint, context=self.shared_context, timeout=self.timeout, agent_name=CLOUD, **tls)

    def close_idle(self) -> None:
        """Close the pooled clients that were not used for ``IDLE`` seconds."""
        idle, cutoff = list[AgentClient](), time.monotonic() - IDLE
        with self._lock:
            for free in self._free.values():
                while free and free[0].used_at <= cutoff:  # the first one was used last longest ago
                    idle.append(free.pop(0))
        for client in idle:
            client.close()

    def shared_context(self) -> ssl.SSLContext:
        """Return the TLS context of all connections to agents. The context is loaded again after a change of the CA
        certificate, client certificate or key file."""
        times = [Path(path).stat().st_mtime_ns if Path(path).exists() else 0 for path in self.tls.values() if path]
        if self._context is None or self._context[0] != times:
            self._context = times, transport.tls_context(
                self.tls["ca_cert"], self.tls["client_cert"], self.tls["client_key"])
        return self._context[1]

    def close(self) -> None:
        """Close the pooled clients."""
        with self._lock:
            clients, self._free = [c for free in self._free.values() for c in free], {}
        for client in clients:
            client.close()
