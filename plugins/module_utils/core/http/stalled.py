# SPDX-License-Identifier: GPL-3.0-or-later
"""Detection of clients that do not read the data sent to them; their connections are aborted."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, Optional

#: Seconds over which the rate of a client is measured.
WINDOW = 30.0
#: Offset of tcpi_bytes_acked in struct tcp_info (linux/tcp.h, since Linux 4.1).
_ACKED = struct.Struct("=120xQ")


class StalledReader:
    """A watcher that aborts a TCP connection if the client reads less than *rate* bytes per second while data waits to
    be sent.

    It counts the bytes that the client's kernel has acknowledged, so it also works with TLS, and after the server has
    passed its whole response to the kernel.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: Any, rate: int) -> None:
        self._loop, self._transport, self._rate = loop, transport, rate
        self._timer: Optional[asyncio.TimerHandle] = None
        #: Bytes acknowledged when data last waited to be sent; ``None`` when none did.
        self._before: Optional[int] = None
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            self._timer = loop.call_later(WINDOW, self._look)

    def stop(self) -> None:
        """Stop watching the connection. Repeated calls do nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        acked = self._acked() if self._transport.get_write_buffer_size() else None
        if acked is not None and self._before is not None and acked - self._before < self._rate * WINDOW:
            self._timer = None
            self._transport.abort()
            return
        self._before = acked
        self._timer = self._loop.call_later(WINDOW, self._look)

    def _acked(self) -> Optional[int]:
        """Return the number of bytes that the client's kernel has acknowledged; ``None`` if this machine's kernel does
        not report it.
        """
        try:
            facts = self._transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO,
                                                                        _ACKED.size)
        except OSError:
            return None
        return int(_ACKED.unpack(facts)[0]) if len(facts) == _ACKED.size else None
