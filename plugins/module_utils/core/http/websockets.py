# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes that agents and the API make to uvicorn's protocol for WebSockets."""

from __future__ import annotations

from typing import Any, Type


class WebSocketProtocol:
    """A mixin for uvicorn's WebSocket protocol that corrects two of its methods. *invalid_state*: the exception that
    uvicorn's protocol raises when the connection is closing.
    """

    invalid_state: Type[Exception]
    handshake_complete: bool
    transport: Any

    async def send(self, message: Any) -> None:
        """Override uvicorn's ``send``: after an HTTP response that refuses the WebSocket, also mark the handshake as
        complete. Otherwise uvicorn would log a failure of the application.
        """
        await super().send(message)  # type: ignore[misc]
        self.handshake_complete |= message["type"] == "websocket.http.response.body"

    def shutdown(self) -> None:
        """Override uvicorn's ``shutdown``: close the connection without an exception, even while the client closes it.
        After an exception the server would not close its other connections.
        """
        try:
            super().shutdown()  # type: ignore[misc]
        except self.invalid_state:
            self.transport.close()
