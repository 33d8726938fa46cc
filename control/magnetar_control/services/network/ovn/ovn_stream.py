# SPDX-License-Identifier: GPL-3.0-or-later
"""TLS connections of ``ovs`` that fail as other connections do, so that the next server of a cluster is tried.

In ovs 2.17 they raise ``ValueError`` when no server listens, and ``ssl.SSLError`` when a handshake fails. A session
handles neither, and keeps trying the same server.
"""

from __future__ import annotations

import errno
import socket
import ssl
from typing import Any

from ovs.stream import SSLStream, Stream


class TlsStream(SSLStream):  # type: ignore[misc]
    """A TLS stream of ``ovs`` that returns error numbers instead of raising errors."""

    @staticmethod
    def check_connection_completion(sock: Any) -> int:
        """Override ``SSLStream``: return 0 if *sock* is connected, EAGAIN while it connects, or the error."""
        try:
            return int(SSLStream.check_connection_completion(sock))
        except ValueError:
            return int(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)) or errno.ECONNREFUSED

    def connect(self) -> int:
        """Override ``SSLStream``: continue to connect. Return 0 if connected, EAGAIN if not yet, or the error."""
        try:
            return int(super().connect())
        except ssl.SSLWantWriteError:
            return errno.EAGAIN
        except ssl.SSLError:
            return errno.EPROTO
        except OSError as error:
            return error.errno or errno.EPROTO


def register_tls_stream() -> None:
    """Make ``ovs`` use ``TlsStream`` for addresses that begin with ``ssl:``."""
    Stream.register_method("ssl", TlsStream)
