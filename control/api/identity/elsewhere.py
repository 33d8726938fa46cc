# SPDX-License-Identifier: GPL-3.0-or-later
"""What is mounted at ``/identity`` where a Keystone is used."""

from __future__ import annotations

from magnetar_control.web import Answer, Request


class Elsewhere:
    """The application in place of the embedded identity service: whoever asks it is told where Keystone is."""

    def __init__(self, url: str) -> None:
        self.url = url

    def streams(self, method: str, path: str) -> bool:
        """Nothing has a stream."""
        return False

    def handle(self, request: Request) -> Answer:
        """404, in Keystone's form."""
        return Answer({"error": {"code": 404, "title": "Not Found", "message":
                                 f"This cloud has no identity service of its own; ask Keystone at {self.url}."}}, 404)
