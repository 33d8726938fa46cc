# SPDX-License-Identifier: GPL-3.0-or-later
"""os-server-external-events: events of servers that network, volume and other services report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from magnetar_control.api.nova.operation import ApiOperation, Call
from magnetar_control.api.nova.values import body_object
from magnetar_control.api.values import Id
from magnetar_control.compute.servers import external_events
from magnetar_control.compute.servers.external_events import TAKEN, ExternalEvent
from magnetar_control.web import Answer
from magnetar_core.errors import InvalidField
from magnetar_core.values import Choice, Choices, ListOf, Text

NAME = Choices("network-changed", "network-vif-plugged", "network-vif-unplugged", "network-vif-deleted",
               Choice("volume-extended", since="2.51"), Choice("power-update", since="2.76"),
               Choice("accelerator-request-bound", since="2.82"), Choice("volume-reimaged", since="2.93"))
EVENT = body_object({"server_uuid": Id(), "name": NAME, "status": Choices("failed", "completed", "in-progress"),
                     "tag": Text(0, 255)}, "server_uuid", "name")
#: Limit of events in one request.
MOST = 1000


def _parse_events(call: Call) -> dict[str, Any]:
    if not call.body["events"]:
        raise InvalidField("events", "must have one event at least")
    return {"events": [ExternalEvent(event["server_uuid"], event["name"], event.get("tag"))
                       for event in call.body["events"]]}


def _render_events(call: Call, codes: Sequence[int]) -> Answer:
    """Return the answer to a request with external events: each event of the request body, with its result. *codes*:
    the results, as HTTP statuses in the order of the events. The status of the answer is 207 if some events had no
    effect, otherwise 200."""
    events = [{**event, "code": code, "status": "completed" if code == TAKEN else "failed"}
              for event, code in zip(call.body["events"], codes, strict=True)]
    return Answer({"events": events}, 200 if {*codes} == {TAKEN} else 207)


OPERATIONS = (
    ApiOperation(method="POST", path="/os-server-external-events", name="os-server-external-events.create",
                 use=external_events.accept_external_events, body=body_object({"events": ListOf(EVENT, MOST)},
                                                                              "events"), given=_parse_events,
                 shown=_render_events),
)
