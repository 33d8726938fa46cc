# SPDX-License-Identifier: GPL-3.0-or-later
"""GET /v1/watch: server-sent events for clients that follow this host, such as the conductors of a cloud.

One thread orders all events and passes them to all watchers, so that no change is lost between the list of servers that
a new watcher gets (``servers``) and the events that follow. Watchers have no threads: they wait in the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from anyio import CapacityLimiter, to_thread
from fastapi import Request
from fastapi.responses import StreamingResponse

from magnetar_agent.drivers.server import server_condition
from magnetar_agent.host import inventory
from magnetar_agent.host.boot import boot_id
from magnetar_agent.metadata.password import PASSWORD
from magnetar_core.errors import HypervisorDown, InvalidField, MagnetarError
from magnetar_core.kinds import Server
from magnetar_core.operations import utc_timestamp
from magnetar_core.version import API, installed_version

from .routes import read_query

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.host.hypervisor import Domain, DomainEvent
    from magnetar_agent.reconcile.documents import Document
    from magnetar_core.operations import Operation

    Told = tuple[dict[str, Any], dict[str, Any], bool]

log = logging.getLogger(__name__)

#: Bounds of the time between two heartbeats, in seconds.
INTERVAL = (0.5, 60.0)
#: Events that a watcher may leave out; hello, servers and heartbeat always come.
CHOICES = ("server", "domain", "operation")
#: Threads for heartbeats, which share one snapshot.
THREADS = 4
#: Seconds for which a heartbeat is sent to other watchers too.
FRESH = 0.4


class Watcher:
    """A client of ``GET /v1/watch`` and the queue of its unread events. *abort*: closes its connection immediately.
    *events*: the types of events that the client requested."""

    #: A watcher with more unread events is cut off; when it connects again it gets the states of all servers.
    BEHIND = 1000

    def __init__(self, abort: Callable[[], None], events: Collection[str] = CHOICES) -> None:
        self._loop, self._abort = asyncio.get_running_loop(), abort
        self.events = frozenset(events)
        self._waiting: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self.over = False

    def tell(self, event: bytes) -> None:
        """Queue one event for the client; if the client has too many unread events, disconnect it instead. Callable
        from any thread."""
        if self.over:
            return
        if len(self._waiting) >= self.BEHIND:
            log.warning("a watcher is %d events behind and is cut off", self.BEHIND)
            self._waiting.clear()
            self.end()
            self._soon(self._abort)  # it does not read, so the connection cannot be closed cleanly
            return
        self._waiting.append(event)
        self._soon(self._wake.set)

    def end(self) -> None:
        """Close the client's connection after the queued events are sent. Callable from any thread."""
        self.over = True
        self._soon(self._wake.set)

    async def read(self, seconds: float | None) -> bytes:
        """Return the queued events, after waiting for one if there are none. Return nothing if none comes within
        *seconds* (``None``: no limit), or the connection ends."""
        if not self._waiting and not self.over:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), seconds)
        self._wake.clear()
        queued = []
        while self._waiting:
            queued.append(self._waiting.popleft())
        return b"".join(queued)

    def _soon(self, function: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed, and the watcher with it
            self._loop.call_soon_threadsafe(function)


class EventLane:
    """A thread that runs queued functions one after the other."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._todo: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread unless it runs already. The thread also runs the functions that were queued before."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def put(self, function: Callable[[], object]) -> None:
        """Queue *function* for the thread. Callable from any thread."""
        self._todo.put(function)

    def close(self) -> None:
        """End the thread after it has run all functions that are queued now."""
        self._todo.put(None)

    def _run(self) -> None:
        while (todo := self._todo.get()) is not None:
            try:
                todo()
            except MagnetarError as error:
                log.debug("watchers learn it when libvirt is back: %s", error)
            except Exception:
                log.exception("watchers cannot be told")


class Feed:
    """The source of events about one host for all clients of ``GET /v1/watch``. *lane*: the thread that sends the
    events; by default a new one."""

    def __init__(self, host: LocalHost, lane: EventLane | None = None) -> None:
        self.host = host
        self._lane = lane or EventLane("watch")
        self._present: set[Watcher] = set()  # whose request has arrived; used by the event loop
        self._watchers: set[Watcher] = set()  # watchers that have the list of servers; used by the thread
        self._closed = False
        self._number = 0
        self._last_states: dict[str, Told] = {}
        self._changed: set[str] = set()
        #: Separate threads: other requests must not delay heartbeats.
        self._threads = CapacityLimiter(THREADS)
        self._beating = threading.Lock()
        self._beat: tuple[float, bytes] = (0.0, b"")
        host.hypervisor.on_event(self._happened)
        host.hypervisor.on_connect(lambda: self._do(self._tell_all))
        host.operations.listen(self._ended)
        host.documents.listen(self._written)

    async def watch(self, request: Request) -> StreamingResponse:
        """Return a response that sends events (server-sent events) until the client disconnects or the agent stops.
        Types: hello, servers, heartbeat, server, domain, operation. Each event is a line with its name and a line with
        its JSON, followed by an empty line."""
        query_parameters = read_query(request, interval=_interval, events=_events)
        interval = query_parameters.get("interval", self.host.settings.heartbeat)
        if self._closed:
            raise HypervisorDown("The agent is shutting down. Watch again when it is back.")
        transport = request.scope.get("state", {}).get("transport")
        watcher = Watcher(transport.abort if transport else lambda: None, query_parameters.get("events", CHOICES))
        return StreamingResponse(self._events(watcher, interval, transport), media_type="text/event-stream",
                                 headers={"cache-control": "no-store"})

    def close(self) -> None:
        """End all connections. Clients will connect again when the agent is restarted."""
        self._closed = True
        for watcher in list(self._present):
            watcher.end()
        self._lane.close()

    async def _events(self, watcher: Watcher, interval: float,
                      _transport: asyncio.Transport | None) -> AsyncIterator[bytes]:
        self._present.add(watcher)
        self._lane.start()
        self._lane.put(lambda: self._enter(watcher))
        time_of = asyncio.get_running_loop().time
        beat = time_of() + interval
        try:
            while not (watcher.over or self._closed):
                if events := await watcher.read(max(0.0, beat - time_of())):
                    yield events
                if time_of() >= beat and not watcher.over:
                    beat = time_of() + interval
                    yield await self._next_heartbeat()
        finally:
            watcher.over = True
            self._present.discard(watcher)

    async def _next_heartbeat(self) -> bytes:
        return await to_thread.run_sync(self._heartbeat, limiter=self._threads)

    # Called from other threads ---------------------------------------------------------------------------------------
    def _do(self, function: Callable[[], None]) -> None:
        """Queue *function* for the feed's thread, or do nothing if no client is connected."""
        if self._present and not self._closed:
            self._lane.put(function)

    def _is_requested(self, event: str) -> bool:
        """Return whether any client has requested events of the type *event*."""
        return any(event in watcher.events for watcher in tuple(self._present))

    def _happened(self, event: DomainEvent) -> None:
        document = self.host.documents.peek_by_id(Server.noun, event.uuid) if self._present else None
        if document is None or event.what == "agent":  # not Magnetar's domain, or nothing that is shown
            return
        if self._is_requested("domain"):
            name = document.name
            self._do(lambda: self._send("domain", {"time": utc_timestamp(), "id": event.uuid, "name": name,
                                                   "what": event.what, "reason": event.reason}))
        self._queue_check(event.uuid)

    def _ended(self, operation: Operation) -> None:
        if self._is_requested("operation"):
            shown = operation.as_dict(False)
            self._do(lambda: self._send("operation", shown))

    def _written(self, document: Document, removed: bool) -> None:
        if document.kind != Server.noun or not self._present:
            return
        previous = self._last_states.get(document.id)
        if removed or previous is None or previous[:1] + previous[2:] != (_public(document), document.deleting):
            self._queue_check(document.id)

    def _queue_check(self, id: str) -> None:
        """Queue a check whether the state of the server *id* has changed. Several changes before the check cause only
        one event."""
        if id not in self._changed and self._present:
            self._changed.add(id)
            self._lane.put(lambda: self._look(id))

    # The thread -----------------------------------------------------------------------------------------------------
    def _enter(self, watcher: Watcher) -> None:
        watcher.tell(_frame("hello", self._hello()))
        with contextlib.suppress(MagnetarError):  # when libvirt is back, all watchers get the list
            watcher.tell(_frame("servers", self._everything()))
        watcher.tell(self._heartbeat())
        self._watchers = {other for other in self._watchers if not other.over} | {watcher}

    def _hello(self) -> dict[str, Any]:
        try:
            id = self.host.hypervisor.host().get("id")
        except MagnetarError:
            id = None
        return {"host": self.host.name, "id": id, "api": API, "version": installed_version(), "boot_id": boot_id(),
                "sequence": self._number, "time": utc_timestamp()}

    def _everything(self) -> dict[str, Any]:
        domains = self.host.hypervisor.domains()
        documents = self.host.documents.list(Server.noun)
        self._last_states = {document.id: _watched_state(self.host, document, domains.get(document.id))
                             for document in documents}
        return {"at": utc_timestamp(), "servers": [{"id": document.id, "name": document.name,
                                                    **self._last_states[document.id][1]}
                                                   for document in documents]}

    def _tell_all(self) -> None:
        self._send("servers", self._everything())

    def _look(self, id: str) -> None:
        self._changed.discard(id)
        document = self.host.documents.peek_by_id(Server.noun, id)
        if document is None:
            if self._last_states.pop(id, None):
                self._send("server", {"id": id, "removed": True, "at": utc_timestamp()})
            return
        current = _watched_state(self.host, document, self.host.hypervisor.domain(id))
        if self._last_states.get(id) != current:
            self._last_states[id] = current
            self._send("server", {"id": id, "name": document.name, **current[1], "at": utc_timestamp()})

    def _send(self, event: str, data: dict[str, Any]) -> None:
        self._number += 1
        framed = _frame(event, data, self._number)
        self._watchers = {watcher for watcher in self._watchers if not watcher.over}
        for watcher in tuple(self._watchers):  # the set may grow meanwhile
            if event not in CHOICES or event in watcher.events:
                watcher.tell(framed)

    def _heartbeat(self) -> bytes:
        """Return the heartbeat event, as bytes: the host's inventory and usage, and the running operations. Clients
        whose heartbeats are due at about the same time get the same event."""
        with self._beating:
            if time.monotonic() - self._beat[0] < FRESH:
                return self._beat[1]
            usage = inventory.host_usage(self.host)
            beat = _frame("heartbeat", {"time": utc_timestamp(), "host": usage,
                                        "operations": self.host.operations.running()})
            self._beat = (time.monotonic(), beat)
            return beat


def _watched_state(host: LocalHost, document: Document, domain: Domain | None) -> Told:
    """Return the data of a server that must be compared to find out whether to send an event: (requested fields and
    stored state, from ``_public``; the state as events show it; whether the server is being deleted)."""
    password = document.state.get(PASSWORD)
    shown_fields = {**server_condition(host, document, domain), **({"password": password} if password else {})}
    return _public(document), shown_fields, document.deleting


def _public(document: Document) -> dict[str, Any]:
    """Return the part of a server's stored state (*document*) whose changes are reported to clients. Fields that only
    record work in progress are not included."""
    state = document.state
    return {**document.want, "name": document.name,
            "state": [state.get("reason"), bool(state.get("unfinished")), state.get("fault"), state.get(PASSWORD)]}


def _interval(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not INTERVAL[0] <= seconds <= INTERVAL[1]:
        raise InvalidField(name, f"must be a number of seconds from {INTERVAL[0]:g} to {INTERVAL[1]:g}", text)
    return seconds


def _events(name: str, text: str) -> frozenset[str]:
    events = frozenset(text.split(","))
    if not events <= set(CHOICES):
        raise InvalidField(name, f"must be some of {', '.join(CHOICES)}, separated by commas", text)
    return events


def _frame(event: str, data: dict[str, Any], number: int | None = None) -> bytes:
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {event}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()
