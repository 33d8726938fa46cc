# SPDX-License-Identifier: GPL-3.0-or-later
"""uvicorn servers in a thread of the test that end without delay.

uvicorn checks every tenth of a second whether it should end, and then waits another tenth for its connections. Tests
stop thousands of servers, so that took minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import uvicorn

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

#: Seconds that connections have before they are cut.
CUT = 0.1


class Prompt(uvicorn.Server):
    """A uvicorn server that ends without delay."""

    looping: asyncio.Task[None]
    loop: asyncio.AbstractEventLoop

    async def main_loop(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.looping = self.loop.create_task(super().main_loop())
        with contextlib.suppress(asyncio.CancelledError):
            await self.looping

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for one in (*self.servers, *(sockets or ())):
            one.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        until = time.monotonic() + CUT
        while (self.server_state.connections or self.server_state.tasks) and (  # noqa: ASYNC110 - nobody is told
                not self.force_exit or time.monotonic() < until):
            await asyncio.sleep(0.005)

    def end(self) -> None:
        """End the server, from another thread."""
        self.should_exit = True
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            self.loop.call_soon_threadsafe(self.looping.cancel)


@contextlib.contextmanager
def started(given: uvicorn.Server, sock: socket.socket | None = None, cut: bool = False) -> Iterator[uvicorn.Server]:
    """Run the server *given* within the context, on *sock* or as it is configured. *cut*: end it without waiting for
    unfinished answers.
    """
    server: Any = given
    server.__class__ = Prompt
    thread = threading.Thread(target=server.run, kwargs={"sockets": sock and [sock]}, daemon=True)
    thread.start()
    while not (server.started and hasattr(server, "looping")) and thread.is_alive():
        time.sleep(0.002)
    assert thread.is_alive(), "the server has not started"
    try:
        yield server
    finally:
        server.force_exit = cut
        server.end()
        thread.join(10)
