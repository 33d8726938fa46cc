# SPDX-License-Identifier: GPL-3.0-or-later
"""An agent's application behind real sockets, served by a thread of the test."""

from __future__ import annotations

import http.client
import json
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from magnetar_agent.api import serve
from magnetar_agent.api.app import AgentApplication
from tests.support.http_server import started

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from magnetar_agent.agent import Agent
    from magnetar_core.http.connections import Connections


class Unix(http.client.HTTPConnection):
    """A connection to a unix socket."""

    def __init__(self, path: Path, timeout: float = 120) -> None:
        super().__init__("agent", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


class Client:
    """HTTP calls over one open connection; stores the headers of the last answer."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self.connection = connection
        self.headers: Mapping[str, str] = {}

    def raw(self, method: str, path: str, content: Any = None, **headers: str) -> tuple[int, bytes]:
        """Return status and bytes of the answer to a request."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request(method, path, content, named)
        answer = self.connection.getresponse()
        self.headers = answer.headers
        return answer.status, answer.read()

    def call(self, method: str, path: str, body: Any = ..., **headers: str) -> tuple[int, Any]:
        """Return status and JSON of the answer to a request."""
        status, content = self.raw(method, path, None if body is ... else json.dumps(body), **headers)
        return status, json.loads(content)


@contextmanager
def served(agent: Agent, sock: socket.socket, tls: ssl.SSLContext | None = None,
           places: Connections | None = None) -> Iterator[AgentApplication]:
    """Serve *agent* on *sock* within the context; close the socket afterwards."""
    application = AgentApplication(agent)
    with started(serve.make_http_server(application, agent.host.settings, tls, places), sock, cut=True):
        try:
            yield application
        finally:
            application.feed.close()
