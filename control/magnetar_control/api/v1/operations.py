# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations: requests that may take longer than a client waits, and so run in threads of this process. Clients can
show operations, wait for them and cancel them. A server's actions are in the queue of its cell and continue even if
this process ends; an operation only follows them, and requests the next action when one is complete. A client whose
operation is lost sends the same request again, and gets the outcome."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from sqlalchemy.exc import DataError

from magnetar_control.compute.caller import Caller
from magnetar_control.store.engine.database import is_database_unreachable, is_disk_full
from magnetar_control.store.engine.timeouts import statement_timeout
from magnetar_control.web import Fault
from magnetar_core.errors import (
    Cancelled,
    Conflict,
    Forbidden,
    InvalidRequest,
    MagnetarError,
    NoSpace,
    NotFound,
    TooLarge,
    TooManyRequests,
    Unreachable,
)
from magnetar_core.operations import Operation, Operations

log = logging.getLogger(__name__)
T = TypeVar("T")
Function = Callable[[Operation], Any]
#: Limit of waiting operations of one project, and seconds after which a refused client may try again.
QUEUED, AGAIN = 1000, "10"
#: Limit of begun operations of one project that wait for servers or volumes. Several projects with such operations
#: share this limit, so the total may be a few times as high.
WAITING = 1000
#: Errors of the web server itself, by status.
FAULTS: Mapping[int, type[MagnetarError]] = {404: NotFound, 409: Conflict, 413: TooLarge, 503: Unreachable}


def error_of(error: Exception, request_id: str) -> MagnetarError:
    """Return the error for the client that corresponds to *error*. An unexpected error is logged with *request_id*, and
    the message for the client contains this id."""
    if isinstance(error, MagnetarError):
        return error
    if isinstance(error, Fault):
        return FAULTS.get(error.status, InvalidRequest if error.status < 500 else MagnetarError)(error.message)
    if isinstance(error, DataError):  # a number too large, a character that the database lacks
        log.warning("the database refused a value: %s", error.orig, extra={"request_id": request_id})
        return InvalidRequest("The database does not take a value of the request: "
                              f"{str(error.orig).splitlines()[0]}.")
    if is_disk_full(error):
        log.error("no room is left: %s", getattr(error, "orig", error), extra={"request_id": request_id})
        return NoSpace("A disk of the cloud is full: what is there can be read, and nothing written. An operator must "
                       "make room.")
    if is_database_unreachable(error):
        log.warning("the database failed: %s", getattr(error, "orig", error), extra={"request_id": request_id})
        return Unreachable("A database of the cloud does not answer. Try again in seconds; what was asked of the cloud "
                           "by then goes on.", headers={"Retry-After": "2"})
    log.error("unexpected failure", exc_info=error, extra={"request_id": request_id})
    return MagnetarError(f"The API failed; its log says why under {request_id}.")


class ProjectOperation(Operation):
    """An operation: the execution of one request of the v1 API, which may continue after the answer to the request is
    sent. The operation belongs to the project and the user of the request."""

    def __init__(self, name: str, kind: str, key: str | None, caller: Caller, subject: str | None = None) -> None:
        context, self._timeout = caller.context, caller.settings.cell_timeout
        self.user_id = context.user_id
        who = f"{context.user_name or context.user_id}@{context.project_name or caller.project}"
        super().__init__(name, kind, key, caller.request_id, who, caller.project, subject=subject)
        self._waits = False

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """In this context, do not count the operation as running, because it waits (for a server, a volume or a lock),
        so that another operation may run meanwhile. A nested context has no effect."""
        was_waiting, self._waits = self._waits, True
        try:
            with contextlib.nullcontext() if was_waiting else self.gives_way():
                yield
        finally:
            self._waits = was_waiting

    def raise_if_cancelled(self) -> None:
        if self.cancelling:
            raise Cancelled("The operation was cancelled. What was asked of the cloud by then is done to its end.")

    def run(self, function: Callable[[Operation], Any]) -> None:
        def within(operation: Operation) -> Any:
            try:
                with statement_timeout(self._timeout):
                    return function(operation)
            except Exception as error:  # noqa: BLE001 - whatever fails is its outcome
                raise error_of(error, str(self.request_id)) from None

        super().run(within)


def may_see(caller: Caller, operation: Operation) -> bool:
    """Return whether the caller may see the operation: it belongs to the caller's project, and if its result contains a
    secret, also to the caller's user."""
    mine = isinstance(operation, ProjectOperation) and operation.user_id == caller.context.user_id
    return operation.project == caller.project and (mine or not operation.private)


def check_may_cancel(caller: Caller, operation: Operation) -> None:
    """Raise ``Forbidden`` if the caller may not cancel the operation: another user has requested it, and the caller has
    only read permission in the project."""
    mine = isinstance(operation, ProjectOperation) and operation.user_id == caller.context.user_id
    if not mine and not caller.context.is_writer:
        raise Forbidden(f"You are not authorized to cancel operation {operation.id}: {operation.caller} asked for it, "
                        "and to cancel what others asked for needs the role member.")


