# SPDX-License-Identifier: GPL-3.0-or-later
"""os-instance-actions: what was asked of a server, by whom, how it ended, and the steps that it took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection

from magnetar_control.store import instance_actions as store
from magnetar_control.store import servers
from magnetar_core.actions import ACTIONS
from magnetar_core.errors import InvalidRequest, NotFound

from .caller import Caller
from .target import Target, of_server

T = TypeVar("T")
RULE = "os_compute_api:os-instance-actions:"
EVENTS, DETAILS = f"{RULE}events", f"{RULE}events:details"
#: Actions that Nova lists too.
SHOWN = tuple(key for key, action in ACTIONS.items() if action.label)


@of_server(rule=f"{RULE}list")
def page(_caller: Caller, target: Target, limit: int | None = None, marker: str | None = None,
         since: str | None = None, before: str | None = None) -> Sequence[Any]:
    """The rows of a server's actions, newest first; all without *limit*. *marker*: a request id. *since*, *before*:
    when they last changed. Raises ``InvalidRequest``."""
    if since and before and since > before:
        raise InvalidRequest("The value of changes-since must be less than or equal to changes-before.")
    rows = _read(target, lambda connection: store.page(
        connection, target.row.id, SHOWN, limit, marker, since, before))
    if rows is None:
        raise InvalidRequest(f"marker [{str(marker)[:255]}] not found")
    return rows


@of_server(rule=f"{RULE}show")
def show(caller: Caller, target: Target, request_id: str, *, events: bool = True) -> tuple[Any, Sequence[Any] | None]:
    """The row of the action that a request asked for, and those of its events, newest first, or ``None``: they are for
    those whom the rule ``EVENTS`` allows tracebacks, and with *events* for everybody. Raises ``NotFound``."""
    events = events or caller.allows(EVENTS, target.row)

    def found(connection: Connection) -> tuple[Any, Sequence[Any] | None] | None:
        row = store.one(connection, target.row.id, SHOWN, request_id)
        return None if row is None else (row, store.events(connection, row.id) if events else None)

    if (answer := _read(target, found)) is None:
        raise NotFound(f"Action {request_id[:255]} not found")
    return answer


def _read(target: Target, read: Callable[[Connection], T]) -> T:
    """What *read* finds in the server's database. Raises ``Moved`` where that is nothing, since the server has left: a
    new one leaves cell0 with its actions when it has a host."""
    with target.database.read() as connection:
        found = read(connection)
        if not found and servers.row(connection, target.row.id) is None:
            raise servers.Moved
        return found
