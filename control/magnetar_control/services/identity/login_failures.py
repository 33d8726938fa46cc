# SPDX-License-Identifier: GPL-3.0-or-later
"""Failed logins, and the waiting times after too many of them. They are stored in the database: all processes know
about them, also after a restart.

Failures are counted for an account from one address, for an account, and for an address. The first few have no effect;
then each one doubles the wait, up to a limit. Logins during a wait are refused without a check, and not counted.

If an account has recently logged in from an address, only its own failures from that address make it wait there:
failures elsewhere do not keep the user out.
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
from magnetar_core.http.connections import counted_address

from .tables import login_failures

log = logging.getLogger("magnetar.audit")
#: Seconds after which a failure is forgotten.
FORGOTTEN = 3600.0
#: Seconds that an account's login from an address is remembered, and after which the record is renewed.
REMEMBERED, RENEWED = 30 * 86400.0, 86400.0


class Backoff(NamedTuple):
    """A rule for the wait after failed logins. ``free``: the number of failures that cause no wait. ``longest``: the
    longest wait in seconds."""

    free: int
    longest: float


#: Limits for an account from an address, an account from anywhere, and an address. The last two have short waits:
#: otherwise an attacker could keep a user out, or all users behind the same proxy.
LIMITS = (Backoff(5, 300), Backoff(50, 20), Backoff(100, 10))


def failure_keys(account: str, address: str) -> tuple[str, ...]:
    """Return the keys of four rows. Three rows count failed logins, in the order of ``LIMITS``: logins of *account*
    from *address*, all logins of *account*, and all logins from *address*. The fourth row has the last successful login
    of *account* from *address*."""
    address = counted_address(address)
    texts = f"both {address} {account}", f"account {account}", f"address {address}", f"known {address} {account}"
    return tuple(hashlib.sha256(text.encode()).hexdigest() for text in texts)


_COUNTED = select(login_failures).where(login_failures.c.key.in_(bindparam("keys", expanding=True)))


class CredentialCheck:
    """One check of a password or secret of *account*, with the counting of failures. *address*: the client's IP
    address. *moment*: the present time in seconds since the epoch."""

    def __init__(self, database: Database, account: str, address: str, moment: float) -> None:
        self.database, self.account, self.address, self.moment = database, account, address, moment
        *self._counted, self._known = failure_keys(account, address)
        #: Whether there were failures, and whether a login from this address must be recorded.
        self._failures, self._new = False, False

    def check(self, connection: Connection) -> None:
        """Raise ``TooManyLogins`` if the account or the address must still wait because of earlier failures."""
        rows = {row.key: row for row in connection.execute(_COUNTED, {"keys": [*self._counted, self._known]})}
        login_row = rows.pop(self._known, None)
        age = math.inf if login_row is None else self.moment - login_row.last_at
        self._failures, self._new = bool(rows), age > RENEWED
        counted = self._counted[:1] if age < REMEMBERED else self._counted
        check_waits(rows, counted, self.moment)

    def failed(self, event: str = "login") -> None:
        """Count a failure, because the password or secret was wrong. *event*: the name of the event for the log."""
        self._log(f"{event} refused")
        with self.database.write() as connection:
            count_login_failure(connection, self._counted, self.moment)

    def succeeded(self, event: str = "login") -> None:
        """Record a success, because the password or secret was right. *event*: the name of the event for the log."""
        if self._failures:
            self._log(f"{event} accepted, after failures")
        if self._failures or self._new:
            with self.database.write() as connection:
                remember_login(connection, self._counted[0], self._known, self.moment)

    def _log(self, how: str) -> None:
        log.warning("%s", how, extra={"user": self.account[:255], "address": self.address})


def check_waits(rows: Mapping[str, Row[Any]], counted: Sequence[str], moment: float) -> None:
    """Raise ``TooManyLogins`` if, at *moment* (seconds since the epoch), the wait after failed logins is not over for
    one of the keys *counted* (from ``failure_keys``). *rows*: {key: row with the number of failures}."""
    remaining = max((rows[key].last_at + _wait(rows[key].failures, limit) - moment
                     for key, limit in zip(counted, LIMITS, strict=False) if key in rows), default=0)
    if remaining > 0:
        seconds = math.ceil(remaining)
        raise TooManyLogins(f"There were too many failed logins. Try again in {seconds} s.",
                            headers={"Retry-After": str(seconds)})


def _wait(failures: int, limit: Backoff) -> float:
    """Return how many seconds must pass after the last of *failures* failed logins before another login may begin,
    according to *limit*; 0.0 after few failures."""
    over = failures - limit.free
    return 0.0 if over < 0 else min(2.0**min(over, 30), limit.longest)


def count_login_failure(connection: Connection, counted: Sequence[str], moment: float) -> None:
    """Add one failed login at *moment* (seconds since the epoch) to each of the keys *counted* (see ``failure_keys``).
    Also delete rows of old failures."""
    at, failures = login_failures.c.last_at, login_failures.c.failures
    connection.execute(delete(login_failures).where(
        ((at < moment - FORGOTTEN) & (failures > 0)) | (at < moment - REMEMBERED)))
    query = INSERT[connection.dialect.name](login_failures)
    query = query.on_conflict_do_update(index_elements=["key"], set_={
        "failures": failures + 1, "last_at": query.excluded.last_at})
    connection.execute(query, [{"key": key, "failures": 1, "last_at": moment} for key in sorted(counted)])


def remember_login(connection: Connection, failure_key: str, login_key: str, moment: float) -> None:
    """Store the time of a successful login in the row *login_key*. Delete the row *failure_key*, which counts failed
    logins of the same account from the same address."""
    connection.execute(delete(login_failures).where(login_failures.c.key == failure_key))
    query = INSERT[connection.dialect.name](login_failures)
    query = query.on_conflict_do_update(index_elements=["key"], set_={"last_at": query.excluded.last_at})
    connection.execute(query, [{"key": login_key, "failures": 0, "last_at": moment}])
