# SPDX-License-Identifier: GPL-3.0-or-later
"""A database that hangs: its machine is there, and nothing is answered. Nobody waits for it longer than he can."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Generator, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import psycopg
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

T = TypeVar("T")
#: Statements of a process that are on their way to a database that has said nothing for so many seconds, until it
#: counts as hanging; seconds between two that are let through nevertheless, while few and while many are on their way.
MANY, SILENT, AGAIN = 8, 5.0, (1.0, 10.0)
#: What ``limited`` says: seconds for each statement, and whether a database that hangs is not asked at all.
_LIMITED: ContextVar[tuple[float, bool] | None] = ContextVar("limited", default=None)


@contextlib.contextmanager
def limited(seconds: float, *, refused: bool = True) -> Iterator[None]:
    """Within, PostgreSQL has *seconds* for each statement, and a database that hangs is not asked (*refused*): whoever
    has so little time gets an error at once. ``math.inf`` for what may take long."""
    token = _LIMITED.set((seconds, refused))
    try:
        yield
    finally:
        _LIMITED.reset(token)


def limit_now(usual: float) -> float:
    """The seconds of ``limited``; *usual* outside of it."""
    found = _LIMITED.get()
    return usual if found is None else found[0]


def in_haste() -> bool:
    """Whether whoever asks now would rather be refused than wait for a database that hangs; see ``limited``."""
    found = _LIMITED.get()
    return found is not None and found[1]


class Pulse:
    """Whether a database answers. It hangs when one who waited was late and nobody was answered since, or when many
    wait and none was answered lately. Then one is let through from time to time, whose answer ends it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._going, self._late = 0, False
        self._heard = self._tried = float("-inf")

    @property
    def hangs(self) -> bool:
        """Whether to wait for an answer would be in vain."""
        return self._late or (self._going >= MANY and time.monotonic() - self._heard > SILENT)

    def late(self) -> None:
        """Somebody has waited for as long as he could."""
        self._late, self._tried = True, time.monotonic()

    def refuses(self) -> bool:
        """Whether one more must not be asked now."""
        with self._lock:
            if not self.hangs:
                return False
            if time.monotonic() - self._tried < AGAIN[self._going >= MANY]:
                return True
            self._tried = time.monotonic()
            return False

    @contextlib.contextmanager
    def felt(self) -> Iterator[None]:
        """Something is asked within."""
        with self._lock:
            if not self._going:
                self._heard = time.monotonic()
            self._going += 1
        answered = True
        try:
            yield
        except (DBAPIError, PoolTimeout):
            answered = False
            raise
        finally:
            with self._lock:
                self._going -= 1
                if answered:
                    self._late, self._heard = False, time.monotonic()


class Hangs(psycopg.OperationalError):
    """The database has not answered in time."""


def hangs(name: str) -> OperationalError:
    """What is raised in place of asking a database that hangs."""
    return OperationalError("", {}, Hangs(f"database {name} does not answer, and is asked again in a moment"))


class LimitedConnection(psycopg.Connection[Any]):
    """Gives itself up when a statement takes longer than its limit: the server may be stopped with its kernel well."""

    limit = math.inf
    pulse: Pulse

    def wait(self, gen: Generator[Any, Any, T], *how: Any, **more: Any) -> T:
        """See psycopg."""
        seconds, refused = _LIMITED.get() or (self.limit, False)
        return super().wait(gen if seconds == math.inf else self._until(gen, seconds, refused), *how, **more)

    def _until(self, gen: Generator[Any, Any, T], seconds: float, refused: bool) -> Generator[Any, Any, T]:
        """*gen*, which is told every 0.1 s that nothing has come. Who would be *refused* now does not wait on."""
        began = time.monotonic()
        try:
            asked = next(gen)
            while True:
                ready = yield asked
                waited = 0.0 if ready else time.monotonic() - began
                if waited > seconds or (refused and waited > SILENT and self.pulse.hangs):
                    self.pulse.late()
                    gen.close()
                    self.pgconn.finish()
                    raise Hangs(f"no answer within {min(seconds, waited):.1f} s")
                asked = gen.send(ready)
        except StopIteration as end:
            return cast("T", end.value)
