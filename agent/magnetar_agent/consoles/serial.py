# SPDX-License-Identifier: GPL-3.0-or-later
"""The serial line of a guest: many see what it says, one of them types.

What the guest says is taken from its console log, which has all of it in one order: so every client reads at its own
pace, without a queue, and begins with what was said before. What comes over the line itself only says that the log has
grown; it has to be read, or the guest would wait.
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

#: Bytes that are read at once.
PIECE = 1 << 16
#: Seconds between two looks at the log, and after which a look follows what came over the line: the log is written by
#: another process.
LOOK, SOON = 0.05, 0.004
#: Seconds after which keys are dropped that the guest does not take, as on any line whose other end does not listen.
DEAF = 5.0
READ_ONLY = b"\r\n[magnetar: somebody else types here; this console only shows what is said]\r\n"
MAY_TYPE = b"\r\n[magnetar: this console types from now on]\r\n"


@dataclass(eq=False)
class SerialClient:
    """One who has the console open; *send* gives it bytes."""

    send: Callable[[bytes], Awaitable[None]]


class SerialLine:
    """The open line *descriptor* (non-blocking, ours to close) of a guest with the console log *path*."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self.path, self.over = path, False
        self._line = descriptor
        self._loop = asyncio.get_running_loop()
        #: The first one types.
        self._clients: list[SerialClient] = []
        self._grown = asyncio.Event()
        self._loop.add_reader(descriptor, self._drain)

    def close(self) -> None:
        """Let go of the line. Clients get what is left of the log."""
        if not self.over:
            self.over = True
            self._loop.remove_reader(self._line)
            self._loop.remove_writer(self._line)
            os.close(self._line)
            self._grown.set()

    def join(self, client: SerialClient) -> None:
        """The client has the console open from now on."""
        self._clients.append(client)

    def leave(self, client: SerialClient) -> None:
        """The client has gone; with the last one the line is closed."""
        self._clients.remove(client)
        if not self._clients:
            self.close()

    async def show(self, client: SerialClient, size: int) -> None:
        """Send the client the last *size* bytes of the log and all that comes, until the guest stops."""
        log, told = LogReader(self.path, size), True
        try:
            while True:
                if over := self.over:
                    await asyncio.sleep(LOOK)  # the last words are on their way to the log
                while found := log.read(PIECE):
                    await client.send(found)
                if over:
                    return
                if self.types(client) is not told:
                    told = not told
                    await client.send(MAY_TYPE if told else READ_ONLY)
                await self._growth()
        finally:
            log.close()

    def types(self, client: SerialClient) -> bool:
        """Whether it is the one who types."""
        return self._clients[:1] == [client]

    async def typed(self, client: SerialClient, keys: bytes) -> None:
        """Give the guest what the client types; of those who only see it is dropped."""
        rest = memoryview(keys)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DEAF):
                while rest and not self.over and self.types(client):
                    try:
                        rest = rest[os.write(self._line, rest):]
                    except BlockingIOError:
                        await self._room()
                    except OSError:
                        self.close()

    def _drain(self) -> None:
        """Read what came over the line; its end is that of the guest."""
        try:
            came = os.read(self._line, PIECE)
        except BlockingIOError:
            return
        except OSError:
            came = b""
        if came:
            self._loop.call_later(SOON, self._grown.set)
        else:
            self.close()

    async def _growth(self) -> None:
        """Return when the log may have grown."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK):
                await self._grown.wait()
        self._grown.clear()

    async def _room(self) -> None:
        """Return when the line takes more."""
        free = asyncio.Event()
        self._loop.add_writer(self._line, free.set)
        try:
            await free.wait()
        finally:
            if not self.over:
                self._loop.remove_writer(self._line)
