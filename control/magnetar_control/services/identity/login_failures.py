# SPDX-License-Identifier: GPL-3.0-or-later
"""Failed logins, and how long whoever failed too often has to wait: kept in the store, so that all processes and their
successors know of them.

They are counted for an account from one address, for an account, and for an address. The first few cost nothing; from
then on each doubles the wait, up to a limit. What comes during a wait is refused unseen, and not counted.

An account that has logged in from an address lately waits for its own failures from there only: others, wherever they
are, do not keep it out.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, bindparam, delete, select

from magnetar_control.store.engine.database import INSERT, Database
from magnetar_core.errors import TooManyLogins
from magnetar_core.http.connections import whole

from .tables import login_failures

log = logging.getLogger("magnetar.audit")
#: Seconds after which a failure is forgotten.
FORGOTTEN = 3600.0
#: Seconds for which it is remembered that an account has logged in from an address, and after which that is noted anew.
REMEMBERED, RENEWED = 30 * 86400.0, 86400.0


class Backoff(NamedTuple):
    """*free*: failures that cost nothing. *longest*: seconds of the longest wait."""

    free: int
    longest: float


#: Of an account from an address, of an account from anywhere, of an address. The last two have short waits: else
#: anybody could keep a user out, or everybody behind the same proxy.
LIMITS = (Backoff(5, 300), Backoff(50, 20), Backoff(100, 10))


def keys(account: str, address: str) -> tuple[str, ...]:
    """The names under which failures of *account* from *address* are counted, in the order of ``LIMITS``, and the one
    under which it is noted that it has logged in from there (0 failures)."""
    address = whole(address)
    texts = f"both {address} {account}", f"account {account}", f"address {address}", f"known {address} {account}"
    return tuple(hashlib.sha256(text.encode()).hexdigest() for text in texts)


_COUNTED = select(login_failures).where(login_failures.c.key.in_(bindparam("keys", expanding=True)))


class Attempt:
    """Somebody at *address* says a password or secret of an *account* at *moment* (seconds)."""

    def __init__(self, database: Database, account: str, address: str, moment: float) -> None:
        self.database, self.account, self.address, self.moment = database, account, address, moment
        *self._counted, self._known = keys(account, address)
        #: Whether there were failures, and whether it has to be noted that the account logs in from here.
        self._failures, self._new = False, False

    def check(self, connection: Connection) -> None:
        """Raises ``TooManyLogins`` while there is a wait."""
        rows = {row.key: row for row in connection.execute(_COUNTED, {"keys": [*self._counted, self._known]})}
        known = rows.pop(self._known, None)
        age = math.inf if known is None else self.moment - known.last_at
        self._failures, self._new = bool(rows), age > RENEWED
        counted = self._counted[:1] if age < REMEMBERED else self._counted
        check_waits(rows, counted, self.moment)

    def failed(self, what: str = "login") -> None:
        """It was wrong."""
        self._log(f"{what} refused")
        with self.database.write() as connection:
            note(connection, self._counted, self.moment)

    def succeeded(self, what: str = "login") -> None:
        """It was right."""
        if self._failures:
            self._log(f"{what} accepted, after failures")
        if self._failures or self._new:
            with self.database.write() as connection:
                remember(connection, self._counted[0], self._known, self.moment)

    def _log(self, how: str) -> None:
        log.warning("%s", how, extra={"user": self.account[:255], "address": self.address})


def check_waits(rows: Mapping[str, Row[Any]], counted: Sequence[str], moment: float) -> None:
    """Raises ``TooManyLogins`` while there is a wait at *moment* (seconds) for one of the names *counted*."""
    left = max((rows[key].last_at + _wait(rows[key].failures, limit) - moment
                for key, limit in zip(counted, LIMITS, strict=False) if key in rows), default=0)
    if left > 0:
        seconds = math.ceil(left)
        raise TooManyLogins(f"There were too many failed logins. Try again in {seconds} s.",
                            headers={"Retry-After": str(seconds)})


def _wait(failures: int, limit: Backoff) -> float:
    """Seconds after the last failure."""
    over = failures - limit.free
    return 0.0 if over < 0 else min(2.0**min(over, 30), limit.longest)


def note(connection: Connection, counted: Sequence[str], moment: float) -> None:
    """Count one more failure; remove those that are long past."""
    at, failures = login_failures.c.last_at, login_failures.c.failures
    connection.execute(delete(login_failures).where(
        ((at < moment - FORGOTTEN) & (failures > 0)) | (at < moment - REMEMBERED)))
    query = INSERT[connection.dialect.name](login_failures)
    query = query.on_conflict_do_update(index_elements=["key"], set_={
        "failures": failures + 1, "last_at": query.excluded.last_at})
    connection.execute(query, [{"key": key, "failures": 1, "last_at": moment} for key in sorted(counted)])


def remember(connection: Connection, failed: str, known: str, moment: float) -> None:
    """Note that an account has logged in from an address: its failures from there (*failed*) are over."""
    connection.execute(delete(login_failures).where(login_failures.c.key == failed))
    query = INSERT[connection.dialect.name](login_failures)
    query = query.on_conflict_do_update(index_elements=["key"], set_={"last_at": query.excluded.last_at})
    connection.execute(query, [{"key": known, "failures": 0, "last_at": moment}])
