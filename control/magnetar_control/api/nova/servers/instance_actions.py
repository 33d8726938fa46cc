# SPDX-License-Identifier: GPL-3.0-or-later
"""os-instance-actions: the actions requested of a server, their users, outcomes and steps."""

from __future__ import annotations

from typing import Any

from magnetar_control.api.nova.history import ApiChange
from magnetar_control.api.nova.operation import Call, Query, operation_factory
from magnetar_control.api.nova.paging import next_link, page_size, paging_parameters
from magnetar_control.api.values import Time
from magnetar_control.compute.servers import instance_actions
from magnetar_control.compute.target import ServerTarget, find_server_target
from magnetar_control.store.actions.action_row import ActionEvent, ShownAction
from magnetar_core.actions import ACTIONS

from .server_view import host_id

PATH = "/servers/{server_id}/os-instance-actions"


def _target(call: Call) -> ServerTarget:
    """Return the server that the URL names; since 2.21 it may be a deleted server. Raises ``NotFound``."""
    return find_server_target(call, call.params["server_id"], deleted=call.at(ApiChange.DELETED_ACTIONS))


def _render_action(call: Call, row: ShownAction) -> dict[str, Any]:
    shown = {"action": ACTIONS[row.action].label, "instance_uuid": row.server_id, "request_id": row.request_id,
             "user_id": row.user_id, "project_id": row.project_id, "start_time": row.start_time, "message": row.message}
    if call.at(ApiChange.ACTION_PAGES):
        shown["updated_at"] = row.updated_at
    return shown


def handle_list_instance_actions(call: Call) -> dict[str, Any]:
    """Return a page of the actions of a server, newest first: GET …/os-instance-actions."""
    target, query = _target(call), call.query
    limit = page_size(call) if call.at(ApiChange.ACTION_PAGES) else None
    rows = instance_actions.list_instance_actions(call, target, limit, query.get("marker"), query.get("changes-since"),
                                                  query.get("changes-before"))
    answer: dict[str, Any] = {"instanceActions": [_render_action(call, row) for row in rows]}
    if limit is not None and len(rows) >= limit > 0:
        answer["links"] = next_link(call, f"/servers/{target.row.id}/os-instance-actions", rows[-1].request_id)
    return answer


def handle_show_instance_action(call: Call) -> dict[str, Any]:
    """Return one action of a server with its events: GET …/os-instance-actions/{id}. The id is the id of the request
    that caused the action."""
    target = _target(call)
    row, events = instance_actions.show_instance_action(call, target, call.params["id"],
                                                        events=call.at(ApiChange.EVENTS_FOR_ALL))
    shown = _render_action(call, row)
    if events is not None:
        admin = call.allows(instance_actions.EVENTS, target.row)
        shown["events"] = [_event(call, target, event, admin=admin) for event in events]
    return {"instanceAction": shown}


def _event(call: Call, target: ServerTarget, row: ActionEvent, *, admin: bool) -> dict[str, Any]:
    shown = {name: getattr(row, name) for name in ("event", "start_time", "finish_time", "result")}
    if admin:
        shown["traceback"] = row.traceback
    if call.at(ApiChange.EVENT_HOSTS):
        shown["hostId"] = host_id(target.row.project_id, row.host)
        if admin:
            shown["host"] = row.host
    if call.at(ApiChange.EVENT_DETAILS) and call.allows(instance_actions.DETAILS, target.row):
        shown["details"] = row.details
    return shown


_row = operation_factory("servers.os-instance-actions", PATH)
OPERATIONS = (
    _row("GET", "", "list", instance_actions.list_instance_actions, handler=handle_list_instance_actions, strict=58,
         query={
        **paging_parameters(58), "changes-since": Query(value=Time(), since=58),
        "changes-before": Query(value=Time(), since=66)}),
    _row("GET", "/{id}", "show", instance_actions.show_instance_action, handler=handle_show_instance_action,
         strict=102),
)
