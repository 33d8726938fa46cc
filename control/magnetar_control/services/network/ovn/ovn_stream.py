# SPDX-License-Identifier: GPL-3.0-or-later
"""TLS connections of ``ovs`` that fail as others do, so that the next server of a cluster is tried.

Those of ovs 2.17 raise ``ValueError`` where nobody listens, and ``ssl.SSLError`` where a handshake fails. A session
does not know what to do with either, and does not get away from that server.
"""

from __future__ import annotations

import errno
import socket
import ssl
from typing import Any

from ovs.stream import SSLStream, Stream


class TlsStream(SSLStream):  # type: ignore[misc]
    """See the head of this file."""

    @staticmethod
    def check_connection_completion(sock: Any) -> int:
        """0, EAGAIN while it is being connected, or the error."""
        try:
            return int(SSLStream.check_connection_completion(sock))
        except ValueError:
            return int(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)) or errno.ECONNREFUSED

    def connect(self) -> int:
        """0, EAGAIN while it is being connected, or the error."""
        try:
            return int(super().connect())
        except ssl.SSLWantWriteError:
            return errno.EAGAIN
        except ssl.SSLError:
            return errno.EPROTO
        except OSError as error:
            return error.errno or errno.EPROTO


def register() -> None:
    """Have ``ssl:`` mean these."""
    Stream.register_method("ssl", TlsStream)
