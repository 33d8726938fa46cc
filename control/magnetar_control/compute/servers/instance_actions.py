# SPDX-License-Identifier: GPL-3.0-or-later
"""os-instance-actions: the actions requested for a server, their users, results and steps."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.target import ServerTarget, server_use_case
from magnetar_control.store.actions import instance_actions as store
from magnetar_control.store.actions.action_row import ActionEvent, ShownAction
from magnetar_control.store.servers import servers
from magnetar_core.actions import ACTIONS
from magnetar_core.errors import InvalidRequest, NotFound

RULE = "os_compute_api:os-instance-actions:"
EVENTS, DETAILS = f"{RULE}events", f"{RULE}events:details"
#: Actions that Nova lists too.
SHOWN = tuple(key for key, action in ACTIONS.items() if action.label)


@server_use_case(rule=f"{RULE}list")
def list_instance_actions(_caller: Caller, target: ServerTarget, limit: int | None = None, marker: str | None = None,
                          since: str | None = None, before: str | None = None) -> Sequence[ShownAction]:
    """Return the rows of a server's actions, newest first: at most *limit*, or all if *limit* is ``None``. *marker*:
    the request id of the last action of the previous page. *since*, *before*: earliest and latest time of an action's
    last change. Raises ``InvalidRequest``."""
    if since and before and since > before:
        raise InvalidRequest("The value of changes-since must be less than or equal to changes-before.")
    with target.database.read() as connection:
        rows = store.fetch_action_rows(connection, target.row.id, SHOWN, limit, marker, since, before)
        if not rows:
            _check_stayed(connection, target)
    if rows is None:
        raise InvalidRequest(f"marker [{str(marker)[:255]}] not found")
    return rows


@server_use_case(rule=f"{RULE}show")
def show_instance_action(caller: Caller, target: ServerTarget, request_id: str, *,
                         events: bool = True) -> tuple[ShownAction, Sequence[ActionEvent] | None]:
    """Return (row of the action *request_id*, rows of its events, newest first). *events*: return the events without a
    policy check. If *events* is false, the second item is ``None`` unless the policy allows the caller to see events.
    Raises ``NotFound``."""
    events = events or caller.allows(EVENTS, target.row)
    with target.database.read() as connection:
        row = store.fetch_action_row(connection, target.row.id, SHOWN, request_id)
        if row is None:
            _check_stayed(connection, target)
            raise NotFound(f"Action {request_id[:255]} not found")
        return row, store.fetch_event_rows(connection, row.id) if events else None


def _check_stayed(connection: Connection, target: ServerTarget) -> None:
    """Raise ``Moved`` when the database of *target* no longer has the server: a new server, with its actions, moves
    from cell0 to its cell as soon as it has a host."""
    if servers.fetch_server_row(connection, target.row.id) is None:
        raise servers.Moved
