# SPDX-License-Identifier: GPL-3.0-or-later
"""os-services: the agents of compute hosts and the conductors; hosts are disabled, forced down and removed here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from magnetar_control.api.nova.fields import ApiField, Fields, View
from magnetar_control.api.nova.history import Gate
from magnetar_control.api.nova.operation import Call, Operation, Query
from magnetar_control.api.nova.values import (
    TRUTH,
    record,
)
from magnetar_control.api.values import Anything
from magnetar_control.compute import services
from magnetar_control.compute.services import DISABLED, ENABLED
from magnetar_control.store.services import Service
from magnetar_core.errors import InvalidField
from magnetar_core.values import Choices, Text

PATH = "/os-services"
HOST = Text(1, 255, r"[a-zA-Z0-9._-]+", "must be the name of a host")
REASON = Text(1, 255)
#: unreachable: what is shown of a service whose cell does not answer.
FIELDS = Fields(
    ApiField("id", name="number", shows="show", until=52),
    ApiField("id", shows="show", since=53),
    ApiField("binary", shows="show unreachable"),
    ApiField("host", shows="show unreachable"),
    ApiField("zone", shows="show"),
    ApiField("status", Choices(ENABLED, DISABLED), takes="update"),
    ApiField("status", shows="show", show=lambda _view, one: DISABLED if one.disabled else ENABLED),
    ApiField("status", shows="unreachable", show=lambda _view, _one: "UNKNOWN"),
    ApiField("state", shows="show", show=lambda _view, one: "up" if one.up else "down"),
    ApiField("updated_at", name="seen_at", shows="show"),
    ApiField("disabled_reason", REASON, takes="update", shows="show"),
    ApiField("forced_down", TRUTH, takes="update", shows="show", since=11))


def index(call: Call) -> dict[str, Any]:
    """GET /os-services."""
    found = services.every(call, call.query.get("host"), call.query.get("binary"))
    known, lost = View(call, FIELDS), View(call, FIELDS, "unreachable")
    return {"services": [(known if one.reachable else lost).document(one) for one in found
                         if one.reachable or call.at(Gate.DOWN_CELLS)]}


def _shown(call: Call, one: Service) -> dict[str, Any]:
    return View(call, FIELDS, "show" if one.reachable else "unreachable").document(one)


# Until 2.52: by words and the names of hosts ----------------------------------------------------------------------
def enable(call: Call) -> dict[str, Any]:
    """PUT …/enable."""
    services.update_by_host(call, **call.body, status=ENABLED)
    return {"service": {**call.body, "status": ENABLED}}


def disable(call: Call) -> dict[str, Any]:
    """PUT …/disable and …/disable-log-reason: no new servers there."""
    services.update_by_host(call, **call.body, status=DISABLED)
    return {"service": {**call.body, "status": DISABLED}}


def force_down(call: Call) -> dict[str, Any]:
    """PUT …/force-down: the host counts as down, whatever its agent says."""
    services.update_by_host(call, **call.body)
    return {"service": call.body}


# Since 2.53: by uuid ----------------------------------------------------------------------------------------------
def update(call: Call) -> dict[str, Any]:
    """PUT /os-services/{id}: status, disabled_reason, forced_down."""
    if not call.body:
        raise InvalidField("body", "must have status, disabled_reason or forced_down")
    return {"service": _shown(call, services.update(call, call.params["id"], **call.body))}


def remove(call: Call) -> None:
    """DELETE /os-services/{id}: a host that nothing is on, or a conductor that is no more."""
    services.remove(call, call.params["id"], by_uuid=call.at(Gate.HOST_UUIDS))


_NAMED = {"host": HOST, "binary": Text(1, 255)}


def _word(word: str, handler: Callable[[Call], Any], since: int = 1, **more: Any) -> Operation:
    body = record({**_NAMED, **more}, *_NAMED, *more)
    return Operation(method="PUT", path=f"{PATH}/{word}", handler=handler, use=services.update_by_host,
                     name=f"os-services.{word}", since=since, until=52, body=body)


_TEXT = Query(value=Anything())
OPERATIONS = (
    Operation(method="GET", path=PATH, handler=index, use=services.every, name="os-services.list",
              strict=75, query={"host": _TEXT, "binary": _TEXT}),
    _word("enable", enable), _word("disable", disable),
    _word("disable-log-reason", disable, disabled_reason=REASON),
    _word("force-down", force_down, 11, forced_down=TRUTH),
    Operation(method="PUT", path=PATH + "/{id}", handler=update, use=services.update,
              name="os-services.update", since=Gate.HOST_UUIDS.version, body=FIELDS.body("update")),
    Operation(method="DELETE", path=PATH + "/{id}", handler=remove, use=services.remove,
              name="os-services.delete", status=204),
)
