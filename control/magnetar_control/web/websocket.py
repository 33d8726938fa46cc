# SPDX-License-Identifier: GPL-3.0-or-later
"""One WebSocket, from the view of the application that serves it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from magnetar_core.http.websockets import WebSocketProtocol

from .answer import Answer

#: Seconds after which a client that does not read is disconnected.
PATIENCE = 60.0


class ClientGone(Exception):
    """The error for a WebSocket whose client has closed the connection or was disconnected."""


class WebSocket:
    """A WebSocket connection. *path*: the part of the URL's path after the application's prefix. *root*: the URL of the
    server as the client uses it."""

    def __init__(self, scope: Mapping[str, Any], receive: Any, send: Any, headers: Mapping[str, str], path: str,
                 root: str, address: str) -> None:
        self.headers, self.path, self.root, self.address = headers, path, root, address
        self.query = scope["query_string"].decode("latin-1")
        self.subprotocols: list[str] = list(scope.get("subprotocols", ()))
        self._receive, self._send = receive, send

    async def accept(self, subprotocol: str | None = None) -> None:
        """Accept the connection."""
        await self._receive()  # the connect event
        await self._say({"type": "websocket.accept", "subprotocol": subprotocol, "headers": []})

    async def refuse(self, answer: Answer) -> None:
        """Reject the connection with an HTTP response instead of accepting it."""
        body = answer.body()
        headers = {"content-type": answer.media_type, **answer.headers}
        await self._say({"type": "websocket.http.response.start", "status": answer.status, "headers": [
            (name.lower().encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]})
        await self._say({"type": "websocket.http.response.body", "body": body if isinstance(body, bytes) else b""})

    async def receive(self) -> bytes | str:
        """Return the next message. Raises ``ClientGone``."""
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            raise ClientGone
        content: bytes | str = message["text"] if message.get("bytes") is None else message["bytes"]
        return content

    async def send(self, data: bytes) -> None:
        """Send a binary message; wait while the client's buffer is full. Raises ``ClientGone``."""
        await self._say({"type": "websocket.send", "bytes": data})

    async def close(self, code: int, reason: str) -> None:
        """Close the connection with a status code and a reason. Does nothing if the client has already disconnected."""
        with contextlib.suppress(ClientGone):
            await self._say({"type": "websocket.close", "code": code, "reason": reason[:120]})

    async def _say(self, message: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._send(message)
        except TimeoutError:
            await cut_connection(self._send)
            raise ClientGone from None
        except OSError:  # uvicorn's error for a closed connection
            raise ClientGone from None


async def cut_connection(send: Any) -> None:
    """Abort a connection whose client does not read. A normal close would wait until the client has read the pending
    data. ASGI has no message for this, so *send* must be uvicorn's."""
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()
        await asyncio.sleep(0)  # so that uvicorn notices


def uvicorn_websocket_protocol(**options: Any) -> Any:
    """Return an instance of uvicorn's protocol for WebSockets. Used as a factory, so that uvicorn's module, which takes
    some MiB of memory, is imported only for the first WebSocket."""
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
    from websockets.exceptions import InvalidState

    class Protocol(WebSocketProtocol, WebSocketsSansIOProtocol):
        invalid_state = InvalidState

    return Protocol(**options)


#: uvicorn's options for WebSockets: messages are small, and their content is random or already compressed.
OPTIONS = {"ws": uvicorn_websocket_protocol, "ws_max_size": 1 << 20, "ws_per_message_deflate": False}
