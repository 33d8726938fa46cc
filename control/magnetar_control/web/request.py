# SPDX-License-Identifier: GPL-3.0-or-later
"""One HTTP request, read to its end (but for streams) before its handler begins."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

import orjson

from magnetar_core.errors import InvalidRequest
from magnetar_core.nesting import check_nesting

from .answer import Fault
from .transfers import Pieces, Transfers


class Request:
    """Method, path, headers (lower case), query and content. ``path`` is below the mount, ``base`` is what the client
    put before it (``https://cloud:8774/v2.1``)."""

    __slots__ = ("_chunks", "_query", "address", "base", "content", "context", "extra", "headers", "id", "method",
                 "params", "path", "query_string", "root", "transfers")

    def __init__(self, method: str, path: str, query_string: str, headers: Mapping[str, str], content: bytes = b"",
                 root: str = "", chunks: Callable[[], Iterator[bytes]] | None = None) -> None:
        self.method, self.path, self.query_string, self.headers = method, path, query_string, headers
        self.content, self.root, self.base = content, root, root
        self._chunks = chunks
        self._query: list[tuple[str, str]] | None = None
        self.params: dict[str, str] = {}
        self.id = _request_id(headers)
        #: The client's, or that of a proxy which is not trusted.
        self.address = ""
        #: Who asks (``services.Context``); set by the application's authentication.
        self.context: Any = None
        #: The limits of transfers of content; ``None`` where it does not come over HTTP.
        self.transfers: Transfers | None = None
        #: What the application notes about the request.
        self.extra: dict[str, Any] = {}

    @property
    def query(self) -> list[tuple[str, str]]:
        """The parameters in order, repeated ones too."""
        if self._query is None:
            self._query = parse_qsl(self.query_string, keep_blank_values=True) if self.query_string else []
        return self._query

    @property
    def length(self) -> int | None:
        """Bytes of the content, where the client says how many."""
        length = self.headers.get("content-length", "")
        return int(length) if length.isdecimal() else None

    def named(self, *more: Any) -> tuple[Any, ...]:
        """Who asks, what the path names, and *more*: what most functions of services take."""
        return self.context, *self.params.values(), *more

    def next_page(self, last: str) -> list[dict[str, str]]:
        """The link to the page after the one that ends with the id *last*."""
        query = [(name, value) for name, value in self.query if name not in ("marker", "offset")]
        return [{"rel": "next", "href": f"{self.base}{self.path}?{urlencode([*query, ('marker', last)])}"}]

    def json(self) -> Any:
        """The content as JSON. Raises ``Fault`` 400 where there is none, 415 for another media type, and as
        ``parsed``."""
        kind = self.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if kind not in ("application/json", "") and not kind.endswith("+json"):
            raise Fault(415, f"Unsupported Content-Type {kind}; send application/json.")
        if not self.content.strip():
            raise Fault(400, "The request has no body; it needs a JSON object.")
        return parsed(self.content)

    @contextlib.contextmanager
    def upload(self) -> Iterator[Iterator[bytes]]:
        """Within, the content of a stream route comes, piece by piece, in one of the places for it. Raises
        ``TooManyRequests``, ``Unavailable``."""
        free = self.transfers.uploads.take(self.context) if self.transfers else None
        try:
            yield iter([self.content] if self.content else []) if self._chunks is None else self._chunks()
        finally:
            if free:
                free()

    def download(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Content for the answer, which has one of the places for it until it is closed. Raises as ``upload``."""
        return pieces if self.transfers is None else Pieces(pieces, self.transfers.downloads.take(self.context))


def parsed(content: bytes) -> Any:
    """*content* as JSON. Raises ``InvalidRequest`` that says where it is wrong."""
    try:
        found = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from None
    return check_nesting(found, content)


def _request_id(headers: Mapping[str, str]) -> str:
    """``req-<uuid>``. The one that is given is kept; over HTTP there is none, see ``asgi``."""
    given = headers.get("x-openstack-request-id", "")
    if given.startswith("req-") and len(given) == 40:
        try:
            return f"req-{uuid.UUID(given[4:])}"
        except ValueError:
            pass
    return f"req-{uuid.uuid4()}"
