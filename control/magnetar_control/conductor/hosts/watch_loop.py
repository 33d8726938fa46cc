# SPDX-License-Identifier: GPL-3.0-or-later
"""The event loop in which a conductor follows the agents of all its hosts, in one thread.

Nothing in the loop blocks: heartbeats are written in batches (``heartbeats``), and queries of databases and agents run
in threads, in order for each host (``host_jobs``)."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import random
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import orjson
import uvloop
from sqlalchemy.exc import DBAPIError

from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.store.hosts.host_leases import LEASE, REFUSED, Renewal
from magnetar_control.store.servers.servers import json_text
from magnetar_core.daemon.report import REPORT
from magnetar_core.errors import MagnetarError
from magnetar_core.http.client import resource_of_answer

from . import host_return
from .agent_connection import AgentConnection
from .heartbeats import Heartbeats
from .host_jobs import HostJobs
from .host_reports import HostRefused, check_host_report

log = logging.getLogger(__name__)
#: Seconds after the first failure until a host is tried again, and at most; the time doubles with each failure. A
#: connection of ``STEADY`` seconds counts as a success.
PAUSE, LONGEST, STEADY = 1.0, 60.0, 10.0
#: Seconds that an agent has for its first answer; connections that are opened at the same time.
PATIENCE, OPENING = 15.0, 128
#: Jobs of a host after which no further events are read from it.
QUEUED = 100
#: Most values that hosts share; when there are more, all are forgotten.
VALUES = 10000
#: Properties of a heartbeat that are saved with it; they differ each time.
REPORT_FIELDS = ("metrics", "images")


class WatchLoop:
    """The event loop with the connections to the agents of all hosts that a conductor watches.

    *handle*: a function of (host, event, document) that handles an agent's event. *save*: a function of (host,
    properties) that saves the host's properties. Both run in threads. *is_saved*: a function of (host, properties) that
    returns whether the properties are already saved; it runs in the event loop and must not block.
    """

    def __init__(self, conductor: Conductor, handle: Callable[[str, str, Mapping[str, Any]], None],
                 save: Callable[[str, Mapping[str, Any]], None],
                 is_saved: Callable[[str, Mapping[str, Any]], bool]) -> None:
        self.conductor, self.handle, self.save, self.is_saved = conductor, handle, save, is_saved
        self.jobs, self.heartbeats = HostJobs(), Heartbeats(conductor, partial(self.soon, self._written))
        self.interval = min(conductor.settings.heartbeat, LEASE / 3)
        #: Connections that may be opened now.
        self.opening = asyncio.Semaphore(OPENING)
        #: Names of the followed hosts; they are added by one thread, and removed in the loop.
        self.names: set[str] = set()
        self._followers: dict[str, HostFollower] = {}
        #: Lists and objects that hosts reported, by the digest of their JSON: most hosts report the same ones.
        self._values: dict[bytes, Any] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def add(self, names: Collection[str]) -> None:
        """Connect to the agents of the hosts *names* and handle their events. The conductor must hold the leases of
        these hosts, so that no other conductor watches them."""
        if self._loop is None:
            self._loop = uvloop.new_event_loop()
            REPORT.add_loop(self._loop)
            for run, name in ((self._run, "watch loop"), (self.heartbeats.run, "watch heartbeats")):
                threading.Thread(target=run, name=name, daemon=True).start()
        for name in names:
            self.names.add(name)
            self.heartbeats.add(name)
        self.soon(self._begin, names)

    def remove(self, name: str) -> None:
        """Close the connection to the host *name*, and stop handling its events."""
        self.soon(self._stop, name)

    def wake(self, name: str) -> None:
        """Connect to a disconnected host immediately instead of after the current pause."""
        self.soon(self._wake, name)

    def close(self) -> None:
        """Close all connections, and end the threads."""
        self.jobs.close()
        self.heartbeats.close()
        self.soon(self._close)

    def soon(self, function: Callable[..., None], *values: Any) -> None:
        """Schedule a call of *function* with *values* in the event loop. May be called from any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(function, *values)

    # In the loop.
    def shared(self, host: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of the host properties *host* in which values that other hosts also report are shared objects.
        This saves memory, because most hosts report the same values."""
        if len(self._values) > VALUES:
            self._values.clear()
        return {sys.intern(key): value if key in REPORT_FIELDS else self._shared_value(value)
                for key, value in host.items()}

    def _shared_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return sys.intern(value)
        if not isinstance(value, list | dict):
            return value
        return self._values.setdefault(hashlib.blake2b(orjson.dumps(value), digest_size=16).digest(), value)

    def _run(self) -> None:
        assert self._loop is not None
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def _begin(self, names: Collection[str]) -> None:
        for name in names:
            if name not in self._followers:
                self._followers[name] = HostFollower(self, name)

    def _stop(self, name: str) -> None:
        self.names.discard(name)
        self.heartbeats.remove(name)
        self.jobs.drop(name)
        if follower := self._followers.pop(name, None):
            follower.task.cancel()

    def _wake(self, name: str) -> None:
        if follower := self._followers.get(name):
            follower.wake.set()

    def _close(self) -> None:
        assert self._loop is not None
        for name in list(self._followers):
            self._stop(name)
        self._loop.call_later(0.1, self._loop.stop)

    def _written(self, renewal: Renewal) -> None:
        for name in renewal.lost:
            self._stop(name)  # another conductor watches it
        for name in renewal.evacuated:
            if follower := self._followers.get(name):
                follower.start_evacuation_cleanup()
        for name in renewal.up:
            if follower := self._followers.get(name):
                follower.be_up()


class HostFollower:
    """The connection to one host's agent: a task in the event loop that reconnects after each failure."""

    def __init__(self, watch: WatchLoop, name: str) -> None:
        self.watch, self.name, self.conductor = watch, name, watch.conductor
        self._loop = asyncio.get_running_loop()
        self.wake = asyncio.Event()
        self._connection: AgentConnection | None = None
        #: The host as its agent reported it last.
        self._host: dict[str, Any] = {}
        #: The name that the agent reported before.
        self._reported_name: str | None = None
        self._up: asyncio.Future[None] = self._loop.create_future()
        self._failures, self._away, self._full = 0, False, False
        #: Why the host is refused, or its watch fails for an unexpected reason; it is logged once.
        self._refusal: str | None = None
        #: Whether servers that were evacuated are being removed, and the evacuations that are handled.
        self._cleaning_up = False
        self._handled: Collection[str] = ()
        self.task = self._loop.create_task(self._run())

    async def _run(self) -> None:
        while True:
            began = self._loop.time()
            try:
                await self._follow()
            except Exception as error:  # noqa: BLE001 - it is logged, and the host is tried again
                if self._loop.time() - began > STEADY:
                    self._failures = 0
                self._failures += 1
                self._report(error)
            finally:
                self.watch.jobs.drop(self.name)
                self._cleaning_up = self._full = False
            longest = min(LONGEST, PAUSE * 2 ** (self._failures - 1)) if self._failures else PAUSE
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(longest * random.uniform(0.75, 1.0)):  # noqa: S311 - hosts take turns
                    await self.wake.wait()
            self.wake.clear()

    async def _follow(self) -> None:
        """Connect to the agent, set the host to up after its first heartbeat, and handle events until the connection
        ends."""
        watch, row = self.watch, self.conductor.states.rows.get(self.name)
        if row is None:
            return  # the next round stops this
        client = self.conductor.agents.make(row.endpoint)
        connection = self._connection = AgentConnection(client)
        self._up, self._handled = self._loop.create_future(), ()
        try:
            async with watch.opening:
                self.conductor.begin_settling()
                await connection.open(self.conductor.agents.shared_context)
                host = resource_of_answer(await connection.fetch("/v1/host", PATIENCE), "host")
            self._reported_name = self._reported_name or row.info.get("name")
            self._check(host)
            self._host = watch.shared(host)
            self._put(partial(self._save_first, connection, dict(self._host)))
            if self._refusal is None:  # otherwise a heartbeat must be right too
                await self._up
                self._be_back()
            await connection.follow(f"/v1/watch?interval={watch.interval}&events=server", watch.interval,
                                    self.on_event)
        finally:
            self._connection = None
            connection.close()

    def _save_first(self, connection: AgentConnection, host: Mapping[str, Any]) -> None:
        self.watch.save(self.name, host)
        self.watch.soon(self._end_cleanup, connection, ())

    def _report(self, error: Exception) -> None:
        """Save *error* as the reason why the host is not up. Log the same reason only once."""
        problem = f"{REFUSED if isinstance(error, HostRefused) else ''}{error}"[:500]
        self.watch.heartbeats.report_problem(self.name, problem)
        if not isinstance(error, (MagnetarError, DBAPIError, OSError)):
            if isinstance(error, HostRefused):
                self.conductor.states.set_refused(self.name, refused=True)
            if problem != self._refusal:
                self._log_refusal(error)
            self._refusal = problem
        elif not self._away:
            log.warning("host %s does not answer: %s", self.name, error, extra={"host": self.name})
        self._away = True

    def _log_refusal(self, error: Exception) -> None:
        if isinstance(error, HostRefused):
            log.error("host %s is refused: %s", self.name, error, extra={"host": self.name})
        else:
            log.error("host %s: its watch failed", self.name, exc_info=error, extra={"host": self.name})

    def _be_back(self) -> None:
        if self._away:
            self._away, self._refusal = False, None
            log.info("host %s answers again", self.name, extra={"host": self.name})

    def _accept(self, heartbeat: Any) -> bool:
        """Validate a heartbeat, and return whether the host properties in it are already saved. Raises ``HostRefused``
        for an invalid heartbeat."""
        is_saved = isinstance(heartbeat, dict) and self.watch.is_saved(self.name, heartbeat)
        if not is_saved or heartbeat.get("name") != self._reported_name or self.conductor.states.rules.reads_reports:
            self._check(heartbeat)  # what is saved was checked before
        return is_saved

    def _check(self, report: Any) -> None:
        """Raise ``HostRefused`` unless *report*, the host's properties from its agent, is valid. Store the reported
        host name for later checks."""
        check_host_report(self.name, report, self._reported_name, self.conductor.states.rows.keys())
        self._reported_name = report.get("name") or self._reported_name

    def _hear(self, heartbeat: Mapping[str, Any]) -> None:
        if not self._cleaning_up:
            report = json_text({key: heartbeat.get(key) for key in REPORT_FIELDS}) \
                if self.conductor.states.rules.reads_reports else None
            self.watch.heartbeats.add_heartbeat(self.name, report, self._handled)

    def be_up(self) -> None:
        """Set the host to up, after one of its heartbeats was written to the database."""
        self._handled = ()
        if not self._up.done():
            self.conductor.states.up(self.name, up=True)
            self._up.set_result(None)

    def start_evacuation_cleanup(self) -> None:
        """Begin to remove evacuated servers from the host. The host does not count as up until this is complete."""
        if self._cleaning_up or self._connection is None:
            return
        self._cleaning_up = True
        self._put(partial(self._complete_evacuations, self._connection, self._handled))

    def on_event(self, event: str, document: Mapping[str, Any]) -> None:
        """Handle an event of the agent. A heartbeat is handled immediately. A report about one server is passed to the
        running action of this server, if there is one and no job of the host is queued. Any other report of servers is
        handled by a job of the host: a function that runs in a thread after the host's earlier jobs."""
        watch = self.watch
        if event == "heartbeat":
            heartbeat = document.get("host") or {}  # without libvirt, a part of it is null
            is_saved = self._accept(heartbeat)
            self._be_back()
            self._hear(heartbeat)
            if not is_saved:
                self._host |= watch.shared({key: value for key, value in heartbeat.items() if value is not None})
                self._put(partial(watch.save, self.name, dict(self._host)))
        elif event == "server" and not document.get("password") and not watch.jobs.count(self.name) and (
                document.get("removed") or self.conductor.running_actions.tell_action(self.name, document)):
            return  # an action has it
        elif event in ("servers", "server"):
            self._put(partial(watch.handle, self.name, event, document))

    def _put(self, function: Callable[[], None]) -> None:
        """Queue *function*, which is called in a thread after the functions that were queued for the host before. If it
        fails, close the connection to the agent, because the next connection begins with a report of all servers."""
        connection, watch = self._connection, self.watch

        def job() -> None:
            try:
                function()
            except Exception as error:  # noqa: BLE001 - the watch of the host handles it
                watch.soon(self._fail, connection, error)
            if self._full and watch.jobs.count(self.name) < QUEUED // 2:
                watch.soon(self._go_on, connection)

        if watch.jobs.put(self.name, job) > QUEUED and not self._full and connection is not None:
            self._full = True
            connection.pause()

    def _go_on(self, connection: AgentConnection) -> None:
        if self._full and connection is self._connection:
            self._full = False
            connection.resume()

    def _fail(self, connection: AgentConnection | None, error: Exception) -> None:
        if connection is None or connection is not self._connection:
            return
        if self._up.done() or self._refusal is not None:
            connection.fail(error)
        else:
            self._up.set_exception(error)

    def _complete_evacuations(self, connection: AgentConnection, handled_before: Collection[str]) -> None:
        with self.conductor.agents.client(self.conductor.endpoint(self.name)) as client:
            handled = host_return.complete_evacuations(self.conductor, client, self.name, handled_before)
        self.watch.soon(self._end_cleanup, connection, handled)

    def _end_cleanup(self, connection: AgentConnection, handled: Collection[str]) -> None:
        if connection is self._connection:
            self._cleaning_up, self._handled = False, handled
            if self._refusal is None:
                self._hear(self._host)
