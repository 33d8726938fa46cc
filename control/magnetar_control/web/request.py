# SPDX-License-Identifier: GPL-3.0-or-later
"""One HTTP request. Its content is read completely before its handler begins, except for streams."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

import orjson

from magnetar_core.errors import InvalidRequest
from magnetar_core.nesting import check_nesting

from .answer import Fault
from .transfers import Pieces, Transfers

#: The variant digit of a uuid, by a random hexadecimal digit.
VARIANTS = {f"{digit:x}": "89ab"[digit & 3] for digit in range(16)}


class Request:
    """An HTTP request: method, path, headers (names in lower case), query string and body (``content``). ``path`` is
    the part of the URL's path after the application's prefix; ``base`` is the URL with this prefix, as the client uses
    it (``https://cloud:8774/v2.1``)."""

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
        #: The client's address, or the address of a proxy that is not trusted.
        self.address = ""
        #: The caller (``services.Context``); set by the application's authentication.
        self.context: Any = None
        #: The limits of transfers of content; ``None`` for a request that does not come over HTTP.
        self.transfers: Transfers | None = None
        #: The application's own data about the request.
        self.extra: dict[str, Any] = {}

    @property
    def query(self) -> list[tuple[str, str]]:
        """The parameters of the query string as (name, value), in order; a name may be repeated."""
        if self._query is None:
            self._query = parse_qsl(self.query_string, keep_blank_values=True) if self.query_string else []
        return self._query

    @property
    def length(self) -> int | None:
        """The number of bytes of the body (Content-Length); ``None`` if the client did not send this header."""
        length = self.headers.get("content-length", "")
        return int(length) if length.isdecimal() else None

    def service_arguments(self, *more: Any) -> tuple[Any, ...]:
        """Return the arguments for a function of ``services`` that handles this request: the caller's ``Context``, the
        values of the path's parameters in order, and *more*."""
        return self.context, *self.params.values(), *more

    def next_page(self, last: str) -> list[dict[str, str]]:
        """Return a list with one link, ``{"rel": "next", "href": URL}``, to the next page. *last*: the id of the last
        item on this page."""
        query = [(name, value) for name, value in self.query if name not in ("marker", "offset")]
        return [{"rel": "next", "href": f"{self.base}{self.path}?{urlencode([*query, ('marker', last)])}"}]

    def json(self) -> Any:
        """Return the body decoded from JSON. Raises ``Fault`` 400 if it is empty, 415 for another media type, and the
        errors of ``parse_json``."""
        kind = self.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if kind not in ("application/json", "") and not kind.endswith("+json"):
            raise Fault(415, f"Unsupported Content-Type {kind}; send application/json.")
        if not self.content.strip():
            raise Fault(400, "The request has no body; it needs a JSON object.")
        return parse_json(self.content)

    @contextlib.contextmanager
    def upload(self) -> Iterator[Iterator[bytes]]:
        """Return a context manager that yields an iterator over the chunks of the body, for routes that stream. The
        upload counts in the limit of uploads until the context ends. Raises ``TooManyRequests`` or ``Unavailable`` at
        the limit."""
        free = self.transfers.uploads.take(self.context) if self.transfers else None
        try:
            yield iter([self.content] if self.content else []) if self._chunks is None else self._chunks()
        finally:
            if free:
                free()

    def download(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Return an iterator over *pieces* for a streamed response. The download counts in the limit of downloads until
        the iterator is closed. Raises ``TooManyRequests`` or ``Unavailable`` at the limit."""
        return pieces if self.transfers is None else Pieces(pieces, self.transfers.downloads.take(self.context))


def parse_json(content: bytes) -> Any:
    """Return *content* decoded from JSON. Raises ``InvalidRequest`` for a syntax error, with its position, and for too
    deep nesting."""
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from None
    return check_nesting(document, content)


def _request_id(headers: Mapping[str, str]) -> str:
    """Return the request id: the value of the header X-OpenStack-Request-ID if it is valid, otherwise a new one,
    ``req-<uuid>``. Requests over HTTP always get a new id, because ``AsgiServer`` removes the header; only requests
    that do not come over HTTP (in tests) keep theirs."""
    request_id = headers.get("x-openstack-request-id", "")
    if request_id.startswith("req-") and len(request_id) == 40:
        try:
            return f"req-{uuid.UUID(request_id[4:])}"
        except ValueError:
            pass
    number = os.urandom(16).hex()  # of a random uuid: the class takes three times as long
    return f"req-{number[:8]}-{number[8:12]}-4{number[13:16]}-{VARIANTS[number[16]]}{number[17:20]}-{number[20:]}"
