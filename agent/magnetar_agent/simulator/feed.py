# SPDX-License-Identifier: GPL-3.0-or-later
"""The feed of a simulated host. All feeds share one thread, and a heartbeat of an unchanged host is cheap."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
from typing import TYPE_CHECKING, Any

from magnetar_agent.api.watch import EventLane, Feed, Watcher
from magnetar_agent.host import inventory
from magnetar_core.operations import utc_timestamp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from magnetar_agent.host.host import LocalHost

#: Bytes that a watcher may leave unread before its heartbeats are dropped.
UNREAD = 1 << 18


class Pulse:
    """A timer for the heartbeats that all simulated hosts send to their watchers (clients of the event stream). One
    timer of the event loop is cheaper than one for each watcher."""

    #: Seconds by which heartbeats may be early, so that many go in one turn of the loop.
    EARLY = 0.02

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._number = loop, itertools.count()
        self._due: list[tuple[float, int, float, Callable[[], bool]]] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, interval: float, beat: Callable[[], bool]) -> None:
        """Call *beat* every *interval* seconds until it returns ``False``."""
        heapq.heappush(self._due, (self._loop.time() + interval, next(self._number), interval, beat))
        self._wind()

    def _wind(self) -> None:
        if self._timer is None or self._timer.when() > self._due[0][0]:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(self._due[0][0], self._tick)

    def _tick(self) -> None:
        self._timer, now = None, self._loop.time()
        while self._due and self._due[0][0] <= now + self.EARLY:
            due, number, interval, beat = heapq.heappop(self._due)
            if beat():
                heapq.heappush(self._due, (max(now, due) + interval, number, interval, beat))
        if self._due:
            self._wind()


class SimulatedFeed(Feed):
    """The server-sent events of a simulated host. The usage in its heartbeats is computed again only after a change on
    the host."""

    def __init__(self, host: LocalHost, lane: EventLane, pulse: Pulse) -> None:
        super().__init__(host, lane)
        self._pulse = pulse
        #: Whether the host sends heartbeats.
        self.answers = True
        #: The host's usage as JSON, empty after a change; and the number of changes.
        self._usage, self._changes = "", 0
        self._last = ""
        #: The ``boot_id`` that watchers get.
        self.boot = ""
        host.documents.listen(lambda _document, _removed: self.forget_usage())
        host.hypervisor.on_event(lambda _event: self.forget_usage())

    def forget_usage(self) -> None:
        """Discard the cached usage of the host, so that it is computed again for the next heartbeat."""
        self._changes += 1
        self._usage = ""

    def cut(self) -> None:
        """End the connections of all watchers. They can connect again."""
        for watcher in list(self._present):
            watcher.end()

    def close(self) -> None:
        """End the connections of all watchers and accept no more. The thread that distributes events continues, because
        all simulated hosts share it."""
        self._closed = True
        self.cut()

    async def _events(self, watcher: Watcher, interval: float,
                      transport: asyncio.Transport | None) -> AsyncIterator[bytes]:
        """Yield the events for *watcher*, without heartbeats. Heartbeats, one every *interval* seconds, are written
        directly to *transport*, because this is faster: all simulated hosts together send thousands a second."""
        self._present.add(watcher)
        self._lane.start()
        self._lane.put(lambda: self._enter(watcher))
        if transport is not None:
            self._pulse.add(interval, lambda: self._beat_to(watcher, transport))
        try:
            while not (watcher.over or self._closed):
                if events := await watcher.read(None):
                    yield events
        finally:
            watcher.over = True
            self._present.discard(watcher)

    def _beat_to(self, watcher: Watcher, transport: asyncio.Transport) -> bool:
        """Send a heartbeat to *watcher* as a chunk of its HTTP response. Return ``False`` if its connection has ended,
        so that the timer stops.
        """
        if watcher.over or transport.is_closing():
            return False
        if not self._usage:
            self._lane.put(self._refresh_usage)  # the watcher gets the last usage until then
        if self.answers and self._last and transport.get_write_buffer_size() < UNREAD:
            frame = self._frame_heartbeat(self._usage or self._last)
            transport.write(b"%x\r\n%b\r\n" % (len(frame), frame))
        return True

    def _hello(self) -> dict[str, Any]:
        return super()._hello() | {"boot_id": self.boot}

    def _heartbeat(self) -> bytes:
        return self._frame_heartbeat(self._usage or self._refresh_usage())

    def _refresh_usage(self) -> str:
        """Return the host's usage as JSON text, from the cache unless the host has changed."""
        if self._usage:
            return self._usage
        changes = self._changes
        self._last = usage = json.dumps(inventory.host_usage(self.host), ensure_ascii=False)
        if changes == self._changes:
            self._usage = usage
        return usage

    def _frame_heartbeat(self, usage: str) -> bytes:
        return (f'event: heartbeat\ndata: {{"time": "{utc_timestamp()}", "host": {usage}, '
                f'"operations": {self.host.operations.running()}}}\n\n').encode()
