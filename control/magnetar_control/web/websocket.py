# SPDX-License-Identifier: GPL-3.0-or-later
"""One WebSocket, as the application that serves it sees it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from magnetar_core.http.websockets import WebSocketProtocol

from .answer import Answer

#: Seconds after which a client that does not read is cut off.
PATIENCE = 60.0


class ClientGone(Exception):
    """The client has closed the connection, or was cut off."""


class WebSocket:
    """*path* below the mount, *root*: the URL of the server as the client knows it."""

    def __init__(self, scope: Mapping[str, Any], receive: Any, send: Any, headers: Mapping[str, str], path: str,
                 root: str, address: str) -> None:
        self.headers, self.path, self.root, self.address = headers, path, root, address
        self.query = scope["query_string"].decode("latin-1")
        self.subprotocols: list[str] = list(scope.get("subprotocols", ()))
        self._receive, self._send = receive, send

    async def accept(self, subprotocol: str | None = None) -> None:
        """Take the connection."""
        await self._receive()  # that it is there
        await self._say({"type": "websocket.accept", "subprotocol": subprotocol, "headers": []})

    async def refuse(self, answer: Answer) -> None:
        """Answer over HTTP in place of taking it."""
        body = answer.body()
        headers = {"content-type": answer.media_type, **answer.headers}
        await self._say({"type": "websocket.http.response.start", "status": answer.status, "headers": [
            (name.lower().encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]})
        await self._say({"type": "websocket.http.response.body", "body": body if isinstance(body, bytes) else b""})

    async def receive(self) -> bytes | str:
        """The next message. Raises ``ClientGone``."""
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            raise ClientGone
        found: bytes | str = message["text"] if message.get("bytes") is None else message["bytes"]
        return found

    async def send(self, data: bytes) -> None:
        """Send, and wait while the client is behind. Raises ``ClientGone``."""
        await self._say({"type": "websocket.send", "bytes": data})

    async def close(self, code: int, reason: str) -> None:
        """Say why, and end it; fine when the client has gone."""
        with contextlib.suppress(ClientGone):
            await self._say({"type": "websocket.close", "code": code, "reason": reason[:120]})

    async def _say(self, message: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._send(message)
        except TimeoutError:
            await cut(self._send)
            raise ClientGone from None
        except OSError:  # uvicorn says so
            raise ClientGone from None


async def cut(send: Any) -> None:
    """End a connection whose client does not read: what waits to be sent would keep it open. ASGI has no word for it;
    *send* is uvicorn's."""
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()
        await asyncio.sleep(0)  # so that uvicorn knows


def protocol(**given: Any) -> Any:
    """uvicorn's protocol for WebSockets; imported with the first one, as it takes some MiB."""
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
    from websockets.exceptions import InvalidState

    class Protocol(WebSocketProtocol, WebSocketsSansIOProtocol):
        invalid_state = InvalidState

    return Protocol(**given)


#: How uvicorn is to serve them: messages are small, and what is in them is random or compressed already.
OPTIONS = {"ws": protocol, "ws_max_size": 1 << 20, "ws_per_message_deflate": False}
