# SPDX-License-Identifier: GPL-3.0-or-later
"""Routes that stream: image content in and out, console logs out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from typing import TYPE_CHECKING, Any, BinaryIO

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from magnetar_agent.images import importing
from magnetar_agent.reconcile import reconcile
from magnetar_core.errors import Forbidden, InvalidField, InvalidRequest, NotFound, TimedOut, TooLarge
from magnetar_core.kinds import Image, Server
from magnetar_core.query import number, seconds

from . import audit
from .access import OPERATE
from .routes import Json, key, outcome, query, result, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from magnetar_agent.agent import Agent
    from magnetar_core.operations import Operation

#: The body is handed to the thread that stores it in pieces of about this size.
PIECE = 2**20
#: A client that sends nothing for so long has gone.
SILENCE = 120.0
CONSOLE_BYTES = 2**16


class Upload:
    """The body of a request as an iterator for a thread, which fetches it piece by piece, so nothing piles up."""

    def __init__(self, request: Request, operation_limit: int) -> None:
        self._body = request.stream()
        self._loop = asyncio.get_running_loop()
        self._limit = operation_limit
        self.received = 0
        #: Set when the last byte has come, or the reader has stopped.
        self.read = asyncio.Event()

    def pieces(self, operation: Operation) -> Iterator[bytes]:
        """Yield the body. Raises ``InvalidRequest`` when it breaks off, ``TimedOut`` when the client falls silent,
        ``TooLarge``, or ``Cancelled``."""
        while piece := self._wait(asyncio.run_coroutine_threadsafe(self._piece(), self._loop), operation):
            self.received += len(piece)
            if self.received > self._limit:
                raise TooLarge(f"The content has more than the {self._limit} bytes that the agent's setting "
                               "image_max_bytes allows.")
            yield piece
        self.finish()

    def finish(self) -> None:
        """Say that nothing more is read."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.read.set)

    async def _piece(self) -> bytes:
        piece = bytearray()
        async for chunk in self._body:
            piece += chunk
            if len(piece) >= PIECE:
                break
        return bytes(piece)

    def _wait(self, future: Future[bytes], operation: Operation) -> bytes:
        waited = 0.0
        try:
            while True:
                operation.raise_if_cancelled()
                try:
                    return future.result(0.5)
                except TimeoutError:
                    waited += 0.5
                    if waited >= SILENCE:
                        raise TimedOut(f"Nothing came for {SILENCE:.0f} s after {self.received} bytes; nothing is "
                                       "kept. Send the content again.") from None
        except ClientDisconnect:
            raise InvalidRequest(f"The upload broke off after {self.received} bytes; nothing is kept. "
                                 "Send it again.") from None
        finally:
            future.cancel()


class Streams:
    """Routes of image content and console logs."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    async def upload(self, request: Request) -> Json:
        """Take the content of an image that was ensured with source {upload: true}."""
        wait = query(request, wait=seconds).get("wait", self.agent.host.settings.wait)
        limit = self.agent.host.settings.image_max_bytes
        told = request.headers.get("content-length", "")
        length = int(told) if told.isdigit() else None
        if length is not None and length > limit:
            raise TooLarge(f"The content has {length} bytes, and the agent's setting image_max_bytes allows {limit}.")
        name, upload = key(request), Upload(request, limit)

        def receive(operation: Operation) -> Any:
            return self.agent.images.receive(self.agent.host, name, upload.pieces(operation), length, operation)

        operation = self.agent.host.operations.start(
            "upload", audit.within(request.state.request_id, receive), stream=True, kind=Image.noun, key=name,
            request_id=request.state.request_id, caller=request.state.caller)
        audit.follow(operation)
        operation.then(lambda _: upload.finish())
        await upload.read.wait()
        return outcome(operation, await until(operation, wait), result)

    async def download(self, request: Request) -> Response:
        """The content of an image. It may be a copy of a server's disk, so the scope read is not enough."""
        query(request)
        if request.state.scope != OPERATE:
            raise Forbidden(f"{request.state.caller} has the scope read, and the content of images may be that of a "
                            "server's disk. Use a token or a certificate with the scope operate.", scope="read")

        def opened() -> BinaryIO:
            shown = reconcile.show(self.agent.drivers, Image, key(request))
            path, _format = importing.content_by_id(self.agent.host, str(shown["id"]))
            found: BinaryIO = path.open("rb", buffering=0)  # it is read to its end even if the image goes meanwhile
            return found

        file = await run_in_threadpool(opened)
        headers = {"content-length": str(os.fstat(file.fileno()).st_size), "x-content-type-options": "nosniff"}
        return StreamingResponse(_pieces(file), media_type="application/octet-stream", headers=headers)

    async def console(self, request: Request) -> Response:
        """The end of a server's console log as text: the last `bytes` (65536) or the last `lines` of it.

        With `format=json` it is `{"output": text}`, as Nova's os-getConsoleOutput answers."""
        given = query(request, bytes=number, lines=number, format=_format)
        most = self.agent.host.settings.console_log_bytes
        shown = await run_in_threadpool(reconcile.show, self.agent.drivers, Server, key(request))
        path = console_path(self.agent.host.settings.state_dir, str(shown["id"]))
        lines = given.get("lines")
        size = min(most, given.get("bytes", CONSOLE_BYTES if lines is None else most))
        text = await run_in_threadpool(tail, path, size, lines)
        if given.get("format") == "json":
            return Json({"output": text.decode()})
        return Response(text, media_type="text/plain; charset=utf-8", headers={"x-content-type-options": "nosniff"})


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while piece := file.read(PIECE):
            yield piece


def _format(name: str, text: str) -> str:
    if text not in ("text", "json"):
        raise InvalidField(name, "must be text or json", text)
    return text


def console_path(state_dir: Path, id: str) -> Path:
    """Where the console log of server *id* is; made from its uuid alone, never from what a caller sends."""
    return state_dir / "servers" / id / "console.log"


def tail(path: Path, size: int, lines: int | None) -> bytes:
    """The last *size* bytes of a log and of its predecessor ``.0``, and of these the last *lines* lines, which end with
    a line feed: a carriage return alone, as of a progress bar, ends none.

    Symbolic links and anything but plain files are not followed: only virtlogd's own files are shown."""
    content = b""
    for part in (path, path.with_name(path.name + ".0")):
        if len(content) < size:
            content = _end(part, size - len(content)) + content
    if lines is not None:
        broken = content.endswith(b"\n")
        content = b"\n".join(content.split(b"\n")[-lines - broken:]) if lines else b""
    return content.decode("utf-8", "replace").encode()


def _end(path: Path, size: int) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""  # not started yet, or no earlier part: an empty log
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise NotFound(f"{path.name} is not a plain file; the agent does not read it.")
        file.seek(max(0, found.st_size - size))
        return file.read(size)
