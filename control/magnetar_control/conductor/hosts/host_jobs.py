# SPDX-License-Identifier: GPL-3.0-or-later
"""Blocking work for hosts (databases, calls to agents), in a few threads that end when there is no work."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

log = logging.getLogger(__name__)
#: Most threads. A host has one at most, so one that hangs delays no other host.
MOST = 32
#: Seconds after which a thread without work ends.
IDLE = 5.0
Job = Callable[[], None]


class HostJobs:
    """A queue of jobs for each host, and the threads that run them. A job is a function without arguments that handles,
    for example, a report of the host. The jobs of one host run one after the other; the jobs of different hosts run in
    parallel."""

    def __init__(self, most: int = MOST, idle: float = IDLE) -> None:
        self._most, self._idle_time = most, idle
        self._changed = threading.Condition()
        #: The jobs of each host that has any. The first one may be running.
        self._jobs: dict[str, deque[Job]] = {}
        #: Hosts with jobs and without a thread, the longest waiting first.
        self._ready: deque[str] = deque()
        self._threads = self._idle = 0
        self._closed = False

    def put(self, host: str, job: Job) -> int:
        """Queue *job*, a function, for *host*. Return the number of jobs that the host has now, including *job*."""
        with self._changed:
            jobs = self._jobs.setdefault(host, deque())
            jobs.append(job)
            if len(jobs) == 1:
                self._ready.append(host)
                if self._idle >= len(self._ready):
                    self._changed.notify()
                elif self._threads < self._most and not self._closed:
                    self._threads += 1
                    threading.Thread(target=self._run, name="watch job", daemon=True).start()
            return len(jobs)

    def count(self, host: str) -> int:
        """Return the number of jobs of *host*, including the running one."""
        return len(self._jobs.get(host, ()))

    def drop(self, host: str) -> None:
        """Remove the queued jobs of *host* that have not begun."""
        with self._changed:
            jobs = self._jobs.get(host)
            if jobs is None:
                return
            if host in self._ready:
                self._ready.remove(host)
                del self._jobs[host]
            else:
                first = jobs[0]
                jobs.clear()
                jobs.append(first)

    def close(self) -> None:
        """End the worker threads after their current jobs."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while (host := self._next()) is not None:
            try:
                self._jobs[host][0]()
            except Exception:
                log.exception("host %s: its news was not handled", host, extra={"host": host})
            with self._changed:
                jobs = self._jobs[host]
                jobs.popleft()
                if jobs:
                    self._ready.append(host)
                else:
                    del self._jobs[host]

    def _next(self) -> str | None:
        with self._changed:
            if not self._ready and not self._closed:
                self._idle += 1
                self._changed.wait_for(lambda: self._ready or self._closed, self._idle_time)
                self._idle -= 1
            if self._ready and not self._closed:
                return self._ready.popleft()
            self._threads -= 1
            return None
