# SPDX-License-Identifier: GPL-3.0-or-later
"""The last fencing of each host. Its row is written before a fence agent runs, and completed with the result.

``claim_fencing`` assigns the row to one *attempt* until ``busy_until``. After that time, the process of the attempt
counts as dead, and another attempt may take the row over; all later writes of the first attempt then fail.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, delete, or_, select, update

from magnetar_control.store.engine.database import insert_if_absent, utc_now
from magnetar_control.store.engine.rows import SelectedRow
from magnetar_control.store.engine.tables import fencings

from . import hosts

#: States: a fencing has begun, the host is off, the host could not be switched off, the host may be used again.
REQUESTED, FENCED, FAILED, UNFENCED = "requested", "fenced", "failed", "unfenced"
#: The most characters of ``disabled_reason``.
REASON = 255


class FencingRow(SelectedRow):
    """A row of the table ``fencings``: the last fencing of a host."""

    host: str
    state: str
    agent: str
    requested_at: str
    requested_by: str
    attempt: str
    busy_until: str | None
    ended_at: str | None
    confirmed_at: str | None
    message: str
    was_disabled: bool | None
    was_disabled_reason: str | None
    was_forced_down: bool | None

    @property
    def busy(self) -> bool:
        """Whether an attempt to fence or unfence the host is running."""
        return self.busy_until is not None and self.busy_until > utc_now()

    @property
    def holds_host(self) -> bool:
        """Whether the host is disabled and forced down because it was fenced."""
        return self.was_forced_down is not None


def fetch_fencing_row(connection: Connection, host: str, *, lock: bool = False) -> FencingRow | None:
    """Return the last fencing of a host; ``None`` if it was never fenced. *lock*: lock the row until the transaction
    ends."""
    query = FencingRow.selection(fencings).where(fencings.c.host == host)
    return FencingRow.optional(connection.execute(query.with_for_update() if lock else query).one_or_none())


def fetch_fencing_rows(connection: Connection) -> list[FencingRow]:
    """Return the last fencing of each host, ordered by host."""
    return FencingRow.several(connection.execute(FencingRow.selection(fencings).order_by(fencings.c.host)))


def claim_fencing(connection: Connection, host: str, attempt: str, *, agent: str, by: str, seconds: float,
                  to_fence: bool) -> bool:
    """Assign the row of *host* in ``fencings`` to a new attempt to fence or unfence the host, for *seconds*. Return
    ``False`` while the row is assigned to another attempt. *attempt*: id of the new attempt. *agent*: the fence agent.
    *by*: the requesting user. *to_fence*: false to unfence. Clears ``confirmed_at``, because the power state of the
    host is unknown from now on."""
    columns: dict[str, Any] = {"attempt": attempt, "busy_until": utc_now(seconds), "confirmed_at": None}
    if to_fence:
        columns |= {"agent": agent, "requested_at": utc_now(), "requested_by": by, "ended_at": None, "message": "",
                    "state": REQUESTED}
        if insert_if_absent(connection, fencings, host=host, **columns):
            return True
    return connection.execute(update(fencings).where(
        fencings.c.host == host, or_(fencings.c.busy_until.is_(None), fencings.c.busy_until <= utc_now())).values(
        **columns)).rowcount == 1


def end_fencing(connection: Connection, host: str, attempt: str, **columns: Any) -> bool:
    """Record that an attempt to fence or unfence the host has ended. *columns*: the result. Return ``False``, with
    nothing changed, if the host's row in ``fencings`` is assigned to another attempt."""
    return connection.execute(update(fencings).where(
        fencings.c.host == host, fencings.c.attempt == attempt).values(
        busy_until=None, **columns)).rowcount == 1


def hold_fenced_host(connection: Connection, host: str, attempt: str, message: str) -> bool:
    """Record that the host is off, disable it, and force it down with *message* as the reason. Return ``False``, with
    nothing changed, if the host's row in ``fencings`` is assigned to another attempt."""
    fencing = fetch_fencing_row(connection, host, lock=True)
    row = hosts.fetch_host_row(connection, host, lock=True)
    if fencing is None or fencing.attempt != attempt or row is None:
        return False
    columns: dict[str, Any] = {} if fencing.holds_host else {
        "was_disabled": row.disabled, "was_disabled_reason": row.disabled_reason, "was_forced_down": row.forced_down}
    now = utc_now()
    hosts.update_host_row(connection, host, disabled=True, disabled_reason=message[:REASON], forced_down=True)
    return end_fencing(connection, host, attempt, state=FENCED, message=message, ended_at=now, confirmed_at=now,
                       **columns)


def release_fenced_host(connection: Connection, host: str, attempt: str, message: str) -> bool:
    """Record that the host may be used again, with the text *message*, and restore its status (disabled, forced down)
    from before the fencing. Return ``False``, with nothing changed, if the host's row in ``fencings`` is assigned to
    another attempt."""
    fencing = fetch_fencing_row(connection, host, lock=True)
    if fencing is None or fencing.attempt != attempt:
        return False
    if fencing.holds_host:
        hosts.update_host_row(connection, host, disabled=fencing.was_disabled,
                              disabled_reason=fencing.was_disabled_reason, forced_down=fencing.was_forced_down)
    return end_fencing(connection, host, attempt, state=UNFENCED, message=message, ended_at=utc_now(),
                       was_disabled=None, was_disabled_reason=None, was_forced_down=None)


def is_host_held(connection: Connection, host: str) -> bool:
    """Return whether a host is disabled and forced down because it was fenced, and has not been unfenced since."""
    return connection.execute(select(fencings.c.host).where(
        fencings.c.host == host, fencings.c.was_forced_down.is_not(None))).first() is not None


def remove_fencing_row(connection: Connection, host: str) -> None:
    """Remove the fencing of a host that is being deleted from the cloud."""
    connection.execute(delete(fencings).where(fencings.c.host == host))
