# SPDX-License-Identifier: GPL-3.0-or-later
"""Failed logins, and how long whoever failed too often has to wait: kept in the store, so that all processes and their
successors know of them.

They are counted for an account from one address, for an account, and for an address. The first few cost nothing; from
then on each doubles the wait, up to a limit. What comes during a wait is refused unseen, and not counted.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, delete, select

from magnetar_control.store.database import INSERT, Database
from magnetar_core.connections import whole
from magnetar_core.errors import TooManyLogins

from .tables import login_failures

log = logging.getLogger("magnetar.audit")
#: Seconds after which a failure is forgotten.
FORGOTTEN = 3600.0


class Backoff(NamedTuple):
    """*free*: failures that cost nothing. *longest*: seconds of the longest wait."""

    free: int
    longest: float


#: Of an account from an address, of an account from anywhere, of an address. The last two have short waits: else
#: anybody could keep a user out, or everybody behind the same proxy.
LIMITS = (Backoff(5, 300), Backoff(50, 20), Backoff(100, 10))


def keys(account: str, address: str) -> tuple[str, ...]:
    """The names under which failures of *account* from *address* are counted, in the order of ``LIMITS``."""
    address = whole(address)
    texts = f"both {address} {account}", f"account {account}", f"address {address}"
    return tuple(hashlib.sha256(text.encode()).hexdigest() for text in texts)


_COUNTED = select(login_failures).where(login_failures.c.key.in_(bindparam("keys", expanding=True)))


class Attempt:
    """Somebody at *address* says a password or secret of an *account* at *moment* (seconds)."""

    def __init__(self, database: Database, account: str, address: str, moment: float) -> None:
        self.database, self.account, self.address, self.moment = database, account, address, moment
        self._counted = keys(account, address)

    def check(self, connection: Connection) -> bool:
        """As ``check_waits``."""
        return check_waits(connection, self._counted, self.moment)

    def failed(self, what: str = "login") -> None:
        """It was wrong."""
        self._note(f"{what} refused", note, self.moment)

    def succeeded(self, what: str = "login") -> None:
        """It was right, after failures."""
        self._note(f"{what} accepted, after failures", forget)

    def _note(self, how: str, do: Callable[..., None], *more: float) -> None:
        """Say it in the log, and keep it."""
        log.warning("%s", how, extra={"user": self.account[:255], "address": self.address})
        with self.database.write() as connection:
            do(connection, self._counted, *more)


def check_waits(connection: Connection, counted: Sequence[str], moment: float) -> bool:
    """Raises ``TooManyLogins`` while there is a wait at *moment* (seconds); else says whether there were failures."""
    rows = {row.key: row for row in connection.execute(_COUNTED, {"keys": list(counted)})}
    left = max((rows[key].last_at + _wait(rows[key].failures, limit) - moment
                for key, limit in zip(counted, LIMITS, strict=True) if key in rows), default=0)
    if left > 0:
        seconds = math.ceil(left)
        raise TooManyLogins(f"There were too many failed logins. Try again in {seconds} s.",
                            headers={"Retry-After": str(seconds)})
    return bool(rows)


def _wait(failures: int, limit: Backoff) -> float:
    """Seconds after the last failure."""
    over = failures - limit.free
    return 0.0 if over < 0 else min(2.0**min(over, 30), limit.longest)


def note(connection: Connection, counted: Sequence[str], moment: float) -> None:
    """One more has failed; those that are long past go."""
    connection.execute(delete(login_failures).where(login_failures.c.last_at < moment - FORGOTTEN))
    query = INSERT[connection.dialect.name](login_failures)
    query = query.on_conflict_do_update(index_elements=["key"], set_={
        "failures": login_failures.c.failures + 1, "last_at": query.excluded.last_at})
    connection.execute(query, [{"key": key, "failures": 1, "last_at": moment} for key in sorted(counted)])


def forget(connection: Connection, counted: Sequence[str]) -> None:
    """Somebody has logged in: the account's failures from that address are over."""
    connection.execute(delete(login_failures).where(login_failures.c.key == counted[0]))
