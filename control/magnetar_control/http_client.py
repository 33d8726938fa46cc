# SPDX-License-Identifier: GPL-3.0-or-later
"""Connections to services of the operator's that may hang, lie or redirect. HTTP is the standard library's, as in
``identity.keystone``; redirects are not followed."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPSConnection


def target(url: urllib.parse.SplitResult) -> str:
    """What is asked for at a URL: path and query."""
    return urllib.parse.urlunsplit(("", "", url.path or "/", url.query, ""))


@contextlib.contextmanager
def connected(url: urllib.parse.SplitResult, trust: ssl.SSLContext, connect: float,
              read: float) -> Iterator[HTTPConnection]:
    """A connection to the host of *url*, which is cut when its time is over, however slowly something comes. *connect*,
    *read*: seconds to connect, and for the whole answer."""
    secure, host = url.scheme == "https", str(url.hostname)
    port = url.port or (443 if secure else 80)
    plain = socket.create_connection((host, port), connect)
    guard = plain.dup()
    timer = threading.Timer(connect + read, shut_down, (guard,))
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


def shut_down(connection: socket.socket) -> None:
    """Shut down both directions of *connection*, which may have ended already."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
