# SPDX-License-Identifier: GPL-3.0-or-later
"""uvicorn's protocol for WebSockets, as agents and the API have it."""

from __future__ import annotations

from typing import Any


def protocol(**given: Any) -> Any:
    """It for one connection; imported with the first one, as it takes some MiB."""
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
    from websockets.exceptions import InvalidState

    class Protocol(WebSocketsSansIOProtocol):
        async def send(self, message: Any) -> None:
            """A refusal ends the handshake, too: uvicorn would say in its log that the application failed."""
            await super().send(message)
            self.handshake_complete |= message["type"] == "websocket.http.response.body"

        def shutdown(self) -> None:
            """End it, also while its client does: uvicorn's raises then, and the server would leave the others."""
            try:
                super().shutdown()
            except InvalidState:
                self.transport.close()

    return Protocol(**given)
