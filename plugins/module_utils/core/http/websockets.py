# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes that agents and the API make to uvicorn's protocol for WebSockets."""

from __future__ import annotations

from typing import Any, Type


class WebSocketProtocol:
    """A mixin in front of uvicorn's WebSocket protocol. *invalid_state*: the exception that this protocol raises when
    its connection is closing.
    """

    invalid_state: Type[Exception]
    handshake_complete: bool
    transport: Any

    async def send(self, message: Any) -> None:
        """Override uvicorn's ``send``: also mark the handshake as complete after a refusal (an HTTP response). Without
        the mark uvicorn would log that the application failed.
        """
        await super().send(message)  # type: ignore[misc]
        self.handshake_complete |= message["type"] == "websocket.http.response.body"

    def shutdown(self) -> None:
        """Override uvicorn's ``shutdown``: close the connection without an exception even while the client closes it.
        An exception here would make the server leave its other connections open.
        """
        try:
            super().shutdown()  # type: ignore[misc]
        except self.invalid_state:
            self.transport.close()
