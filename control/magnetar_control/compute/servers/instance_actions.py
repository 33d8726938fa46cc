# SPDX-License-Identifier: GPL-3.0-or-later
"""os-instance-actions: what was asked of a server, by whom, how it ended, and the steps that it took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.target import Target, of_server
from magnetar_control.store.actions import instance_actions as store
from magnetar_control.store.servers import servers
from magnetar_core.actions import ACTIONS
from magnetar_core.errors import InvalidRequest, NotFound

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
    with target.database.read() as connection:
        rows = store.page(connection, target.row.id, SHOWN, limit, marker, since, before)
        if not rows:
            _check_stayed(connection, target)
    if rows is None:
        raise InvalidRequest(f"marker [{str(marker)[:255]}] not found")
    return rows


@of_server(rule=f"{RULE}show")
def show(caller: Caller, target: Target, request_id: str, *, events: bool = True) -> tuple[Any, Sequence[Any] | None]:
    """The row of the action that a request asked for, and those of its events, newest first, or ``None``: they are for
    those whom the rule ``EVENTS`` allows tracebacks, and with *events* for everybody. Raises ``NotFound``."""
    events = events or caller.allows(EVENTS, target.row)
    with target.database.read() as connection:
        row = store.one(connection, target.row.id, SHOWN, request_id)
        if row is None:
            _check_stayed(connection, target)
            raise NotFound(f"Action {request_id[:255]} not found")
        return row, store.events(connection, row.id) if events else None


def _check_stayed(connection: Connection, target: Target) -> None:
    """Raises ``Moved`` where the server has left this database: a new one leaves cell0 with its actions when it has a
    host."""
    if servers.row(connection, target.row.id) is None:
        raise servers.Moved
