# SPDX-License-Identifier: GPL-3.0-or-later
"""Connections to services that the operator runs. They have time limits, because such a service may hang, and they do
not follow redirects. They use the standard library's HTTP, as ``identity.keystone`` does."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPSConnection


def request_target(url: urllib.parse.SplitResult) -> str:
    """Return the request target of *url* for an HTTP request line: path and query."""
    return urllib.parse.urlunsplit(("", "", url.path or "/", url.query, ""))


@contextlib.contextmanager
def timed_connection(url: urllib.parse.SplitResult, trust: ssl.SSLContext, connect: float,
                     read: float) -> Iterator[HTTPConnection]:
    """Yield an HTTP connection to the host of *url*. *trust*: the TLS context for https. *connect*: time limit in
    seconds to connect. *read*: time limit to get the whole response. After *connect* + *read* seconds the connection is
    shut down, even if data still arrives."""
    secure, host = url.scheme == "https", str(url.hostname)
    port = url.port or (443 if secure else 80)
    plain = socket.create_connection((host, port), connect)
    guard = plain.dup()
    timer = threading.Timer(connect + read, shut_down_socket, (guard,))
    timer.daemon = True
    timer.start()
    try:
        made = HTTPSConnection(host, port, context=trust) if secure else HTTPConnection(host, port)
        made.sock = trust.wrap_socket(plain, server_hostname=host) if secure else plain
        made.sock.settimeout(read)
        with contextlib.closing(made):
            yield made
    finally:
        timer.cancel()
        guard.close()
        plain.close()


def shut_down_socket(connection: socket.socket) -> None:
    """Shut down both directions of *connection*. Ignore errors, since it may already be closed."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
