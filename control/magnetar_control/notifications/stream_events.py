# SPDX-License-Identifier: GPL-3.0-or-later
"""The events that ``/v1/events`` shows (docs/reference/events.md), made from rows and from payloads of notifications,
without side effects. They are small, and have nothing that the members of the resource's project may not see, except
the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from magnetar_control.store.actions.outbox import Message
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core import power
from magnetar_core.document import Document

from .payloads import ActionFault, Initiator

SERVER = "server"
#: Kinds of events, by the first word of a notification's event type.
KINDS: Mapping[str, str] = {
    "instance": SERVER, "flavor": "flavor", "keypair": "keypair", "aggregate": "aggregate",
    "server_group": "server_group", "service": "compute_service", "incident": "incident"}
#: Characters of a fault that an event has.
FAULT = 500
PHASES = ("start", "end", "error")
#: Fields of payloads that events of resources have too.
SHOWN = ("host", "state", "message", "disabled", "disabled_reason", "forced_down", "hosts", "user_id")


def server_event(id: str, row: ServerRow, name: str, phase: str, who: Initiator, fault: ActionFault | None,
                 host: str | None) -> Message:
    """Return an event of a server. *row*: the server's row at the time of the event. *name*, *phase*: such as reboot,
    end. *who*: the user and request that caused it. *host*: the host that acted."""
    return _event_message(id, SERVER, name, phase, project_id=row.project_id, host=host, request_id=who.request_id,
                          user_id=who.user_id, fault=fault.message[:FAULT] if fault else None, server={
                              "id": row.id, "name": row.name, "project_id": row.project_id,
                              "status": power.status_word(row.vm_state, row.task_state),
                              "power_state": power.power_of_number(row.power_state), "task_state": row.task_state,
                              "flavor": row.flavor.get("name"), "removed": bool(row.deleted_at)})


def resource_event(id: str, event_type: str, payload: Mapping[str, Any]) -> Message:
    """Return an event of a resource other than a server, such as a flavor. *id*: the id of the event. *event_type*: the
    type of the event's notification, such as flavor.create. *payload*: the payload of this notification."""
    first, *words = event_type.split(".")
    data = payload["nova_object.data"]
    phase = words.pop() if words[-1] in PHASES else ""
    resource = {"id": data.get("uuid") or data.get("flavorid"), "name": data.get("name") or data.get("host"),
                **{name: data[name] for name in SHOWN if name in data}}
    return _event_message(id, KINDS[first], ".".join(words), phase, project_id=data.get("project_id"),
                          user_id=None, resource=resource)


def _event_message(id: str, kind: str, name: str, phase: str, **fields: Any) -> Message:
    document: Document = {"id": id, "time": datetime.now(UTC).isoformat(timespec="milliseconds"), "kind": kind,
                          "event": name, "phase": phase, **fields}
    return Message(id, ".".join(filter(None, (kind, name, phase))), orjson.dumps(document).decode())
