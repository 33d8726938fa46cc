# SPDX-License-Identifier: GPL-3.0-or-later
"""Time limits for databases that hang: the machine is reachable on the network, but the database does not answer.

``statement_timeout`` limits how long a caller waits. A ``CircuitBreaker`` for each database records that the database
hangs, so that callers that must fail fast do not wait at all.
"""

from __future__ import annotations

import threading
import time
from contextvars import ContextVar

from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

#: A database hangs when ``MANY`` statements of a process wait and none was answered for ``SILENT`` seconds. ``AGAIN``:
#: seconds between two statements that are tried nevertheless, while few and while many wait.
MANY, SILENT, AGAIN = 8, 5.0, (1.0, 10.0)
#: Seconds for each statement, and whether to fail without a query to a database that hangs.
_TIMEOUT: ContextVar[tuple[float, bool] | None] = ContextVar("statement_timeout", default=None)


class _Timeout:
    """The context manager that ``statement_timeout`` returns."""

    __slots__ = ("token", "value")

    def __init__(self, seconds: float, refused: bool) -> None:
        self.value = seconds, refused

    def __enter__(self) -> None:
        self.token = _TIMEOUT.set(self.value)

    def __exit__(self, *_error: object) -> None:
        _TIMEOUT.reset(self.token)


def statement_timeout(seconds: float, *, refused: bool = True) -> _Timeout:
    """Limit each PostgreSQL statement in the ``with`` block to *seconds* (``math.inf``: no limit). *refused*: whether
    statements fail immediately, without waiting, while the database hangs."""
    return _Timeout(seconds, refused)


def timeout_around(usual: float) -> tuple[float, bool]:
    """Return (seconds, whether statements fail immediately while the database hangs) of the ``statement_timeout`` block
    that the caller is in. Outside of such a block, return *usual* and false."""
    return _TIMEOUT.get() or (usual, False)


def current_timeout(usual: float) -> float:
    """Return the seconds of the ``statement_timeout`` block that the caller is in, or *usual* outside of such a block.
    """
    return timeout_around(usual)[0]


def fails_fast() -> bool:
    """Return whether the caller is in a ``statement_timeout`` block that makes statements fail immediately while the
    database hangs."""
    return timeout_around(0.0)[1]


class CircuitBreaker:
    """A circuit breaker for one database. Each query runs in a ``with`` block of the circuit breaker.

    The database counts as hanging from the timeout of a query until the database answers any query. It also counts as
    hanging while ``MANY`` queries wait and it has answered none for ``SILENT`` seconds. During this state, ``refuses``
    allows one query from time to time, so that an answer can end the state.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting, self._late = 0, False
        self._answered = self._tried = float("-inf")

    @property
    def hangs(self) -> bool:
        """Whether the database counts as hanging."""
        return self._late or (self._waiting >= MANY and time.monotonic() - self._answered > SILENT)

    def late(self) -> None:
        """Record that a query has timed out."""
        self._late, self._tried = True, time.monotonic()

    def refuses(self) -> bool:
        """Return whether the caller must not send a query now, because the database hangs. From time to time, return
        false for one caller, whose query tests the database."""
        with self._lock:
            if not self.hangs:
                return False
            if time.monotonic() - self._tried < AGAIN[self._waiting >= MANY]:
                return True
            self._tried = time.monotonic()
            return False

    def __enter__(self) -> None:
        with self._lock:
            if not self._waiting:
                self._answered = time.monotonic()
            self._waiting += 1

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        with self._lock:
            self._waiting -= 1
            if not isinstance(error, DBAPIError | PoolTimeout):
                self._late, self._answered = False, time.monotonic()


def hanging_database_error(name: str) -> OperationalError:
    """Return the error to raise in place of a query while the database *name* hangs."""
    return OperationalError("", {}, TimeoutError(f"database {name} does not answer, and is asked again in a moment"))
