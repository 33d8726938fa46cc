# SPDX-License-Identifier: GPL-3.0-or-later
"""HTTP/1.1 for guests, which may be hostile: a small server for GET, HEAD and one POST, with limits for everything.

The address that a connection came to identifies the guest (``steering``). The server reads no headers except
Content-Length, Connection, Transfer-Encoding (refused) and Expect: X-Forwarded-For, X-Instance-ID and the like are
ignored.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import unquote

from .paths import GuestPaths, PathContent, is_password

#: Bytes of a request's head, and of a password (Nova's MAX_SIZE: four columns of 255).
HEAD, MOST_PASSWORD = 8192, 1020
#: Most connections of one guest, and of all.
OF_GUEST, OF_ALL = 16, 1000
#: Seconds that a request may take to arrive, that an idle connection stays, and that an answer may take to be read.
ARRIVE, IDLE, READ = 5.0, 15.0, 30.0

#: Called with the address that a connection came to; returns the paths of that guest; ``None``: no such guest.
Find = Callable[[str], Awaitable[GuestPaths | None]]
#: Called with the address and a password; returns status and text of the answer.
SendPassword = Callable[[str, str], Awaitable[tuple[int, str]]]


class BadHead(Exception):
    """The error for a malformed HTTP request. The response has the code *status*, and the connection is closed."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


@dataclass(frozen=True)
class GuestRequest:
    """The parsed head of an HTTP request. *length*: of the body, ``None`` without Content-Length. *keep*: whether the
    connection stays open afterwards. *expects*: whether the client waits for ``100 Continue``."""

    method: str
    path: str
    length: int | None
    keep: bool
    expects: bool = False


def parse_request_head(head: bytes) -> GuestRequest:
    """Return the parsed *head* of an HTTP request: request line and headers, without the empty line at the end. Raises
    ``BadHead`` if it is malformed."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.0", "HTTP/1.1") or not (
            words[0].isascii() and words[0].isalpha()):
        raise BadHead(400, "This is no HTTP/1.1 request.")
    fields: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or not name or name != name.strip() or (name == "content-length" and name in fields):
            raise BadHead(400, "A header of the request is malformed.")
        fields[name] = value.strip()
    if "transfer-encoding" in fields:
        raise BadHead(411, "Send a Content-Length.")
    size = fields.get("content-length")
    if size is not None and not (size.isascii() and size.isdigit() and len(size) < 12):
        raise BadHead(400, "Content-Length must be a number.")
    connection = fields.get("connection", "").lower()
    keep = connection != "close" and (words[2] == "HTTP/1.1" or connection == "keep-alive")
    return GuestRequest(words[0], _path(words[1]), None if size is None else int(size), keep,
                        fields.get("expect", "").lower() == "100-continue")


def _path(target: str) -> str:
    if target.lower().startswith("http://"):
        target = "/" + target[len("http://"):].partition("/")[2]
    if not target.startswith("/"):
        raise BadHead(400, "The path must begin with a slash.")
    return unquote(target.partition("?")[0].partition("#")[0])


class GuestHttp:
    """The HTTP server of the metadata service, for connections of guests. *find*: returns the data for a guest.
    *send_password*: stores the password that a guest posts."""

    def __init__(self, find: Find, send_password: SendPassword) -> None:
        self._find, self._send_password = find, send_password
        self._open: Counter[str] = Counter()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle a new connection of a guest: answer the requests from *reader* on *writer* until the connection ends.
        Close the connection immediately if there are too many connections."""
        guest = str(writer.get_extra_info("sockname")[0])
        if self._open[guest] >= OF_GUEST or self._open.total() >= OF_ALL:
            writer.transport.abort()
            return
        self._open[guest] += 1
        try:
            writer.transport.set_write_buffer_limits(0)  # drain waits until the kernel has all
            while await self._answered(guest, reader, writer):
                pass
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open[guest] -= 1
            if not self._open[guest]:
                del self._open[guest]
            if writer.transport.get_write_buffer_size():  # a guest that does not read
                writer.transport.abort()
            writer.close()

    async def _answered(self, guest: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Read the next request from *reader* and write its response to *writer*. *guest*: the address of the guest's
        tap (``tap_addresses``). Return whether the connection stays open for another request."""
        try:
            request = await self._request(reader)
            if request is None:
                return False
            status, content = await self._act(guest, request, reader, writer)
            keep = request.keep and status < 400
        except BadHead as error:
            request, keep = None, False
            status, content = error.status, PathContent(error.why.encode())
        writer.write(_answer(status, content, keep, bodyless=request is not None and request.method == "HEAD"))
        async with asyncio.timeout(READ):
            await writer.drain()
        return keep

    async def _request(self, reader: asyncio.StreamReader) -> GuestRequest | None:
        async with asyncio.timeout(IDLE):
            first = await reader.read(1)
        if not first:
            return None
        try:
            async with asyncio.timeout(ARRIVE):
                head = first + await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise BadHead(431, f"The head of a request has {HEAD} bytes at most.") from None
        return parse_request_head(head[:-4])

    async def _act(self, guest: str, request: GuestRequest, reader: asyncio.StreamReader,
                   writer: asyncio.StreamWriter) -> tuple[int, PathContent]:
        guest_paths = await self._find(guest)
        if guest_paths is None:
            return 404, _text_answer(404, "Nobody is known at the place that this came from.")
        if is_password(request.path) and request.method not in ("GET", "HEAD"):
            if request.method != "POST":
                return 400, _text_answer(400, "GET and POST only are supported.")
            return await self._password(guest, guest_paths, request, reader, writer)
        content = guest_paths.find(request.path)
        if content is None:
            return 404, _text_answer(404, "There is nothing at this path.")
        if request.method not in ("GET", "HEAD"):
            return 405, _text_answer(405, "This can only be read.")
        if request.length:
            raise BadHead(400, "A request that reads has no body.")
        return 200, content

    async def _password(self, guest: str, guest_paths: GuestPaths, request: GuestRequest, reader: asyncio.StreamReader,
                        writer: asyncio.StreamWriter) -> tuple[int, PathContent]:
        if request.length is None:
            raise BadHead(411, "Send a Content-Length.")
        if guest_paths.password:
            return 409, _text_answer(409, "There is a password already.")
        if request.length > MOST_PASSWORD:
            return 400, _text_answer(400, f"Request is too large: a password has {MOST_PASSWORD} bytes at most.")
        if request.expects:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        async with asyncio.timeout(ARRIVE):
            body = await reader.readexactly(request.length)
        try:
            password = body.decode()
        except UnicodeDecodeError:
            return 400, _text_answer(400, "A password is text: encode what was encrypted in base64.")
        if "\0" in password:
            return 400, _text_answer(400, "A password is text: encode what was encrypted in base64.")
        status, why = await self._send_password(guest, password)
        return status, _text_answer(status, why) if why else PathContent(b"")


def _text_answer(status: int, why: str) -> PathContent:
    return PathContent(f"{status} {HTTPStatus(status).phrase}\n\n{why}\n".encode())


def _answer(status: int, content: PathContent, keep: bool, bodyless: bool) -> bytes:
    head = (f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {content.type}\r\n"
            f"Content-Length: {len(content.body)}\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
            f"Connection: {'keep-alive' if keep else 'close'}\r\n\r\n").encode()
    return head if bodyless else head + content.body
