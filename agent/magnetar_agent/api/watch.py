# SPDX-License-Identifier: GPL-3.0-or-later
"""GET /v1/watch: server-sent events for whoever follows this host, such as the conductors of a cloud.

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

from magnetar_agent.drivers.server import condition
from magnetar_agent.host import inventory
from magnetar_agent.host.boot import boot_id
from magnetar_agent.metadata.password import PASSWORD
from magnetar_core.errors import HypervisorDown, InvalidField, MagnetarError
from magnetar_core.kinds import Server
from magnetar_core.operations import now
from magnetar_core.version import API, version

from .routes import query

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
#: Threads for heartbeats, which share one look.
THREADS = 4
#: A heartbeat younger than this, in seconds, is sent to other watchers too.
FRESH = 0.4


class Watcher:
    """One client: which of ``CHOICES`` it asked for, its unread events, and a function that cuts its connection."""

    #: A watcher that is so many events behind is cut off; when it connects again it gets the states of all servers.
    BEHIND = 1000

    def __init__(self, abort: Callable[[], None], events: Collection[str] = CHOICES) -> None:
        self._loop, self._abort = asyncio.get_running_loop(), abort
        self.events = frozenset(events)
        self._waiting: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self.over = False

    def tell(self, event: bytes) -> None:
        """Queue one event for it, from any thread."""
        if self.over:
            return
        if len(self._waiting) >= self.BEHIND:
            log.warning("a watcher is %d events behind and is cut off", self.BEHIND)
            self._waiting.clear()
            self.end()
            self._soon(self._abort)  # it does not read, so the connection cannot be closed in order
            return
        self._waiting.append(event)
        self._soon(self._wake.set)

    def end(self) -> None:
        """End its connection once it has read what is queued; from any thread."""
        self.over = True
        self._soon(self._wake.set)

    async def read(self, seconds: float) -> bytes:
        """The queued events; empty when none comes within *seconds*."""
        if not self._waiting and not self.over:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), seconds)
        self._wake.clear()
        found = []
        while self._waiting:
            found.append(self._waiting.popleft())
        return b"".join(found)

    def _soon(self, function: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed, and the watcher with it
            self._loop.call_soon_threadsafe(function)


class Feed:
    """The events for all watchers, and the thread that sends them."""

    def __init__(self, host: LocalHost) -> None:
        self.host = host
        self._todo: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._present: set[Watcher] = set()  # whose request has arrived; the event loop's
        self._watchers: set[Watcher] = set()  # of these, who have got the list of servers; the thread's
        self._closed = False
        self._number = 0
        self._told: dict[str, Told] = {}
        self._changed: set[str] = set()
        #: No request keeps a thread from heartbeats.
        self._threads = CapacityLimiter(THREADS)
        self._beating = threading.Lock()
        self._beat: tuple[float, bytes] = (0.0, b"")
        host.hypervisor.on_event(self._happened)
        host.hypervisor.on_connect(lambda: self._do(self._tell_all))
        host.operations.listen(self._ended)
        host.documents.listen(self._written)

    async def watch(self, request: Request) -> StreamingResponse:
        """Server-sent events until the client goes or the agent stops: hello, servers, heartbeat, server, domain,
        operation. Lines with the name of the event and its JSON are followed by an empty line."""
        asked = query(request, interval=_interval, events=_events)
        interval = asked.get("interval", self.host.settings.heartbeat)
        if self._closed:
            raise HypervisorDown("The agent is shutting down. Watch again when it is back.")
        watcher = Watcher(request.scope.get("state", {}).get("abort", lambda: None), asked.get("events", CHOICES))
        return StreamingResponse(self._events(watcher, interval), media_type="text/event-stream",
                                 headers={"cache-control": "no-store"})

    def close(self) -> None:
        """End all connections; watchers connect again to the next agent."""
        self._closed = True
        for watcher in list(self._present):
            watcher.end()
        self._todo.put(None)

    async def _events(self, watcher: Watcher, interval: float) -> AsyncIterator[bytes]:
        self._present.add(watcher)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
            self._thread.start()
        self._todo.put(lambda: self._enter(watcher))
        time_of = asyncio.get_running_loop().time
        beat = time_of() + interval
        try:
            while not (watcher.over or self._closed):
                if events := await watcher.read(max(0.0, beat - time_of())):
                    yield events
                if time_of() >= beat and not watcher.over:
                    beat = time_of() + interval
                    yield await to_thread.run_sync(self._heartbeat, limiter=self._threads)
        finally:
            watcher.over = True
            self._present.discard(watcher)

    # What comes from other threads -----------------------------------------------------------------------------------
    def _do(self, function: Callable[[], None]) -> None:
        """Queue *function* for the thread if there are watchers."""
        if self._present and not self._closed:
            self._todo.put(function)

    def _asked(self, event: str) -> bool:
        """Whether a watcher asked for these events."""
        return any(event in watcher.events for watcher in tuple(self._present))

    def _happened(self, event: DomainEvent) -> None:
        document = self.host.documents.look(Server.noun, event.uuid) if self._present else None
        if document is None or event.what == "agent":  # a domain that is not Magnetar's, or nothing that is shown
            return
        if self._asked("domain"):
            name = document.name
            self._do(lambda: self._send("domain", {"time": now(), "id": event.uuid, "name": name, "what": event.what,
                                                   "reason": event.reason}))
        self._look_at(event.uuid)

    def _ended(self, operation: Operation) -> None:
        if self._asked("operation"):
            shown = operation.as_dict(False)
            self._do(lambda: self._send("operation", shown))

    def _written(self, document: Document, removed: bool) -> None:
        if document.kind != Server.noun or not self._present:
            return
        told = self._told.get(document.id)
        if removed or told is None or told[:1] + told[2:] != (_public(document), document.deleting):
            self._look_at(document.id)

    def _look_at(self, id: str) -> None:
        """Queue a look at the state of a server; changes until then are reported as one."""
        if id not in self._changed and self._present:
            self._changed.add(id)
            self._todo.put(lambda: self._look(id))

    # The thread -----------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while (todo := self._todo.get()) is not None:
            try:
                self._watchers = {watcher for watcher in self._watchers if not watcher.over}
                todo()
            except MagnetarError as error:
                log.debug("watchers learn it when libvirt is back: %s", error)
            except Exception:
                log.exception("watchers cannot be told")

    def _enter(self, watcher: Watcher) -> None:
        watcher.tell(_frame("hello", self._hello()))
        with contextlib.suppress(MagnetarError):  # when libvirt is back, everybody is told
            watcher.tell(_frame("servers", self._everything()))
        watcher.tell(self._heartbeat())
        self._watchers.add(watcher)

    def _hello(self) -> dict[str, Any]:
        try:
            id = self.host.hypervisor.host().get("id")
        except MagnetarError:
            id = None
        return {"host": self.host.name, "id": id, "api": API, "version": version(), "boot_id": boot_id(),
                "sequence": self._number, "time": now()}

    def _everything(self) -> dict[str, Any]:
        domains = self.host.hypervisor.domains()
        documents = self.host.documents.list(Server.noun)
        self._told = {one.id: _shown(self.host, one, domains.get(one.id)) for one in documents}
        return {"at": now(), "servers": [{"id": one.id, "name": one.name, **self._told[one.id][1]}
                                         for one in documents]}

    def _tell_all(self) -> None:
        self._send("servers", self._everything())

    def _look(self, id: str) -> None:
        self._changed.discard(id)
        document = self.host.documents.look(Server.noun, id)
        if document is None:
            if self._told.pop(id, None):
                self._send("server", {"id": id, "removed": True, "at": now()})
            return
        found = _shown(self.host, document, self.host.hypervisor.domain(id))
        if self._told.get(id) != found:
            self._told[id] = found
            self._send("server", {"id": id, "name": document.name, **found[1], "at": now()})

    def _send(self, event: str, data: dict[str, Any]) -> None:
        self._number += 1
        framed = _frame(event, data, self._number)
        for watcher in tuple(self._watchers):  # others come meanwhile
            if event not in CHOICES or event in watcher.events:
                watcher.tell(framed)

    def _heartbeat(self) -> bytes:
        """What the host has and uses; watchers share one look if they need it at about the same time."""
        with self._beating:
            if time.monotonic() - self._beat[0] < FRESH:
                return self._beat[1]
            seen = inventory.usage(self.host)
            beat = _frame("heartbeat", {"time": now(), "host": seen, "operations": self.host.operations.running()})
            self._beat = (time.monotonic(), beat)
            return beat


def _shown(host: LocalHost, document: Document, domain: Domain | None) -> Told:
    """What a watcher is told of a server, between what is compared to find out whether it changed."""
    left = document.state.get(PASSWORD)
    told = {**condition(host, document, domain), **({"password": left} if left else {})}
    return _public(document), told, document.deleting


def _public(document: Document) -> dict[str, Any]:
    """The part of a document whose change is reported; the agent's notes while it works are not."""
    state = document.state
    return {**document.want, "name": document.name,
            "state": [state.get("reason"), bool(state.get("unfinished")), state.get("fault"), state.get(PASSWORD)]}


def _interval(name: str, text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not INTERVAL[0] <= found <= INTERVAL[1]:
        raise InvalidField(name, f"must be a number of seconds from {INTERVAL[0]:g} to {INTERVAL[1]:g}", text)
    return found


def _events(name: str, text: str) -> frozenset[str]:
    found = frozenset(text.split(","))
    if not found <= set(CHOICES):
        raise InvalidField(name, f"must be some of {', '.join(CHOICES)}, separated by commas", text)
    return found


def _frame(event: str, data: dict[str, Any], number: int | None = None) -> bytes:
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {event}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()
