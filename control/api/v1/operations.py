# SPDX-License-Identifier: GPL-3.0-or-later
"""What takes longer than a caller waits: work in threads of this process, that can be asked for, waited for, cancelled.

What is asked of a server is in the queue of its cell and goes on whatever becomes of this process; an operation only
follows it, and asks for the next step when one is done. A client whose operation is gone asks for the same again, and
is told how that ended.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy.exc import DataError

from magnetar_control.compute.caller import Caller
from magnetar_control.store.database import away, full
from magnetar_control.store.timeouts import statement_timeout
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
Function = Callable[[Operation], Any]
#: Operations of one project that may wait for those before them, and seconds after which who is refused may ask again.
QUEUED, AGAIN = 1000, "10"
#: What the web server itself refuses, by its status.
FAULTS: Mapping[int, type[MagnetarError]] = {404: NotFound, 409: Conflict, 413: TooLarge, 503: Unreachable}


def error_of(error: Exception, request_id: str) -> MagnetarError:
    """The core's error for whatever was raised. What is not expected is logged under the request's id, and says so."""
    if isinstance(error, MagnetarError):
        return error
    if isinstance(error, Fault):
        return FAULTS.get(error.status, InvalidRequest if error.status < 500 else MagnetarError)(error.message)
    if isinstance(error, DataError):  # a number too large, a sign that the database has not
        log.warning("the database refused a value: %s", error.orig, extra={"request_id": request_id})
        return InvalidRequest("The database does not take a value of the request: "
                              f"{str(error.orig).splitlines()[0]}.")
    if full(error):
        log.error("no room is left: %s", getattr(error, "orig", error), extra={"request_id": request_id})
        return NoSpace("A disk of the cloud is full: what is there can be read, and nothing written. An operator must "
                       "make room.")
    if away(error):
        log.warning("the database failed: %s", getattr(error, "orig", error), extra={"request_id": request_id})
        return Unreachable("A database of the cloud does not answer. Try again in seconds; what was asked of the cloud "
                           "by then goes on.")
    log.error("unexpected failure", exc_info=error, extra={"request_id": request_id})
    return MagnetarError(f"The API failed; its log says why under {request_id}.")


class ProjectOperation(Operation):
    """One piece of work of a project."""

    def __init__(self, name: str, kind: str, key: str | None, caller: Caller) -> None:
        context, self._timeout = caller.context, caller.settings.cell_timeout
        self.user_id = context.user_id
        who = f"{context.user_name or context.user_id}@{context.project_name or caller.project}"
        super().__init__(name, kind, key, caller.request_id, who, caller.project)

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


def check_may_cancel(caller: Caller, operation: Operation) -> None:
    """Raises ``Forbidden`` for who may only read what others do in the project."""
    mine = isinstance(operation, ProjectOperation) and operation.user_id == caller.context.user_id
    if not mine and not caller.context.is_writer:
        raise Forbidden(f"You are not authorized to cancel operation {operation.id}: {operation.caller} asked for it, "
                        "and to cancel what others asked for needs the role member.")


class ProjectOperations(Operations):
    """Operations of all projects in *workers* threads, of which one project has *share* at most. More of them wait in a
    queue for each project, where they hold no thread: *queued* at most."""

    def __init__(self, workers: int, share: int, queued: int = sys.maxsize) -> None:
        super().__init__(workers)
        self._free, self._share, self._most = workers, share, queued
        self._busy: Counter[str | None] = Counter()
        self._queues: dict[str | None, deque[tuple[Operation, Function]]] = {}
        self._turns = threading.Lock()

    def begin(self, operation: Operation, function: Function, stream: bool = False) -> Operation:
        """See ``Operations``. Raises ``TooManyRequests``."""
        waiting = len(self._queues.get(operation.project, ()))
        if waiting >= self._most:
            raise TooManyRequests(
                f"The project has {self._share} operations under way, which is all that one may have at once, and "
                f"{waiting} more that wait. Ask again when some have ended.", headers={"Retry-After": AGAIN})
        return super().begin(operation, function, stream)

    def stop(self, operation: Operation) -> None:
        """Cancel it; one that still waits ends at once."""
        operation.cancel()
        with self._turns:
            queue = self._queues.get(operation.project, deque())
            found = [one for one in queue if one[0] is operation]
            for one in found:
                self._taken(operation.project, one)
        for one in found:
            self._run(*one)

    def _submit(self, operation: Operation, function: Function, stream: bool) -> None:
        with self._turns:
            self._queues.setdefault(operation.project, deque()).append((operation, function))
        self._next()

    def _next(self) -> None:
        """Give free threads to those that wait, projects with the least under way first."""
        with self._turns:
            while self._free and (may := [name for name in self._queues if self._busy[name] < self._share]):
                project = min(may, key=self._busy.__getitem__)
                one = self._queues[project][0]
                self._taken(project, one)
                self._free -= 1
                self._busy[project] += 1
                self._pool.submit(self._work, project, *one)

    def _taken(self, project: str | None, one: tuple[Operation, Function]) -> None:
        self._queues[project].remove(one)
        if not self._queues[project]:
            del self._queues[project]

    def _work(self, project: str | None, operation: Operation, function: Function) -> None:
        try:
            self._run(operation, function)
        finally:
            with self._turns:
                self._free += 1
                self._busy[project] -= 1
                if not self._busy[project]:
                    del self._busy[project]
            with contextlib.suppress(RuntimeError):  # the process ends
                self._next()
