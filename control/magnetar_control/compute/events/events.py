# SPDX-License-Identifier: GPL-3.0-or-later
"""Events of the cloud's resources: which of them a caller may see, and how they are read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from sqlalchemy.exc import DBAPIError

from magnetar_control.compute.caller import Caller
from magnetar_control.notifications.stream_events import SERVER
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, Forbidden

from .event_cursor import NOW, OLDEST, format_cursor, parse_cursor
from .event_feed import PAGE, EventFeed, EventSource, StoredEvent

#: Fields that only administrators see: they name hosts.
OF_ADMINS = ("host",)
#: Most events that one request looks at.
LOOKED_AT = 5000
#: Seconds that a stream waits for one database before it goes on with the others; seconds between two signs of life
#: inside the server.
PATIENCE, TICK = 5.0, 1.0
#: The policy rule for a project's events, and for those of all projects.
RULE = "os_compute_api:servers:index"
OFF = ("This cloud keeps no events. An operator sets event_stream: true for the API and all conductors; see "
       "docs/reference/events.md.")


@dataclass(frozen=True)
class EventFilter:
    """The selection of events that a client gets. *project*: the project of the events (``None``: all events, for
    administrators). *user*: also show events without a project about resources of this user. *with_hosts*: show names
    of hosts. *kinds*: kinds of resources, such as server; empty: all. *servers*: names or uuids; empty: all."""

    project: str | None
    user: str | None
    with_hosts: bool = False
    kinds: Collection[str] = ()
    servers: Collection[str] = ()

    def matches(self, event: Document) -> bool:
        """Return whether the client gets *event*."""
        if not event or (self.kinds and event["kind"] not in self.kinds):
            return False
        server = event.get("server") or {}
        if self.servers and not {server.get("id"), server.get("name")} & set(self.servers):
            return False
        if self.project is None or event["project_id"] == self.project:
            return True
        owner = (event.get("resource") or {}).get("user_id")
        return event["project_id"] is None and owner is not None and owner == self.user

    def show(self, event: Document) -> Document:
        """Return *event* as the client sees it: without the fields ``OF_ADMINS`` (names of hosts), unless *with_hosts*
        is true."""
        return event if self.with_hosts else {
            name: value for name, value in event.items() if name not in OF_ADMINS}


class EventPage(NamedTuple):
    """A page of events for a client. *position*: the position after the page, as the id of the last event that was
    read, by name of the database."""

    events: list[Document]
    position: dict[str, int]


def make_filter(caller: Caller, *, all_projects: bool, kinds: Collection[str], servers: Collection[str]) -> EventFilter:
    """Return the filter for the events that a request asks for. Raises ``Conflict`` if the cloud stores no events.
    Raises ``Forbidden``, also for *all_projects* unless the caller is an administrator."""
    if not caller.settings.event_stream:
        raise Conflict(OFF)
    caller.check_policy(RULE)
    if all_projects and not caller.is_admin:
        raise Forbidden("Only administrators see the events of all projects; leave out all_projects.")
    return EventFilter(None if all_projects else caller.project, caller.context.user_id, caller.is_admin,
                       tuple(kinds), tuple(servers) if SERVER in kinds or not kinds else ())


def start_position(sources: Mapping[str, EventSource], cursor: str) -> dict[str, int]:
    """Return the position for *cursor*: the id of the last event that the client has, by name of the database.
    *cursor*: a cursor of an earlier answer, ``oldest`` or ``now``. A database without an entry in the cursor was added
    later; its events are read from the oldest. Raises ``InvalidField``."""
    if cursor == OLDEST:
        return dict.fromkeys(sources, 0)
    if cursor == NOW:
        return {name: source.newest or 0 for name, source in sources.items()}
    position = parse_cursor(cursor)
    return {name: position.get(name, 0) for name in sources}


def list_events(feed: EventFeed, event_filter: EventFilter, cursor: str, limit: int) -> EventPage:
    """Return at most *limit* events after *cursor*, and the position after these events. The events are ordered by
    database, then by id. At most ``LOOKED_AT`` events are read, so more may follow even if few are returned. Raises
    ``InvalidField``, ``CursorExpired``, ``DBAPIError``."""
    sources = feed.look()
    position = start_position(sources, cursor)
    events: list[Document] = []
    looked_at = 0
    for name, source in sources.items():
        while looked_at < LOOKED_AT and len(events) < limit:
            page = source.page(position[name])
            events += _shown_events(page, event_filter, position, name, limit - len(events))
            looked_at += len(page)
            if not page or position[name] >= (source.newest or 0):
                break
    return EventPage(events, position)


class EventStream:
    """The stream of events after *position* for one client. It has only a page of events of each database in memory,
    even if the client reads slowly."""

    def __init__(self, feed: EventFeed, event_filter: EventFilter, position: dict[str, int]) -> None:
        self.feed, self.event_filter, self.position = feed, event_filter, position

    async def pages(self) -> AsyncGenerator[list[Document]]:
        """Yield lists of events for the client, without end. An empty list means that there are no new events for the
        client yet. Raises ``CursorExpired``."""
        loop = asyncio.get_running_loop()
        refreshed_at = float("-inf")
        sources: Mapping[str, EventSource] = {}
        with self.feed.followed():
            while True:
                if time.monotonic() - refreshed_at > PATIENCE:
                    sources = await loop.run_in_executor(None, self.feed.refresh)
                    refreshed_at = time.monotonic()
                events: list[Document] = []
                for source in [source for source in sources.values() if self._behind(source)]:
                    events += _shown_events(await self._page(source), self.event_filter, self.position, source.name)
                yield events
                await self.feed.wait(TICK, partial(self._any_behind, sources))

    def _any_behind(self, sources: Mapping[str, EventSource]) -> bool:
        return any(self._behind(source) for source in sources.values())

    def _behind(self, source: EventSource) -> bool:
        return source.newest is not None and self.position.get(source.name, 0) < source.newest

    async def _page(self, source: EventSource) -> list[StoredEvent]:
        loop = asyncio.get_running_loop()
        reading = loop.run_in_executor(source.database.threads, source.page, self.position.get(source.name, 0))
        try:
            return await asyncio.wait_for(reading, PATIENCE)
        except (TimeoutError, DBAPIError):  # the database hangs or is away; its events come later
            await asyncio.sleep(TICK)
            return []


def _shown_events(page: Sequence[StoredEvent], event_filter: EventFilter, position: dict[str, int], name: str,
                  most: int = PAGE) -> list[Document]:
    """Return those events of *page* that the client gets, at most *most*, each with its cursor. Move *position* past
    the events that were read. *name*: the name in cursors of the database that *page* is from."""
    events: list[Document] = []
    for stored_event in page:
        if len(events) >= most:
            break
        position[name] = stored_event.id
        if event_filter.matches(stored_event.document):
            events.append({**event_filter.show(stored_event.document), "cursor": format_cursor(position)})
    return events
