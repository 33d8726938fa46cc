# SPDX-License-Identifier: GPL-3.0-or-later
"""Consoles of servers as WebSockets: ``/v1/server/KEY/consoles/vnc``, ``…/spice`` and ``…/serial``.

Binary messages are the raw bytes of the line, as noVNC, spice-html5 and serial clients expect (subprotocol ``binary``).
A text message ``break`` sends a break over a serial line; other text messages are ignored. Each channel of a SPICE
session is a WebSocket.

A console ends when its guest stops or has moved to another host, or when its server is deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from anyio import CapacityLimiter, to_thread
from starlette.concurrency import run_in_threadpool
from starlette.websockets import WebSocket, WebSocketDisconnect

from magnetar_agent.api import audit
from magnetar_agent.api.streams import CONSOLE_BYTES, console_path
from magnetar_agent.host.host import CONSOLES, SERIAL, SPICE, VNC
from magnetar_agent.reconcile import reconcile
from magnetar_core.errors import Conflict, MagnetarError, NotFound, TooManyRequests
from magnetar_core.http.first_of import run_until_first
from magnetar_core.kinds import Server
from magnetar_core.power import PAUSED, RUNNING
from magnetar_core.query import read_number, read_parameters

from .serial import PIECE, SerialClient, SerialLine

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from starlette.types import Receive, Scope, Send

    from magnetar_agent.agent import ManagedHost

log = logging.getLogger(__name__)

PATH = re.compile(rf"/v1/{Server.noun}/([^/]+)/consoles/([^/]+)")
#: Connections of one kind that a server may have open at the same time. A SPICE client has four, or six with sound.
OF_SERVER = {VNC: 8, SERIAL: 8, SPICE: 16}
#: Seconds after which a client, or a VNC or SPICE server, that reads nothing is cut off.
HUNG = 60.0
#: Threads for calls that a guest must answer.
THREADS = 8
#: Close codes: the guest has stopped (normal), an error.
NORMAL, FAILED = 1000, 1011


class OpenConsoles:
    """An ASGI application that serves the consoles of servers (VNC, SPICE, serial) as WebSockets. The agent must have
    checked the caller's permission before."""

    def __init__(self, agent: ManagedHost) -> None:
        self.agent = agent
        #: Own threads: waiting for a guest must not block other requests.
        self._threads = CapacityLimiter(THREADS)
        #: The open serial lines, by server.
        self._lines: dict[str, asyncio.Future[SerialLine]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one console until it ends. If the console cannot be opened, raise ``MagnetarError`` before anything is
        sent to the client."""
        path_match = PATH.fullmatch(scope["path"])
        if not path_match:
            raise NotFound(f"There is no WebSocket at {scope['path']}. Consoles are at /v1/server/KEY/consoles/KIND, "
                           f"and KIND is one of {', '.join(CONSOLES)}.")
        key, kind = path_match[1].replace("\x00", "/"), path_match[2]
        if kind not in CONSOLES:
            raise NotFound(f"There is no console {kind[:20]!r}: there are {', '.join(CONSOLES)}.")
        websocket = WebSocket(scope, receive, send)
        size = read_parameters(websocket.query_params.multi_items(), {"scrollback": read_number}).get("scrollback",
                                                                                                      CONSOLE_BYTES)
        id, open_consoles = await self._server(key), self.agent.host.consoles
        if open_consoles[id, kind] >= OF_SERVER[kind]:
            raise TooManyRequests(f"{OF_SERVER[kind]} {kind} consoles of this server are open already. Close one.")
        open_consoles[id, kind] += 1
        try:
            if kind == SERIAL:
                await self._serial(websocket, id, min(size, self.agent.host.settings.console_log_bytes))
            else:
                await self._graphics(websocket, id, kind)
        finally:
            open_consoles[id, kind] -= 1
            if not open_consoles[id, kind]:
                del open_consoles[id, kind]

    async def _server(self, key: str) -> str:
        """Return the uuid of the running server *key* (a name or uuid). Raises ``NotFound``, ``Ambiguous``, or
        ``Conflict`` if its guest does not run."""
        shown = await run_in_threadpool(reconcile.show_resource, self.agent.drivers, Server, key)
        if shown["power_state"] not in (RUNNING, PAUSED):
            raise Conflict(f"The server {shown['name']} is {shown['power_state']}: only one that runs has a console. "
                           "Start it.")
        return str(shown["id"])

    async def _graphics(self, websocket: WebSocket, id: str, kind: str) -> None:
        line = await to_thread.run_sync(self.agent.host.hypervisor.open_graphics, id, kind, limiter=self._threads)
        reader, writer = await asyncio.open_unix_connection(sock=line)

        async def show() -> None:
            while piece := await reader.read(PIECE):
                await _sent(websocket, websocket.send_bytes(piece))

        async def write_input(data: bytes) -> None:
            writer.write(data)
            async with asyncio.timeout(HUNG):
                await writer.drain()

        try:
            await self._serve(websocket, id, kind, show, write_input)
        finally:
            writer.close()

    async def _serial(self, websocket: WebSocket, id: str, size: int) -> None:
        client = SerialClient(lambda data: _sent(websocket, websocket.send_bytes(data)))
        line = await self._line(id)
        line.join(client)

        async def broken() -> None:
            if line.may_type(client):
                await to_thread.run_sync(self.agent.host.hypervisor.send_break, id, limiter=self._threads)

        try:
            await self._serve(websocket, id, SERIAL, partial(line.show, client, size),
                              partial(line.write_keys, client), broken)
        finally:
            line.remove_client(client)
            if line.over and id in self._lines and not self._usable(self._lines[id]):
                del self._lines[id]

    async def _line(self, id: str) -> SerialLine:
        """Return the open serial line of the server *id*; open it if no client has done so. No ``await`` follows the
        check that the line is open, so no other task can close the line before this method returns."""
        while True:
            opening = self._lines.get(id)
            if opening is None or not self._usable(opening):
                opening = self._lines[id] = asyncio.ensure_future(self._opened(id))
            try:
                line = await asyncio.shield(opening)
            except MagnetarError:
                if self._lines.get(id) is opening:
                    del self._lines[id]
                raise
            if not line.over:
                return line

    def _usable(self, line: asyncio.Future[SerialLine]) -> bool:
        """Return whether *line*, the future of a serial line, has an open line or is still opening it."""
        return not line.done() or (not line.exception() and not line.result().over)

    async def _opened(self, id: str) -> SerialLine:
        descriptor = await run_in_threadpool(self.agent.host.hypervisor.open_serial, id)
        return SerialLine(descriptor, console_path(self.agent.host, id))

    async def _serve(self, websocket: WebSocket, id: str, kind: str, show: Callable[[], Coroutine[Any, Any, None]],
                     write_input: Callable[[bytes], Awaitable[None]],
                     broken: Callable[[], Awaitable[None]] | None = None) -> None:
        """Accept the client's WebSocket, and serve a console on it until the client or the guest ends it. *kind*: the
        console's type, such as ``vnc``. *show*: sends the output to the client. *write_input*: sends input to the
        guest. *broken*: sends a break to the guest; ``None`` if the console has no breaks."""

        async def read_messages() -> None:
            while (message := await websocket.receive())["type"] != "websocket.disconnect":
                if message.get("bytes"):
                    await write_input(message["bytes"])
                elif message.get("text") == "break" and broken:
                    await broken()

        began, state = time.monotonic(), websocket.scope["state"]
        try:
            await websocket.accept("binary" if "binary" in websocket.scope["subprotocols"] else None)
        except WebSocketDisconnect:  # the client has disconnected already
            return
        audit.write_audit_line("open_console", Server.noun, id, state["caller"], state["request_id"], "succeeded",
                               console=kind)
        code, reason = NORMAL, "the console has ended: the guest stopped, or is on another host"
        try:
            await run_until_first(show(), read_messages(), quiet=(WebSocketDisconnect,))
        except (MagnetarError, OSError) as error:
            log.warning("a console of %s ended early: %s", id, error)
            code, reason = FAILED, "the console failed; the agent's log says why"
        finally:
            audit.write_audit_line("close_console", Server.noun, id, state["caller"], state["request_id"], "succeeded",
                                   seconds=time.monotonic() - began, console=kind)
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # the client has disconnected
            await _sent(websocket, websocket.close(code, reason))


async def _sent(websocket: WebSocket, sending: Awaitable[None]) -> None:
    """Await *sending*, which sends data to *websocket*. If the client does not read for too long, abort its connection
    and raise ``WebSocketDisconnect``."""
    try:
        async with asyncio.timeout(HUNG):
            await sending
    except TimeoutError:
        websocket.scope["state"]["transport"].abort()
        raise WebSocketDisconnect(1006) from None
