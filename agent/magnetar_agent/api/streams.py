# SPDX-License-Identifier: GPL-3.0-or-later
"""Streaming routes: image content in both directions, console logs out."""

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
from magnetar_agent.servers import server_folder
from magnetar_core.adoption import refused_for_adopted
from magnetar_core.errors import Forbidden, InvalidField, InvalidRequest, NotFound, TimedOut, TooLarge
from magnetar_core.kinds import Image, Server
from magnetar_core.query import read_number, read_seconds

from . import audit
from .access import OPERATE
from .routes import Json, ensure_answer, operation_response, path_key, read_query, wait_for_operation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from magnetar_agent.agent import ManagedHost
    from magnetar_agent.host.host import LocalHost
    from magnetar_core.operations import Operation

#: The approximate size of the pieces of a body that are passed to the thread that stores it.
PIECE = 2**20
#: Seconds of silence after which a client counts as disconnected.
SILENCE = 120.0
CONSOLE_BYTES = 2**16


class Upload:
    """The body of an upload request, which a worker thread reads in chunks. At most one unread chunk is in memory.
    *most_bytes*: the most bytes that the body may have."""

    def __init__(self, request: Request, most_bytes: int) -> None:
        self._body = request.stream()
        self._loop = asyncio.get_running_loop()
        self._limit = most_bytes
        self.received = 0
        #: Set when the last byte has arrived, or the reader has stopped.
        self.read = asyncio.Event()

    def pieces(self, operation: Operation) -> Iterator[bytes]:
        """Yield the body in chunks. Raises ``InvalidRequest`` when the connection is lost, ``TimedOut`` when the client
        stops sending, ``TooLarge`` above the size limit, or ``Cancelled``."""
        while piece := self._wait(asyncio.run_coroutine_threadsafe(self._piece(), self._loop), operation):
            self.received += len(piece)
            if self.received > self._limit:
                raise TooLarge(f"The content has more than the {self._limit} bytes that the agent's setting "
                               "image_max_bytes allows.")
            yield piece
        self.finish()

    def finish(self) -> None:
        """Record that the body is not read any further, because it is complete, or the operation has ended. Callable
        from any thread."""
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
    """The HTTP handlers for image content and console logs."""

    def __init__(self, agent: ManagedHost) -> None:
        self.agent = agent

    async def upload(self, request: Request) -> Json:
        """Store the body of the request as the content of an image that was created with source {upload: true}."""
        wait = read_query(request, wait=read_seconds).get("wait", self.agent.host.settings.wait)
        limit = self.agent.host.settings.image_max_bytes
        announced = request.headers.get("content-length", "")
        length = int(announced) if announced.isdigit() else None
        if length is not None and length > limit:
            raise TooLarge(f"The content has {length} bytes, and the agent's setting image_max_bytes allows {limit}.")
        name, upload = path_key(request), Upload(request, limit)

        def receive(operation: Operation) -> Any:
            return self.agent.images.receive(self.agent.host, name, upload.pieces(operation), length, operation)

        operation = self.agent.host.operations.start(
            "upload", audit.bind_request_id(request.state.request_id, receive), stream=True, kind=Image.noun, key=name,
            request_id=request.state.request_id, caller=request.state.caller)
        audit.audit_operation(operation)
        operation.then(lambda _: upload.finish())
        await upload.read.wait()
        return operation_response(operation, await wait_for_operation(operation, wait), ensure_answer)

    async def download(self, request: Request) -> Response:
        """Return the content of an image. Needs the scope ``operate``, because the content may be a copy of a server's
        disk."""
        read_query(request)
        if request.state.scope != OPERATE:
            raise Forbidden(f"{request.state.caller} has the scope read, and the content of images may be that of a "
                            "server's disk. Use a token or a certificate with the scope operate.", scope="read")

        def opened() -> BinaryIO:
            shown = reconcile.show_resource(self.agent.drivers, Image, path_key(request))
            path, _format = importing.content_by_id(self.agent.host, str(shown["id"]))
            content: BinaryIO = path.open("rb", buffering=0)  # stays readable when the image is removed
            return content

        file = await run_in_threadpool(opened)
        headers = {"content-length": str(os.fstat(file.fileno()).st_size), "x-content-type-options": "nosniff"}
        return StreamingResponse(_pieces(file), media_type="application/octet-stream", headers=headers)

    async def console(self, request: Request) -> Response:
        """Return the end of a server's console log as text: its last `bytes` (by default 65536), or its last `lines`.

        With `format=json` the response is `{"output": text}`, as Nova's os-getConsoleOutput.
        """
        query_parameters = read_query(request, bytes=read_number, lines=read_number, format=_format)
        most = self.agent.host.settings.console_log_bytes
        shown = await run_in_threadpool(reconcile.show_resource, self.agent.drivers, Server, path_key(request))
        if shown["adopted"] is not None:
            raise refused_for_adopted(shown["name"], "console_log")
        path = console_path(self.agent.host, str(shown["id"]))
        lines = query_parameters.get("lines")
        size = min(most, query_parameters.get("bytes", CONSOLE_BYTES if lines is None else most))
        text = await run_in_threadpool(tail_console_log, path, size, lines)
        if query_parameters.get("format") == "json":
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


def console_path(host: LocalHost, id: str) -> Path:
    """Return the path of the console log of the server with the uuid *id*. The path contains no other data from the
    request, so it cannot point to other files."""
    return server_folder(host, id) / "console.log"


def tail_console_log(path: Path, size: int, lines: int | None) -> bytes:
    """Return the last *size* bytes of the console log at *path*, but at most its last *lines* lines (``None``: no
    limit). If the log has fewer bytes, the missing bytes come from the previous, rotated log, ``<path>.0``. Only a line
    feed ends a line, not the carriage return of a progress bar.

    Only regular files are read, and symbolic links are not followed, so only virtlogd's files are returned.
    """
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
        file_status = os.fstat(descriptor)
        if not stat.S_ISREG(file_status.st_mode):
            raise NotFound(f"{path.name} is not a plain file; the agent does not read it.")
        file.seek(max(0, file_status.st_size - size))
        return file.read(size)
