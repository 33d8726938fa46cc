# SPDX-License-Identifier: GPL-3.0-or-later
"""os-services: the agents of compute hosts and the conductors; requests disable, force down and remove hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from magnetar_control.api.values import Anything
from magnetar_control.compute.hosts import services
from magnetar_control.compute.hosts.services import DISABLED, ENABLED
from magnetar_control.store.hosts.services import Service
from magnetar_core.errors import InvalidField
from magnetar_core.values import Choices, Text

from .fields import ApiField, Fields, View
from .history import ApiChange
from .operation import ApiOperation, Call, Query, operation_factory
from .values import HOST, TRUTH, body_object

REASON = Text(1, 255)
#: unreachable: the fields of a service whose cell does not respond.
FIELDS = Fields(
    ApiField("id", name="number", shows="show", until=52),
    ApiField("id", shows="show", since=53),
    ApiField("binary", shows="show unreachable"),
    ApiField("host", shows="show unreachable"),
    ApiField("zone", shows="show"),
    ApiField("status", Choices(ENABLED, DISABLED), takes="update"),
    ApiField("status", shows="show", show=lambda _view, service: DISABLED if service.disabled else ENABLED),
    ApiField("status", shows="unreachable", show=lambda _view, _one: "UNKNOWN"),
    ApiField("state", shows="show", show=lambda _view, service: "up" if service.up else "down"),
    ApiField("updated_at", name="seen_at", shows="show"),
    ApiField("disabled_reason", REASON, takes="update", shows="show"),
    ApiField("forced_down", TRUTH, takes="update", shows="show", since=11))


def _listed(call: Call, service_rows: Sequence[Service]) -> dict[str, Any]:
    reachable_view, lost = View(call, FIELDS), View(call, FIELDS, "unreachable")
    return {"services": [(reachable_view if service.reachable else lost).document(service) for service in service_rows
                         if service.reachable or call.at(ApiChange.DOWN_CELLS)]}


def _change(call: Call) -> dict[str, Any]:
    if not call.body:
        raise InvalidField("body", "must have status, disabled_reason or forced_down")
    return dict(call.body)


def _update_operation(action: str, values: Mapping[str, str], since: int = 1, **more: Any) -> ApiOperation:
    """Return the operation ``PUT /os-services/{action}`` for the versions 2.*since* to 2.52. The operation updates the
    service that ``host`` and ``binary`` in the body name. *values*: the fixed values that the operation sets, by field
    name. *more*: the validators of further required fields of the body; the operation sets these fields too."""
    return _row("PUT", f"/{action}", action, services.update_host_service, since=since, until=52,
                body=body_object({**_NAMED, **more}, *_NAMED, *more), given=lambda call: {**call.body, **values},
                shown=lambda call, _none: {"service": {**call.body, **values}})


_row = operation_factory("os-services", "/os-services")
_NAMED = {"host": HOST, "binary": Text(1, 255)}
_TEXT = Query(value=Anything())
OPERATIONS = (
    _row("GET", "", "list", services.list_services, strict=75, query={"host": _TEXT, "binary": _TEXT}, shown=_listed,
         given=lambda call: {"host": call.query.get("host"), "binary": call.query.get("binary")}),
    _update_operation("enable", {"status": ENABLED}), _update_operation("disable", {"status": DISABLED}),
    _update_operation("disable-log-reason", {"status": DISABLED}, disabled_reason=REASON),
    _update_operation("force-down", {}, 11, forced_down=TRUTH),
    _row("PUT", "/{id}", "update", services.update_service, since=ApiChange.HOST_UUIDS.version,
         body=FIELDS.body("update"),
         given=_change, shown=lambda call, service: {"service": View(
             call, FIELDS, "show" if service.reachable else "unreachable").document(service)}),
    _row("DELETE", "/{id}", "delete", services.delete_service,
         given=lambda call: {"by_uuid": call.at(ApiChange.HOST_UUIDS)},
         status=204),
)
