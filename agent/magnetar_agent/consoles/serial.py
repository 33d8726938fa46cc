# SPDX-License-Identifier: GPL-3.0-or-later
"""The serial line of a guest: many clients see its output, one of them types.

The output is read from the guest's console log, which has all of it in one order: so every client reads at its own
pace, without a queue, and begins with earlier output. Bytes from the line itself only signal that the log has grown;
they must be read, or the guest would block.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .log import LogReader

if TYPE_CHECKING:
    from pathlib import Path

#: Bytes of one read.
PIECE = 1 << 16
#: Seconds between two reads of the log, and between bytes from the line and the next read: another process writes the
#: log.
POLL_INTERVAL, SOON = 0.05, 0.004
#: Seconds after which keys that the guest does not read are dropped, as on any line without a listener.
DEAF = 5.0
READ_ONLY = b"\r\n[magnetar: somebody else types here; this console only shows what is said]\r\n"
MAY_TYPE = b"\r\n[magnetar: this console types from now on]\r\n"


@dataclass(eq=False)
class SerialClient:
    """A client of a serial console. *send*: sends bytes to the client."""

    send: Callable[[bytes], Awaitable[None]]


class SerialLine:
    """The open serial line of a guest, shared by all clients of its console. *descriptor*: non-blocking file descriptor
    of the line; ``close`` closes it. *path*: the guest's console log, from which clients get the output."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self.path, self.over = path, False
        self._line = descriptor
        self._loop = asyncio.get_running_loop()
        #: The first client types.
        self._clients: list[SerialClient] = []
        self._grown = asyncio.Event()
        self._loop.add_reader(descriptor, self._drain)

    def close(self) -> None:
        """Close the line. Clients still get the remaining output from the log."""
        if not self.over:
            self.over = True
            self._loop.remove_reader(self._line)
            self._loop.remove_writer(self._line)
            os.close(self._line)
            self._grown.set()

    def join(self, client: SerialClient) -> None:
        """Add a client to the console. The first client may type."""
        self._clients.append(client)

    def remove_client(self, client: SerialClient) -> None:
        """Remove a client. If it was the last client, close the line."""
        self._clients.remove(client)
        if not self._clients:
            self.close()

    async def show(self, client: SerialClient, size: int) -> None:
        """Send the last *size* bytes of the console log and all later output to the client, until the guest stops."""
        log, may_type = LogReader(self.path, size), True
        try:
            while True:
                if over := self.over:
                    await asyncio.sleep(POLL_INTERVAL)  # the last output is on its way to the log
                while piece := log.read(PIECE):
                    await client.send(piece)
                if over:
                    return
                if self.may_type(client) is not may_type:
                    may_type = not may_type
                    await client.send(MAY_TYPE if may_type else READ_ONLY)
                await self._growth()
        finally:
            log.close()

    def may_type(self, client: SerialClient) -> bool:
        """Return whether *client* may type: only the client that joined before all other present ones may."""
        return self._clients[:1] == [client]

    async def write_keys(self, client: SerialClient, keys: bytes) -> None:
        """Write *keys* to the guest's serial line if *client* may type; otherwise discard the keys."""
        remaining = memoryview(keys)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DEAF):
                while remaining and not self.over and self.may_type(client):
                    try:
                        remaining = remaining[os.write(self._line, remaining):]
                    except BlockingIOError:
                        await self._room()
                    except OSError:
                        self.close()

    def _drain(self) -> None:
        """Read and discard the bytes from the line: clients get the output from the log. At end of file, the guest has
        stopped, so close the line."""
        try:
            received = os.read(self._line, PIECE)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if received:
            self._loop.call_later(SOON, self._grown.set)
        else:
            self.close()

    async def _growth(self) -> None:
        """Wait until the console log may have new text, for at most ``POLL_INTERVAL`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_INTERVAL):
                await self._grown.wait()
        self._grown.clear()

    async def _room(self) -> None:
        """Wait until the line, whose buffer is full, accepts more input."""
        free = asyncio.Event()
        self._loop.add_writer(self._line, free.set)
        try:
            await free.wait()
        finally:
            if not self.over:
                self._loop.remove_writer(self._line)
