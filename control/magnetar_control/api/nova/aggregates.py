# SPDX-License-Identifier: GPL-3.0-or-later
"""os-aggregates: groups of hosts that administrators make, and the availability zones that result from them."""

from __future__ import annotations

from typing import Any

from magnetar_control.api.values import Id, Wrapped
from magnetar_control.compute.caller import UseCase
from magnetar_control.compute.hosts import aggregates, availability_zones
from magnetar_core.errors import InvalidField
from magnetar_core.kinds.common import NAME
from magnetar_core.values import ListOf, MapOf, Nullable, Text, Value

from .fields import ApiField, Fields
from .operation import ApiOperation, Call, operation_factory
from .values import HOST, KEY, body_object

ZONE = Nullable(availability_zones.NAME)
#: The fields by answer; create is the answer of POST.
FIELDS = Fields(
    ApiField("id", shows="create show"),
    ApiField("uuid", shows="create show", since=41),
    ApiField("name", NAME, takes="create update", required="create", shows="create show"),
    ApiField("availability_zone", ZONE, name="zone", takes="create update", shows="create show"),
    ApiField("created_at", shows="create show"),
    ApiField("updated_at", shows="create show"),
    ApiField("deleted", shows="create show", show=lambda _view, _row: False),
    ApiField("deleted_at", shows="create show", show=lambda _view, _row: None),
    ApiField("hosts", shows="show"),
    ApiField("metadata", shows="show"))


ONE = FIELDS.one("aggregate")
_row = operation_factory("os-aggregates", "/os-aggregates")


def _change(call: Call) -> dict[str, Any]:
    if not call.body:
        raise InvalidField("aggregate", "must name name or availability_zone")
    return {"want": call.body, "keeps_zone": True}


def _action(name: str, use: UseCase[..., Any], field: str, value: Value) -> ApiOperation:
    keeps_zone = {"keeps_zone": True} if use is aggregates.set_aggregate_metadata else {}
    return _row("POST", "/{id}/action", f"action.{name}", use, action=name, shown=ONE,
                given=lambda call: {**call.body, **keeps_zone}, body=Wrapped(name, body_object({field: value}, field)))


def _images(call: Call) -> dict[str, Any]:
    if not call.body["cache"]:
        raise InvalidField("cache", "must have one image at least")
    return {"images": [image["id"] for image in call.body["cache"]]}


OPERATIONS = (
    _row("GET", "", "list", aggregates.list_aggregates, shown=FIELDS.many("aggregates"), strict=102),
    _row("POST", "", "create", aggregates.create_aggregate, body=Wrapped("aggregate", FIELDS.body("create")),
         given=lambda call: FIELDS.arguments(call.body), shown=FIELDS.one("aggregate", "create")),
    _row("GET", "/{id}", "show", aggregates.show_aggregate, shown=ONE, strict=102),
    _row("PUT", "/{id}", "update", aggregates.update_aggregate, body=Wrapped("aggregate", FIELDS.body("update")),
         given=_change, shown=ONE),
    _row("DELETE", "/{id}", "delete", aggregates.delete_aggregate),
    _row("POST", "/{id}/images", "images.create", aggregates.cache_aggregate_images, since=81, status=202,
         given=_images, body=body_object({"cache": ListOf(body_object({"id": Id()}, "id"), 1000)}, "cache")),
    _action("add_host", aggregates.add_host_to_aggregate, "host", HOST),
    _action("remove_host", aggregates.remove_host_from_aggregate, "host", HOST),
    _action("set_metadata", aggregates.set_aggregate_metadata, "metadata", MapOf(KEY, Nullable(Text(0, 255)), 1000)),
)
