# SPDX-License-Identifier: GPL-3.0-or-later
"""os-instance-actions: what was asked of a server, by whom, how it ended, and the steps that it took."""

from __future__ import annotations

from typing import Any

from magnetar_control.api.nova.operation import Call, Operation, Query
from magnetar_control.api.nova.paging import PAGE, next_link, size
from magnetar_control.api.nova.server_view import host_id
from magnetar_control.api.values import Anything, Time
from magnetar_control.store import history
from magnetar_core.actions import ACTIONS
from magnetar_core.errors import InvalidRequest, NotFound

RULE = "os_compute_api:os-instance-actions:"
PATH = "/servers/{server_id}/os-instance-actions"
#: Gates.
OF_DELETED, EVENTS_ALWAYS, PAGED, HOSTS, DETAILS = 21, 51, 58, 62, 84
#: Actions that Nova lists too.
SHOWN = tuple(key for key, action in ACTIONS.items() if action.label)


def _found(call: Call, rule: str) -> None:
    """Have the server of the path in the call. Raises ``NotFound`` or 403."""
    id = call.params["server_id"]
    found = history.server(call.cloud.store, id, deleted=call.version >= OF_DELETED) if len(id) == 36 else None
    if found is None or (found[1].project_id != call.project and not call.context.is_admin):
        raise NotFound(f"Instance {id[:80]} could not be found.")
    call.database, call.server = found
    call.check(RULE + rule)


def _shown(call: Call, row: Any) -> dict[str, Any]:
    shown = {"action": ACTIONS[row.action].label, "instance_uuid": row.server_id, "request_id": row.request_id,
             "user_id": row.user_id, "project_id": row.project_id, "start_time": row.start_time, "message": row.message}
    if call.version >= PAGED:
        shown["updated_at"] = row.updated_at
    return shown


def index(call: Call) -> dict[str, Any]:
    """GET …/os-instance-actions, newest first."""
    _found(call, "list")
    query, paged = call.query, call.version >= PAGED
    since, before = query.get("changes-since"), query.get("changes-before")
    if since and before and since > before:
        raise InvalidRequest("The value of changes-since must be less than or equal to changes-before.")
    wanted = history.Wanted(call.server.id, SHOWN, size(call) if paged else None, query.get("marker"), since, before)
    with call.database.read() as connection:
        rows = history.page(connection, wanted)
    if rows is None:
        raise InvalidRequest(f"marker [{str(wanted.marker)[:255]}] not found")
    answer: dict[str, Any] = {"instanceActions": [_shown(call, row) for row in rows]}
    if wanted.limit is not None and len(rows) >= wanted.limit > 0:
        answer["links"] = next_link(call, f"/servers/{call.server.id}/os-instance-actions", rows[-1].request_id)
    return answer


def show(call: Call) -> dict[str, Any]:
    """GET …/os-instance-actions/{id}; the id is that of the request."""
    _found(call, "show")
    admin = call.allows(RULE + "events")
    with call.database.read() as connection:
        row = history.one(connection, history.Wanted(call.server.id, SHOWN), call.params["id"])
        if row is None:
            raise NotFound(f"Action {call.params['id'][:255]} not found")
        shown = _shown(call, row)
        if admin or call.version >= EVENTS_ALWAYS:
            shown["events"] = [_event(call, event, admin=admin) for event in history.events(connection, row.id)]
    return {"instanceAction": shown}


def _event(call: Call, row: Any, *, admin: bool) -> dict[str, Any]:
    shown = {name: getattr(row, name) for name in ("event", "start_time", "finish_time", "result")}
    if admin:
        shown["traceback"] = row.traceback
    if call.version >= HOSTS:
        shown["hostId"] = host_id(call.server.project_id, row.host)
        if admin:
            shown["host"] = row.host
    if call.version >= DETAILS and call.allows(RULE + "events:details"):
        shown["details"] = row.details
    return shown


OPERATIONS = (
    Operation(method="GET", path=PATH, handler=index, name="servers.os-instance-actions.list", strict=PAGED, query={
        "limit": Query(value=PAGE["limit"].value, since=PAGED), "marker": Query(value=Anything(), since=PAGED),
        "changes-since": Query(value=Time(), since=PAGED), "changes-before": Query(value=Time(), since=66)}),
    Operation(method="GET", path=PATH + "/{id}", handler=show, name="servers.os-instance-actions.show", strict=102),
)