class ProjectOperations(Operations):
    """The operations of all projects, with queues and a scheduler that is fair to projects.

    At most *workers* operations run in parallel, and of these at most *share* for one project. Further operations wait
    in queues, one for each project, with at most *queued* entries each. While an operation waits for servers or
    volumes, another one may run.
    """

    def __init__(self, workers: int, share: int, queued: int = sys.maxsize) -> None:
        super().__init__(workers + 10 * WAITING)  # threads; they start when they are needed
        self._free, self._share, self._most = workers, share, queued
        self._busy: Counter[str | None] = Counter()
        self._waiting: Counter[str | None] = Counter()
        self._queues: dict[str | None, deque[tuple[Operation, Function]]] = {}
        #: Operations that have waited. They continue when it is their turn, before new operations of their project.
        self._back: dict[str | None, deque[threading.Event]] = {}
        self._turns = threading.Lock()

    def begin(self, operation: Operation, function: Function, stream: bool = False) -> Operation:
        """Override ``Operations.begin``: start *operation* with *function*, or put it into the queue of its project,
        and return *operation*. Raises ``TooManyRequests`` if too many operations of the project are waiting."""
        with self._turns:
            waiting = len(self._queues.get(operation.project, ())) + self._waiting[operation.project]
        if waiting >= self._most:
            raise TooManyRequests(
                f"{waiting} operations of the project wait, for servers or for their turn, which is all that may at "
                "once. Ask again when some have ended.", headers={"Retry-After": AGAIN})
        if isinstance(operation, ProjectOperation):
            operation.gives_way = partial(self._not_counted, operation.project)
        return super().begin(operation, function, stream)

    def stop(self, operation: Operation) -> None:
        """Cancel the operation. An operation in the queue ends immediately."""
        operation.cancel()
        with self._turns:
            queue = self._queues.get(operation.project, deque())
            queued_work = [work for work in queue if work[0] is operation]
            for work in queued_work:
                _taken(self._queues, operation.project, work)
        for work in queued_work:
            self._run(*work)

    def _submit(self, operation: Operation, function: Function, stream: bool) -> None:
        with self._turns:
            self._queues.setdefault(operation.project, deque()).append((operation, function))
        self._next()

    def _next(self) -> None:
        """Start or continue waiting operations while there are free workers. Projects with the fewest running
        operations take precedence."""
        with self._turns:
            while self._free and (may := [name for name in {*self._back, *self._queues} if self._may(name)]):
                project = min(may, key=self._busy.__getitem__)
                self._free -= 1
                self._busy[project] += 1
                if project in self._back:
                    turn = self._back[project][0]
                    _taken(self._back, project, turn)
                    turn.set()
                else:
                    work = self._queues[project][0]
                    _taken(self._queues, project, work)
                    self._begun(project, work)

    def _may(self, project: str | None) -> bool:
        """Return whether one more operation of *project* may run now: a new one, or one that has waited for servers or
        volumes and continues. The number of the project's running operations is limited. A new operation must also wait
        while too many operations of the project wait for servers or volumes. *project*: ``None`` for operations without
        a project."""
        room = WAITING // len({*self._waiting, project})
        return self._busy[project] < self._share and (project in self._back or self._waiting[project] < room)

    def _begun(self, project: str | None, work: tuple[Operation, Function]) -> None:
        try:
            self._pool.submit(self._work, project, *work)
        except RuntimeError as error:
            if "start new thread" not in str(error):  # the process ends: no other operation begins
                self._ended_one(project)
                self._queues.clear()
            # Otherwise the system has no more threads, and the operation begins when a thread of this process is free.

    def _ended_one(self, project: str | None) -> None:
        self._free += 1
        _less(self._busy, project)

    @contextlib.contextmanager
    def _not_counted(self, project: str | None) -> Iterator[None]:
        """Do not count the operation that uses this context as running, because it waits for a server, a volume or a
        lock. Another operation can run meanwhile. At the end of the context, wait until the operation may run again.
        *project*: the project of the operation."""
        with self._turns:
            self._ended_one(project)
            self._waiting[project] += 1
        self._next()
        try:
            yield
        finally:
            turn = threading.Event()
            with self._turns:
                _less(self._waiting, project)
                self._back.setdefault(project, deque()).append(turn)
            self._next()
            turn.wait()

    def _work(self, project: str | None, operation: Operation, function: Function) -> None:
        try:
            self._run(operation, function)
        finally:
            with self._turns:
                self._ended_one(project)
            self._next()


def _taken(queues: dict[str | None, deque[T]], project: str | None, waiter: T) -> None:
    queues[project].remove(waiter)
    if not queues[project]:
        del queues[project]


def _less(counter: Counter[str | None], project: str | None) -> None:
    counter[project] -= 1
    if not counter[project]:
        del counter[project]
