# SPDX-License-Identifier: GPL-3.0-or-later
"""A connection to an agent in an event loop: requests, then the agent's stream of events. One thread serves a thousand
connections."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Any, cast

import orjson
from httptools import HttpParserError, HttpResponseParser

from magnetar_control.agents import AgentClient
from magnetar_core.errors import MagnetarError
from magnetar_core.http.watch import HEARTBEATS, silent_agent_error

from .host_reports import HostRefused

#: Called with the name and the document of an event.
OnEvent = Callable[[str, dict[str, Any]], None]
#: Most bytes of one event, such as the list of a host's servers.
LARGEST = 64 << 20


class EventFrames:
    """An incremental parser of server-sent events (HTML standard)."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> list[tuple[str, dict[str, Any]]]:
        """Parse the next bytes of the stream, and return (name, JSON document) of each event that *piece* completes.
        Raises ``ValueError`` for malformed events."""
        if not self._rest and piece.find(b"\n\n") == len(piece) - 2:  # most heartbeats
            event = _parse_frame(piece[:-2])
            return [event] if event else []
        begin = max(0, len(self._rest) - 1)
        self._rest += piece
        events = []
        while (end := self._rest.find(b"\n\n", begin)) >= 0:
            if (event := _parse_frame(bytes(self._rest[:end]))) is not None:
                events.append(event)
            del self._rest[:end + 2]
            begin = 0
        if len(self._rest) > LARGEST:
            raise ValueError(f"an event has more than {LARGEST} bytes")
        return events


def _parse_frame(frame: bytes) -> tuple[str, dict[str, Any]] | None:
    event, data = "message", b""
    for line in frame.split(b"\n"):
        name, _colon, value = line.partition(b":")
        if name == b"event":
            event = value.strip().decode()
        elif name == b"data":
            data = data + value if data else value
    return (event, orjson.loads(data)) if data else None


class AgentConnection(asyncio.Protocol):
    """An asynchronous HTTP connection to the agent for which *client* is configured. *client* only builds the requests
    and the errors. Use the connection only in the thread of the event loop."""

    def __init__(self, client: AgentClient) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._parser = HttpResponseParser(self)
        self._content = bytearray()
        self._frames: EventFrames | None = None
        self._on_event: OnEvent = lambda _event, _document: None
        self._read_at = 0.0

    async def open(self, context: Callable[[], ssl.SSLContext]) -> None:
        """Connect to the agent. *context*: a function that returns the TLS context; it is not called for a Unix socket.
        Raises ``MagnetarError``."""
        address = self._client.address
        try:
            async with asyncio.timeout(self._client.connect_timeout):
                if address.scheme == "unix":
                    await self._loop.create_unix_connection(lambda: self, address.path)
                else:
                    await self._loop.create_connection(lambda: self, address.host, address.port, ssl=context(),
                                                       server_hostname=address.host)
        except TimeoutError:
            raise self._client.connection_error(TimeoutError("no connection in time"), connected=False) from None
        except OSError as error:
            raise self._client.connection_error(error, connected=False) from None

    async def fetch(self, target: str, patience: float) -> dict[str, Any]:
        """Send a GET request for *target* (path and query), and return the JSON object in the response. Raises
        ``MagnetarError``, also if no data arrives for *patience* seconds."""
        self._ask(self._client.request_text(target))
        try:
            async with asyncio.timeout(patience):
                await self._ended
        except OSError as error:  # TimeoutError is one
            raise self._client.connection_error(error, connected=True) from None
        status = self._parser.get_status_code()
        if status == 200:  # documents that orjson reads share their keys
            with contextlib.suppress(ValueError):
                if isinstance(document := orjson.loads(self._content), dict):
                    return document
        return self._client.answer_document(status, bytes(self._content))

    async def follow(self, target: str, interval: float, on_event: OnEvent) -> None:
        """Read the event stream at *target* (path and query), and call *on_event* with each event, until the agent ends
        the stream. *interval*: seconds between two heartbeats of the agent. Raises ``MagnetarError``, also when several
        heartbeats are missing."""
        self._frames, self._on_event = EventFrames(), on_event
        self._ask(self._client.request_text(target, "text/event-stream"))
        self._read_at, silence = self._loop.time(), HEARTBEATS * interval
        watchdog = self._loop.call_later(silence, self._check_silence, silence)
        self._watchdog = watchdog
        try:
            await self._ended
        except OSError as error:
            raise self._client.connection_error(error, connected=True) from None
        finally:
            self._watchdog.cancel()
        status = self._parser.get_status_code()
        if status != 200:
            self._client.answer_document(status, bytes(self._content))

    def close(self) -> None:
        """Close the connection; do nothing if it is closed already."""
        self._on_event = lambda _event, _document: None
        if self._transport is not None:
            self._transport.abort()

    def fail(self, error: Exception) -> None:
        """End the current request with *error*."""
        if not self._ended.done():
            self._ended.set_exception(error)
            self._ended.exception()  # nobody may wait for it any longer

    def pause(self) -> None:
        """Stop reading from the event stream until ``resume`` is called. Repeated calls have no effect."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Continue reading from the event stream after ``pause``."""
        self._read_at = self._loop.time()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _ask(self, request: bytes) -> None:
        self._parser, self._content = HttpResponseParser(self), bytearray()
        self._ended = self._loop.create_future()
        if self._transport is None or self._transport.is_closing():
            self.fail(ConnectionResetError("closed"))
        else:
            self._transport.write(request)

    def _check_silence(self, silence: float) -> None:
        remaining = self._read_at + silence - self._loop.time()
        if remaining > 0:
            self._watchdog = self._loop.call_later(remaining, self._check_silence, silence)
        else:
            self.fail(silent_agent_error(silence))

    # Called by the loop.
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._read_at = self._loop.time()
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            reason = error.__context__ or error
            self.fail(reason if isinstance(reason, (MagnetarError, HostRefused)) else MagnetarError(
                f"{self._client.endpoint} answered with something that is not Magnetar's ({reason}); check that the "
                "endpoint is a Magnetar agent, and a proxy in between."))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(exc if isinstance(exc, OSError) else ConnectionResetError("The agent closed the connection."))

    # Called by the parser.
    def on_body(self, body: bytes) -> None:
        if self._frames is None or self._parser.get_status_code() != 200:
            self._content += body
            return
        for event, document in self._frames.feed(body):
            self._on_event(event, document)

    def on_message_complete(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
