# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations: work that may take longer than its caller waits, with progress and cancellation. The caller can fetch the
outcome later.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime, timezone
from typing import Any, Optional

from .errors import Cancelled, Conflict, HypervisorDown, MagnetarError, NotFound, mask_unforeseen_error

log = logging.getLogger(__name__)

RUNNING, SUCCEEDED, FAILED, CANCELLED = "running", "succeeded", "failed", "cancelled"
MOST_ENDED = 1000
#: Number of clients that may send content at the same time; further ones wait, unread.
STREAMS = 8
#: Number of operations that may wait for other work in addition to the running ones.
WAITING = 256
#: The operation that the current thread runs.
CURRENT: contextvars.ContextVar[Optional[Operation]] = contextvars.ContextVar("operation", default=None)


def utc_timestamp() -> str:
    """Return the current time in the format of the API: ISO 8601, UTC, whole seconds."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class Operation:
    """Work that a request started and that may take long, with its progress and outcome. It can be cancelled when its
    function calls ``advance`` or ``raise_if_cancelled``.

    *status*: ``running``, ``succeeded``, ``failed`` or ``cancelled``. *progress*: ``{done, total, unit, phase}``;
    *total* is ``None`` while it is unknown. *result*: the return value of the function. *error*: ``{code, message,
    details}``. *name*: the kind of work. *kind*, *key*: the type and the key of the resource. *project*: the project in
    a cloud. *cloud*: whether a cloud sent the request to the agent. *subject*: the name of the resource that an event
    creates, such as an image.
    """

    def __init__(self, name: str, kind: Optional[str] = None, key: Optional[str] = None,
                 request_id: Optional[str] = None, caller: Optional[str] = None, project: Optional[str] = None,
                 cloud: bool = False, subject: Optional[str] = None) -> None:
        self.id = str(uuid.uuid4())
        self.name, self.kind, self.key, self.request_id, self.caller = name, kind, key, request_id, caller
        self.project, self.cloud, self.subject = project, cloud, subject
        self.status = RUNNING
        self.progress: dict[str, Any] = {"done": 0, "total": None, "unit": None, "phase": None}
        self.started_at = utc_timestamp()
        self.ended_at: Optional[str] = None
        self.seconds = 0.0
        self.result: Any = None
        self.error: Optional[dict[str, Any]] = None
        #: The exception of the function; the HTTP layer raises it again for a caller that waited.
        self.exception: Optional[Exception] = None
        #: Inputs that only the work needs and that are not stored (``fields.Field.stored``).
        self.given: dict[str, Any] = {}
        #: Whether the operation stays in the list after its end.
        self.listed = True
        #: Whether, in a cloud, only the user who requested it may see it, because its result has a secret.
        self.private = False
        self._waits = False
        self._began = time.perf_counter()
        self._cancelled = threading.Event()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._then: list[Callable[[Operation], None]] = []
        #: Lets other work run while this one waits; set by the pool that runs it.
        self.gives_way: Callable[[], AbstractContextManager[None]] = nullcontext

    def advance(self, done: int, total: Optional[int] = None, unit: str = "bytes", phase: Optional[str] = None) -> None:
        """Record that *done* of *total* (``None``: unknown) is done, in *unit*. *phase*: a name of the current phase
        (default: unchanged). Raises ``Cancelled`` if the operation was cancelled.
        """
        self.raise_if_cancelled()
        self.progress = {"done": done, "total": total, "unit": unit, "phase": phase or self.progress["phase"]}

    def raise_if_cancelled(self) -> None:
        """Raise ``Cancelled`` if a cancellation was requested."""
        if self._cancelled.is_set():
            raise Cancelled

    def cancel(self) -> None:
        """Request that the work stops at its next call of ``advance`` or ``raise_if_cancelled``. No effect after the
        end of the work.
        """
        self._cancelled.set()

    @property
    def cancelling(self) -> bool:
        """Return whether a cancellation was requested."""
        return self._cancelled.is_set()

    def waiting(self) -> AbstractContextManager[None]:
        """Return a context manager. Inside the context the operation only waits for other work, so another operation
        may run in its place. Nested contexts have no effect.
        """
        return nullcontext() if self._waits else self._waiting()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._waits = True
        try:
            with self.gives_way():
                yield
        finally:
            self._waits = False

    def forget(self) -> None:
        """Delete the result after the caller has received it, to save memory: the result of a batch may be large."""
        self.result = None

    def wait(self, seconds: Optional[float]) -> bool:
        """Wait until the work has ended, at most *seconds* (``None``: no limit). Return whether it has ended."""
        return self._ended.wait(seconds)

    def then(self, listener: Callable[[Operation], None]) -> None:
        """Call *listener* with the operation when it has ended, in the operation's thread; immediately if it has ended
        already.
        """
        with self._lock:
            if not self._ended.is_set():
                self._then.append(listener)
                return
        listener(self)

    def as_dict(self, outcome: bool = True) -> dict[str, Any]:
        """Return the operation as the API reports it. *outcome*: whether to include the result."""
        shown = {
            "id": self.id, "name": self.name, "kind": self.kind, "key": self.key, "subject": self.subject,
            "request_id": self.request_id, "caller": self.caller, "status": self.status,
            "cancelling": self.cancelling and self.status == RUNNING,
            "progress": self.progress, "started_at": self.started_at, "ended_at": self.ended_at, "error": self.error,
        }
        if outcome:
            shown["result"] = _plain(self.result)
        return shown

    def run(self, function: Callable[[Operation], Any]) -> None:
        """Run *function* with the operation in the current thread, and record its result or error. Never raises."""
        token = CURRENT.set(self)
        try:
            self.raise_if_cancelled()
            self.result = function(self)
            status = SUCCEEDED
        except Cancelled as error:
            self.exception, self.error, status = error, error.as_dict(), CANCELLED
        except MagnetarError as error:
            self.exception, self.error, status = error, error.as_dict(), FAILED
        except Exception as error:  # the caller gets an answer, the log gets the trace
            log.exception("%s failed", self.name, extra={"request_id": self.request_id, "operation": self.id})
            self.exception, self.error, status = error, mask_unforeseen_error(error).as_dict(), FAILED
        finally:
            CURRENT.reset(token)
        self._end(status)

    def _end(self, status: str) -> None:
        self.seconds = time.perf_counter() - self._began
        self.given = {}
        self.ended_at = utc_timestamp()
        with self._lock:
            self.status = status
            self._ended.set()
            listeners, self._then = self._then, []
        for listener in listeners:
            _call_listener(listener, self)


class Operations:
    """The operations of an agent: at most *workers* that run at the same time, and the last *max_ended* that have
    ended. While operations only wait for other work (``Operation.waiting``), up to ``WAITING`` further ones run in
    their place. *threads*: a thread pool to use instead of new ones.
    """

    def __init__(self, workers: int, max_ended: int = MOST_ENDED, threads: Optional[ThreadPoolExecutor] = None) -> None:
        self._shared = threads is not None
        self._pool = threads or ThreadPoolExecutor(workers + WAITING, thread_name_prefix="operation")
        self._places, self._waiting_places = workers, threading.BoundedSemaphore(WAITING)
        #: Operations that wait for a free place.
        self._queue: deque[tuple[Operation, Callable[[Operation], Any]]] = deque()
        self._streams = threads or ThreadPoolExecutor(STREAMS, thread_name_prefix="stream")
        self._running: OrderedDict[str, Operation] = OrderedDict()
        self._ended: OrderedDict[str, Operation] = OrderedDict()
        self._max_ended = max_ended
        self._lock = threading.Lock()
        self._listeners: list[Callable[[Operation], None]] = []
        self._closed = self._given_up = False

    def start(self, name: str, function: Callable[[Operation], Any], stream: bool = False, **labels: Any) -> Operation:
        """Start *function* in a thread with a new operation as its argument, and return the operation. *labels*:
        further arguments of ``Operation``, such as ``kind``, ``key``, ``request_id``, ``caller``.

        If all workers are busy, the operation waits, with the phase ``waiting``. *stream*: the function receives an
        upload at the speed of the client, so it runs in a separate thread pool and delays no other work.
        """
        return self.begin(Operation(name, **labels), function, stream)

    def begin(self, operation: Operation, function: Callable[[Operation], Any], stream: bool = False) -> Operation:
        """Start *function* in a thread with the existing *operation* as its argument, and return the operation.
        *stream*: as in ``start``. Raises ``HypervisorDown`` after ``close``.
        """
        operation.progress["phase"] = "waiting"
        with self._lock:
            if self._closed:
                raise HypervisorDown("The agent is shutting down and takes no new work. Try again when it is back.")
            self._running[operation.id] = operation
        self._submit(operation, function, stream)
        return operation

    def _submit(self, operation: Operation, function: Callable[[Operation], Any], stream: bool) -> None:
        if stream:
            self._streams.submit(self._run, operation, function)
            return
        operation.gives_way = self._lending_place
        with self._lock:
            self._queue.append((operation, function))
        self._begin_next()

    def _begin_next(self, freed: int = 0) -> None:
        """Add *freed* (may be negative) to the number of free worker slots, and start queued operations in the free
        slots.
        """
        with self._lock:
            self._places += freed
            while self._places > 0 and self._queue and not self._given_up:
                self._places -= 1
                self._pool.submit(self._in_place, *self._queue.popleft())

    def _in_place(self, operation: Operation, function: Callable[[Operation], Any]) -> None:
        try:
            self._run(operation, function)
        finally:
            self._begin_next(1)

    @contextmanager
    def _lending_place(self) -> Iterator[None]:
        """Inside the context, let a queued operation run in addition to the calling operation, which only waits. No
        effect if ``WAITING`` operations do so already. After the context, the calling operation continues without
        delay, even if all workers are busy.
        """
        gives = self._waiting_places.acquire(blocking=False)
        if gives:
            self._begin_next(1)
        try:
            yield
        finally:
            if gives:
                self._begin_next(-1)
                self._waiting_places.release()

    def _run(self, operation: Operation, function: Callable[[Operation], Any]) -> None:
        operation.progress = dict(operation.progress, phase=None)
        operation.then(self._file)
        operation.run(function)

    def _file(self, operation: Operation) -> None:
        with self._lock:
            self._running.pop(operation.id, None)
            if operation.listed:
                self._ended[operation.id] = operation
            while len(self._ended) > self._max_ended:
                self._ended.popitem(last=False)
            listeners = tuple(self._listeners)
        for listener in listeners:
            _call_listener(listener, operation)

    def forget(self, operation: Operation) -> None:
        """Remove *operation*, which has ended, from the list of operations, after its caller has received the result.
        """
        with self._lock:
            operation.listed = False
            self._ended.pop(operation.id, None)

    def get(self, id: str) -> Operation:
        """Return the operation *id*. Raises ``NotFound``."""
        with self._lock:
            operation = self._running.get(id) or self._ended.get(id)
        if operation is None:
            raise NotFound(f"There is no operation {id}. The agent keeps those that run and the last "
                           f"{self._max_ended} that ended since it started; look at the resource itself.",
                           kind="operation", key=id)
        return operation

    def list(self) -> list[Operation]:
        """Return all running operations and the last ended ones, oldest first."""
        with self._lock:
            return [*self._ended.values(), *self._running.values()]

    def running(self) -> int:
        """Return the number of operations that have not ended."""
        return len(self._running)

    def cancel(self, id: str) -> Operation:
        """Request the cancellation of the operation *id*, and return the operation. Raises ``Conflict`` if it has
        already succeeded or failed.
        """
        operation = self.get(id)
        if operation.status in (SUCCEEDED, FAILED):
            raise Conflict(f"Operation {id} has {operation.status} already; nothing is left to cancel.", id=id)
        operation.cancel()
        return operation

    def listen(self, listener: Callable[[Operation], None]) -> Callable[[], None]:
        """Call *listener* with each operation when it has ended, in the operation's thread. Return a function without
        parameters that removes the listener.
        """
        with self._lock:
            self._listeners.append(listener)

        def stop() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return stop

    def close(self, grace: float = 0.0) -> None:
        """Refuse new operations, and wait *grace* seconds for the running ones. Then cancel those that still run, and
        wait *grace* seconds again, at least 1 s. A second call does not wait again for operations that are still
        running.
        """
        with self._lock:
            self._closed = True
            unfinished = [] if self._given_up else list(self._running.values())
        _wait_all(unfinished, grace)
        for operation in unfinished:
            operation.cancel()
        _wait_all(unfinished, max(grace, 1.0))
        with self._lock:
            self._given_up = True
        if not self._shared:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._streams.shutdown(wait=False, cancel_futures=True)


def _wait_all(operations: list[Operation], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for operation in operations:
        operation.wait(max(0.0, deadline - time.monotonic()))


def _plain(result: Any) -> Any:
    return result.as_dict() if hasattr(result, "as_dict") else result


def _call_listener(listener: Callable[[Operation], None], operation: Operation) -> None:
    try:
        listener(operation)
    except Exception:  # a listener's error must not fail the operation
        log.exception("a listener failed", extra={"operation": operation.id})
