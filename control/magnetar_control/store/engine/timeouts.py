# SPDX-License-Identifier: GPL-3.0-or-later
"""Time limits for databases that hang: the machine answers on the network, the database does not.

``statement_timeout`` limits what a caller waits for. A ``CircuitBreaker`` per database remembers that it hangs, so that
callers who fail fast need not wait at all.
"""

from __future__ import annotations

import threading
import time
from contextvars import ContextVar

from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

#: A database hangs when so many statements of a process wait for it and it has answered none for so many seconds.
#: Seconds between two statements that are tried nevertheless, while few and while many wait.
MANY, SILENT, AGAIN = 8, 5.0, (1.0, 10.0)
#: Seconds for each statement, and whether a database that hangs is not asked at all.
_TIMEOUT: ContextVar[tuple[float, bool] | None] = ContextVar("statement_timeout", default=None)


class _Timeout:
    """Sets the context variable within its block."""

    __slots__ = ("token", "value")

    def __init__(self, seconds: float, refused: bool) -> None:
        self.value = seconds, refused

    def __enter__(self) -> None:
        self.token = _TIMEOUT.set(self.value)

    def __exit__(self, *_error: object) -> None:
        _TIMEOUT.reset(self.token)


def statement_timeout(seconds: float, *, refused: bool = True) -> _Timeout:
    """Give each PostgreSQL statement in the block *seconds* (``math.inf`` for no limit). *refused*: fail at once where
    the database hangs."""
    return _Timeout(seconds, refused)


def timeout_around(usual: float) -> tuple[float, bool]:
    """The seconds of the ``statement_timeout`` around the caller, *usual* without one; and whether the caller wants an
    error at once when the database hangs."""
    return _TIMEOUT.get() or (usual, False)


def current_timeout(usual: float) -> float:
    """The first of ``timeout_around``."""
    return timeout_around(usual)[0]


def fails_fast() -> bool:
    """The second of ``timeout_around``."""
    return timeout_around(0.0)[1]


class CircuitBreaker:
    """Whether a database hangs: a caller waited for it in vain and nobody was answered since, or many wait and none was
    answered lately. Then one statement is let through from time to time; its answer closes the circuit. In the ``with``
    block of it the database is asked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting, self._late = 0, False
        self._answered = self._tried = float("-inf")

    @property
    def hangs(self) -> bool:
        """Whether to wait for an answer would be in vain."""
        return self._late or (self._waiting >= MANY and time.monotonic() - self._answered > SILENT)

    def late(self) -> None:
        """A caller has waited for as long as it could."""
        self._late, self._tried = True, time.monotonic()

    def refuses(self) -> bool:
        """Whether no further statement may be tried now."""
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


def hangs(name: str) -> OperationalError:
    """The error for a database that hangs and is not asked."""
    return OperationalError("", {}, TimeoutError(f"database {name} does not answer, and is asked again in a moment"))
