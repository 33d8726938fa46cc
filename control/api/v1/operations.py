# SPDX-License-Identifier: GPL-3.0-or-later
"""What takes longer than a caller waits: work in threads of this process, that can be asked for, waited for, cancelled.

What is asked of a server is in the queue of its cell and goes on whatever becomes of this process; an operation only
follows it, and asks for the next step when one is done. A client whose operation is gone asks for the same again, and
is told how that ended.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from magnetar_control.compute.caller import Caller
from magnetar_control.store.database import now
from magnetar_control.store.timeouts import statement_timeout
from magnetar_core.errors import Cancelled, MagnetarError, NotFound

from .errors import error_of

log = logging.getLogger(__name__)
RUNNING, SUCCEEDED, FAILED, CANCELLED = "running", "succeeded", "failed", "cancelled"
#: How many that have ended are kept.
KEPT = 1000
WORKERS = 64


class Operation:
    """One piece of work of a project."""

    def __init__(self, name: str, kind: str, key: str | None, caller: Caller) -> None:
        self.id, self.name, self.kind, self.key = str(uuid.uuid4()), name, kind, key
        self.request_id, self.project = caller.request_id, caller.project
        self._timeout = caller.settings.cell_timeout
        context = caller.context
        self.caller = f"{context.user_name or context.user_id}@{context.project_name or caller.project}"
        self.status, self.phase = RUNNING, "waiting"
        self.started_at, self.ended_at = now()[:19] + "Z", None
        self.result: Any = None
        self.error: MagnetarError | None = None
        self._cancelled, self._ended = threading.Event(), threading.Event()

    def check(self) -> None:
        """Raise ``Cancelled`` when somebody cancelled."""
        if self._cancelled.is_set():
            raise Cancelled("The operation was cancelled. What was asked of the cloud by then is done to its end.")

    def advance(self, phase: str) -> None:
        """Say what is done now."""
        self.check()
        self.phase = phase

    def cancel(self) -> None:
        """Stop before the next step."""
        self._cancelled.set()

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked it to stop."""
        return self._cancelled.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait at most so long; whether it has ended."""
        return self._ended.wait(seconds)

    def run(self, function: Callable[[Operation], Any]) -> None:
        """Do it; never raises."""
        try:
            self.check()
            with statement_timeout(self._timeout):
                self.result, status = function(self), SUCCEEDED
        except Cancelled as error:
            self.error, status = error, CANCELLED
        except Exception as error:  # noqa: BLE001 - whatever fails is its outcome
            self.error, status = error_of(error, self.request_id), FAILED
        self.ended_at = now()[:19] + "Z"  # type: ignore[assignment]
        self.status = status
        self._ended.set()

    def as_dict(self, outcome: bool = True) -> dict[str, Any]:
        """As the agents show operations."""
        shown = {
            "id": self.id, "name": self.name, "kind": self.kind, "key": self.key, "request_id": self.request_id,
            "caller": self.caller, "status": self.status,
            "cancelling": self._cancelled.is_set() and self.status == RUNNING,
            "progress": {"done": 0, "total": None, "unit": None, "phase": self.phase}, "started_at": self.started_at,
            "ended_at": self.ended_at, "error": self.error.as_dict() if self.error else None}
        return {**shown, "result": self.result} if outcome else shown


class Operations:
    """All of this process: those that run, and the last that ended."""

    def __init__(self, workers: int = WORKERS) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="v1")
        self._lock = threading.Lock()
        self._all: OrderedDict[str, Operation] = OrderedDict()

    def start(self, operation: Operation, function: Callable[[Operation], Any]) -> Operation:
        """Have it done in a thread."""
        with self._lock:
            self._all[operation.id] = operation
            for id in [id for id, one in self._all.items() if one.status != RUNNING][:max(0, len(self._all) - KEPT)]:
                del self._all[id]
        self._pool.submit(operation.run, function)
        return operation

    def close(self) -> None:
        """Take nothing more."""
        self._pool.shutdown(wait=False)

    def forget(self, operation: Operation) -> None:
        """Its caller has been told how it ended."""
        with self._lock:
            self._all.pop(operation.id, None)

    def mine(self, caller: Caller) -> list[Operation]:
        """Those of the caller's project, newest first."""
        with self._lock:
            return [one for one in reversed(self._all.values()) if one.project == caller.project]

    def get(self, caller: Caller, id: str) -> Operation:
        """One of the caller's project. Raises ``NotFound``."""
        found = self._all.get(id)
        if found is None or found.project != caller.project:
            raise NotFound(f"There is no operation {id[:80]!r}: it ended long ago, or another API service has it. Send "
                           "the request again to be told how it is.", kind="operation", key=id[:80])
        return found
