# SPDX-License-Identifier: GPL-3.0-or-later
"""The result of a handler: an answer, or a fault that it raises."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from typing import Any

import orjson

from magnetar_core.errors import Failed, MagnetarError, NoSpace, NotSupported, Unavailable

#: Failures of the service whose messages are for users.
SHOWN_ERRORS = (Failed, NoSpace, NotSupported, Unavailable)
JSON = "application/json"


class LiveBody:
    """The body of an answer that is sent until the client disconnects or the server stops. It holds no thread."""

    def pieces(self) -> AsyncGenerator[bytes]:
        """Yield the chunks of the body as they come; an empty one at least every few seconds."""
        raise NotImplementedError

    def close(self) -> None:
        """Free what the body holds. Called once, at its end."""


class Answer:
    """An HTTP response. *content*: ``None`` (empty), bytes, a document to be sent as JSON, an iterable of bytes that is
    streamed, or a ``LiveBody``. Streamed JSON must be an iterator; any other object with the media type JSON is a
    document. A document may contain ``orjson.Fragment``, which is JSON text."""

    __slots__ = ("content", "headers", "media_type", "status")

    def __init__(self, content: Any = None, status: int = 200, headers: Mapping[str, str] | None = None,
                 media_type: str = JSON) -> None:
        self.content, self.status, self.media_type = content, status, media_type
        self.headers = dict(headers or {})

    def body(self) -> bytes | Iterable[bytes] | LiveBody:
        """Return the content as bytes: a document as JSON, a text as UTF-8, ``None`` as no bytes. Return streamed
        content (an iterable or a ``LiveBody``) unchanged."""
        if self.content is None:
            return b""
        if isinstance(self.content, bytes):
            return self.content
        if self.media_type == JSON:
            return self.content if isinstance(self.content, Iterator) else orjson.dumps(self.content)
        return self.content.encode() if isinstance(self.content, str) else self.content


class Fault(Exception):
    """The error for a request that is rejected or fails, with the HTTP *status* and a *message* for the client.
    *details*: further fields of the error response."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None, **details: Any) -> None:
        super().__init__(message)
        self.status, self.message, self.headers, self.details = status, message, dict(headers or {}), details


def fault_of(error: MagnetarError) -> Fault | None:
    """Return the HTTP fault for *error*; ``None`` for a server error whose message must not be shown to clients."""
    if error.status >= 500 and not isinstance(error, SHOWN_ERRORS):
        return None
    return Fault(error.status, error.message, **error.details)
