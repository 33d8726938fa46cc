# SPDX-License-Identifier: GPL-3.0-or-later
"""What agents and the API change of uvicorn's protocol for WebSockets."""

from __future__ import annotations

from typing import Any, Type


class WebSocketProtocol:
    """Stands before uvicorn's. *invalid_state*: what uvicorn's raises when its connection is being closed."""

    invalid_state: Type[Exception]
    handshake_complete: bool
    transport: Any

    async def send(self, message: Any) -> None:
        """A refusal ends the handshake, too: uvicorn would say in its log that the application failed."""
        await super().send(message)  # type: ignore[misc]
        self.handshake_complete |= message["type"] == "websocket.http.response.body"

    def shutdown(self) -> None:
        """End it, also while its client does: the server would leave its other connections."""
        try:
            super().shutdown()  # type: ignore[misc]
        except self.invalid_state:
            self.transport.close()
