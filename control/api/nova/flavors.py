# SPDX-License-Identifier: GPL-3.0-or-later
"""flavors: sizes of servers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from magnetar_control.api.nova.fields import ApiField, Fields, View
from magnetar_control.api.nova.operation import Call, Operation, Query
from magnetar_control.api.nova.paging import PAGE, next_link, size
from magnetar_control.api.nova.values import (
    FALSE,
    TRUE,
    TRUTH,
)
from magnetar_control.api.values import Anything, Decimal, Number, Pattern, Wrapped
from magnetar_control.compute import flavors
from magnetar_control.store.flavors import SORTS
from magnetar_core.errors import InvalidRequest
from magnetar_core.kinds.common import NAME
from magnetar_core.values import Choice, Choices, Integer, Nullable, OneOf, Text

SPECS = "os_compute_api:os-flavor-extra-specs:index"
TEXT = Nullable(Text(0, 65535, r"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*", "must be printable text"))
ID = Text(1, 255, r"(?! )[a-zA-Z0-9. _-]+(?<! )", "may have letters, digits, blanks inside, and . _ - only")
SIZE, SOME = Number(0), Number(1)
#: list: GET /flavors; show: all other answers.
FIELDS = Fields(
    ApiField("name", NAME, takes="create", required="create", shows="list show"),
    ApiField("id", Nullable(OneOf(ID, Integer())), takes="create", shows="list show"),
    ApiField("links", shows="list show", show=lambda view, row: view.links("flavors", row.id)),
    ApiField("ram", SOME, takes="create", required="create", shows="show"),
    ApiField("vcpus", SOME, takes="create", required="create", shows="show"),
    ApiField("disk", SIZE, takes="create", required="create", shows="show"),
    ApiField("OS-FLV-EXT-DATA:ephemeral", SIZE, name="ephemeral", takes="create", shows="show"),
    ApiField("swap", SIZE, takes="create"),
    ApiField("swap", shows="show", until=74, show=lambda _view, row: row.swap or ""),
    ApiField("swap", shows="show", since=75),
    ApiField("os-flavor-access:is_public", TRUTH, name="is_public", takes="create", shows="show"),
    ApiField("rxtx_factor", Decimal(3.40282e38), takes="create", shows="show", until=101),
    ApiField("OS-FLV-DISABLED:disabled", shows="show", until=101, show=lambda _view, _row: False),
    ApiField("description", TEXT, takes="create update", required="update", shows="list show", since=55),
    ApiField("extra_specs", shows="show", since=61, rule=SPECS, show=lambda _view, row: orjson.Fragment(
        row.extra_specs)))
_SORTS = [word for word in sorted(SORTS) if word != "rxtx_factor"]
LIST_QUERY: Mapping[str, Query] = {
    **PAGE, "is_public": Query(value=Anything()), "minRam": Query(value=Anything()), "minDisk": Query(value=Anything()),
    "sort_key": Query(value=Choices(*_SORTS, Choice("rxtx_factor", until="2.101"))),
    "sort_dir": Query(value=Choices("asc", "desc")), "name": Query(value=Pattern(), since=102)}


def _listed(call: Call, path: str, answer: str) -> dict[str, Any]:
    query, limit = call.query, size(call)
    rows = flavors.page(
        call, limit, sort=query.get("sort_key", "flavorid"), descending=query.get("sort_dir") == "desc",
        public=_public(query.get("is_public")) if call.context.is_admin else True, name=query.get("name"),
        least_ram=_least(query, "minRam"), least_disk=_least(query, "minDisk"), marker=query.get("marker"))
    shown: dict[str, Any] = {"flavors": [*map(View(call, FIELDS, answer).document, rows)]}
    if len(rows) >= limit > 0:
        shown["flavors_links"] = next_link(call, path, rows[-1].id)
    return shown


def _public(text: str | None) -> bool | None:
    """What administrators filter by; they see the public ones when they do not say."""
    if text is None:
        return True
    if text.lower() == "none":
        return None
    if text in TRUE or text in FALSE or text.lower() in ("t", "f", "y", "n"):
        return text in TRUE or text.lower() in ("t", "y")
    raise InvalidRequest(f"Invalid is_public filter [{text[:60]}]: is_public must be true, false or none.")


def _least(query: Mapping[str, Any], name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"-?[0-9]{1,9}", text):
        raise InvalidRequest(f"Invalid {name} filter [{text[:60]}]: {name} must be a whole number.")
    return int(text)


def list_brief(call: Call) -> dict[str, Any]:
    """GET /flavors."""
    return _listed(call, "/flavors", "list")


def list_full(call: Call) -> dict[str, Any]:
    """GET /flavors/detail."""
    return _listed(call, "/flavors/detail", "show")


def _shown(call: Call, row: Any) -> dict[str, Any]:
    return {"flavor": View(call, FIELDS).document(row)}


def show(call: Call) -> dict[str, Any]:
    """GET /flavors/{id}."""
    return _shown(call, flavors.show(call, call.params["id"]))


def create(call: Call) -> dict[str, Any]:
    """POST /flavors."""
    return _shown(call, flavors.create(call, **FIELDS.arguments(call.body)))


def update(call: Call) -> dict[str, Any]:
    """PUT /flavors/{id}: the description."""
    return _shown(call, flavors.update(call, call.params["id"], **FIELDS.arguments(call.body)))


def delete(call: Call) -> None:
    """DELETE /flavors/{id}."""
    flavors.delete(call, call.params["id"])


OPERATIONS = (
    Operation(method="GET", path="/flavors", handler=list_brief, name="flavors.list", query=LIST_QUERY, strict=75,
              quick=True),
    Operation(method="GET", path="/flavors/detail", handler=list_full, name="flavors.detail.list", query=LIST_QUERY,
              strict=75, quick=True),
    Operation(method="POST", path="/flavors", handler=create, use=flavors.create,
              name="flavors.create", body=Wrapped("flavor", FIELDS.body("create"))),
    Operation(method="GET", path="/flavors/{id}", handler=show, name="flavors.show", strict=102, quick=True),
    Operation(method="PUT", path="/flavors/{id}", handler=update, use=flavors.update,
              name="flavors.update", since=55, body=Wrapped("flavor", FIELDS.body("update"))),
    Operation(method="DELETE", path="/flavors/{id}", handler=delete, use=flavors.delete,
              name="flavors.delete", status=202),
)
