# SPDX-License-Identifier: GPL-3.0-or-later
"""``GET /v1/events``: what happens to the cloud's resources, as a page of JSON or as server-sent events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import orjson

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.events import events
from magnetar_control.compute.events.event_cursor import NOW, OLDEST, format_cursor
from magnetar_control.compute.events.event_feed import EventFeed
from magnetar_control.compute.events.events import EventFilter, EventStream
from magnetar_control.notifications.stream_events import KINDS
from magnetar_control.web import Answer, Request
from magnetar_control.web.answer import LiveBody
from magnetar_control.web.transfers import TransferLimit
from magnetar_core import query
from magnetar_core.document import Document
from magnetar_core.errors import CursorExpired, InvalidField, MethodNotAllowed
from magnetar_core.version import API, installed_version

from .driver import ALL_PROJECTS

#: The media type of server-sent events (HTML standard).
EVENT_STREAM = "text/event-stream"
#: Bounds of the seconds between two heartbeats, and the default.
INTERVAL, USUAL = (0.5, 60.0), 5.0
#: Most events in an answer; how many by default.
MOST, LIMIT = 1000, 100
#: Seconds after which the token and the roles of a client are checked again.
CHECKED = 30.0


def _interval(name: str, text: str) -> float:
    seconds = query.read_seconds(name, text)
    if not INTERVAL[0] <= seconds <= INTERVAL[1]:
        raise InvalidField(name, f"must be a number of seconds from {INTERVAL[0]:g} to {INTERVAL[1]:g}", text)
    return seconds


def _kinds(name: str, text: str) -> list[str]:
    kinds = query.read_words(name, text)
    if not kinds or not set(kinds) <= set(KINDS.values()):
        raise InvalidField(name, f"must be some of {', '.join(KINDS.values())}, separated by commas", text)
    return kinds


def _limit(name: str, text: str) -> int:
    limit = query.read_number(name, text)
    if not 1 <= limit <= MOST:
        raise InvalidField(name, f"must be a number from 1 to {MOST}", text)
    return limit


#: The parameters, with the function that parses each.
PARAMETERS: dict[str, Callable[[str, str], Any]] = {
    "cursor": query.read_text, "kind": _kinds, "server": query.read_words, "limit": _limit, "interval": _interval,
    ALL_PROJECTS: query.read_boolean}


class CloudEvents:
    """The route ``/v1/events``. *identify*: returns the caller of a request, or raises an error if its token is not
    valid."""

    def __init__(self, feed: EventFeed, streams: TransferLimit, identify: Callable[[Request], Caller]) -> None:
        self.feed, self.streams, self.identify = feed, streams, identify

    def answer(self, request: Request, caller: Caller) -> Answer:
        """Return the events after the request's cursor: a stream if the client accepts one, otherwise a page. Raises
        ``MagnetarError``."""
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowed("Events are read (GET).", allow="GET")
        parameters = query.read_parameters(request.query, PARAMETERS, shown=80)
        streams = EVENT_STREAM in request.headers.get("accept", "")
        make_filter = partial(
            events.make_filter, all_projects=parameters.get(ALL_PROJECTS, False), kinds=parameters.get("kind", ()),
            servers=parameters.get("server", ()))
        event_filter = make_filter(caller)
        # Browsers and other clients of the standard name the last event in a header.
        cursor = parameters.get("cursor") or request.headers.get("last-event-id") or (NOW if streams else OLDEST)
        if streams:
            is_valid = partial(self._is_still_valid, request, caller.project, make_filter, event_filter)
            return self._stream(request, event_filter, cursor, parameters.get("interval", USUAL), is_valid)
        page = events.list_events(self.feed, event_filter, cursor, parameters.get("limit", LIMIT))
        return Answer({"events": page.events, "cursor": format_cursor(page.position)})

    def _is_still_valid(self, request: Request, project: str, make_filter: Callable[[Caller], EventFilter],
                        event_filter: EventFilter) -> bool:
        """Return whether the client of a stream may still see the same events: its token is good for *project*, and its
        roles and the policy give the same filter."""
        try:
            caller = self.identify(request)
            return caller.project == project and make_filter(caller) == event_filter
        except Exception:  # noqa: BLE001 - the client connects again, and is told
            return False

    def _stream(self, request: Request, event_filter: EventFilter, cursor: str, interval: float,
                is_valid: Callable[[], bool]) -> Answer:
        """Return the answer that sends events until the client disconnects, or *is_valid* returns false."""
        sources = self.feed.look()
        position = events.start_position(sources, cursor)
        for name, source in sources.items():
            source.page(position[name])  # refuses an expired cursor with a status
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        if request.method == "HEAD":
            return Answer(None, 200, headers, EVENT_STREAM)
        free = self.streams.take(request.context)
        stream = EventStream(self.feed, event_filter, position)
        return Answer(SentEvents(stream, interval, is_valid, free), 200, headers, EVENT_STREAM)


class SentEvents(LiveBody):
    """The body of a stream: server-sent events, with a heartbeat every *interval* seconds. *is_valid*: returns whether
    the client may still see these events. *free*: called once at the end, so that the stream does not count any more
    for the limit of concurrent streams."""

    def __init__(self, stream: EventStream, interval: float, is_valid: Callable[[], bool],
                 free: Callable[[], None]) -> None:
        self._stream, self._interval, self._is_valid, self._free = stream, interval, is_valid, free

    def close(self) -> None:
        """Remove this stream from the count of concurrent streams. The server calls this method once, when the stream
        ends."""
        self._free()

    # pylint: disable-next=invalid-overridden-method  # a call of either returns an asynchronous generator
    async def pieces(self) -> AsyncGenerator[bytes]:
        """Yield the pieces of the body, until the client's token becomes invalid. A piece is empty if there is nothing
        to send; it lets the server check whether the client is still connected."""
        yield self._frame("hello", {"api": API, "version": installed_version(), "cloud": True})
        beat = checked = time.monotonic()
        try:
            async for page in self._stream.pages():
                now = time.monotonic()
                if now - checked > CHECKED:
                    checked = now
                    if not await asyncio.get_running_loop().run_in_executor(None, self._is_valid):
                        return  # the client connects again, with a new token or fewer rights
                frames = [self._frame(event["kind"], event) for event in page]
                if now - beat >= self._interval:
                    beat = now
                    frames.append(self._frame("heartbeat", {}))
                yield b"".join(frames)
        except CursorExpired as error:
            yield self._frame("error", {"error": error.as_dict()})

    def _frame(self, name: str, data: Document) -> bytes:
        cursor = data.get("cursor") or format_cursor(self._stream.position)
        document = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **data, "cursor": cursor}
        return b"id: %b\nevent: %b\ndata: %b\n\n" % (cursor.encode(), name.encode(), orjson.dumps(document))
