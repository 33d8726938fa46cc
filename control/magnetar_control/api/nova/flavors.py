# SPDX-License-Identifier: GPL-3.0-or-later
"""flavors: sizes of servers, access of projects to them (os-flavor-access), and their extra specs (os-extra_specs)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from magnetar_control.api.values import Anything, Decimal, Number, OneKey, Regex, Wrapped
from magnetar_control.compute.caller import UseCase
from magnetar_control.compute.flavors import flavor_access, flavor_extra_specs, flavors
from magnetar_control.store.accounts.flavors import SORTS
from magnetar_core.errors import InvalidRequest
from magnetar_core.kinds.common import NAME
from magnetar_core.values import Choice, Choices, Integer, Nullable, OneOf, Text

from .fields import ApiField, Fields, View
from .history import ApiChange
from .operation import ApiOperation, Call, Query, operation_factory
from .paging import next_link, page_size, paging_parameters
from .values import FALSE, TRUE, TRUTH, body_object

SPECS = "os_compute_api:os-flavor-extra-specs:index"
TEXT = Nullable(Text(0, 65535, r"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*", "must be printable text"))
ID = Text(1, 255, r"(?! )[a-zA-Z0-9. _-]+(?<! )", "may have letters, digits, blanks inside, and . _ - only")
PROJECT = Text(1, 255, r"[a-zA-Z0-9-]+", "must be a project's id")
SIZE, SOME = Number(0), Number(1)
#: The fields by answer; list is GET /flavors, show all others.
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
_SORTS = [sort_key for sort_key in sorted(SORTS) if sort_key != "rxtx_factor"]
LIST_QUERY: Mapping[str, Query] = {
    **paging_parameters(), **dict.fromkeys(("is_public", "minRam", "minDisk"), Query(value=Anything())),
    "sort_key": Query(value=Choices(*_SORTS, Choice("rxtx_factor", until="2.101"))),
    "sort_dir": Query(value=Choices("asc", "desc")), "name": Query(value=Regex(), since=102)}


def _page(call: Call) -> dict[str, Any]:
    query = call.query
    return {"limit": page_size(call), "sort": query.get("sort_key", "flavorid"),
            "descending": query.get("sort_dir") == "desc", "name": query.get("name"), "marker": query.get("marker"),
            "public": _public(query.get("is_public")) if call.is_admin else True,
            "least_ram": _least(query, "minRam"), "least_disk": _least(query, "minDisk")}


def _listed(call: Call, rows: Sequence[Any], path: str, answer: str) -> dict[str, Any]:
    shown: dict[str, Any] = {"flavors": View(call, FIELDS, answer).documents(rows)}
    if len(rows) >= page_size(call) > 0:
        shown["flavors_links"] = next_link(call, path, rows[-1].id)
    return shown


def _public(text: str | None) -> bool | None:
    """Return the filter for public or private flavors, for an administrator: ``True`` (public), ``False`` (private) or
    ``None`` (all). *text*: the query parameter ``is_public``; if it is missing, public flavors. Raises
    ``InvalidRequest``."""
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


def _arguments(call: Call) -> dict[str, Any]:
    return FIELDS.arguments(call.body)


# os-flavor-access: the projects that may use a private flavor --------------------------------------------------
def _access(_call: Call, access: flavor_access.Access) -> dict[str, Any]:
    return {"flavor_access": [{"flavor_id": access.flavor, "tenant_id": project} for project in access.projects]}


def _action(name: str, use: UseCase[..., Any], arguments: Callable[[Call], dict[str, Any]]) -> ApiOperation:
    return _row("POST", "/{id}/action", f"action.{name}", use, action=name, given=arguments, shown=_access,
                body=Wrapped(name, body_object({"tenant": PROJECT}, "tenant")))


# os-extra_specs: requirements of flavors for hosts, and settings for guests --------------------------------------
def _specs(call: Call) -> dict[str, Any]:
    return {"specs": call.body, "checked": call.at(ApiChange.EXTRA_SPECS_CHECKED)}


def handle_update_extra_spec(call: Call) -> Any:
    """Set one extra spec of a flavor, and return {name: value}: PUT …/os-extra_specs/{id}. Raises ``InvalidRequest`` if
    the name in the body differs from the name in the URL."""
    # the policy error comes first, before errors in the body
    flavor_extra_specs.update_extra_specs.check_allowed(call)
    if call.params["id"] not in call.body:
        raise InvalidRequest("Request body and URI mismatch: the body's key must be the extra spec of the path.")
    flavor_extra_specs.update_extra_specs(call, call.params["flavor_id"], **_specs(call))
    return call.body


_row = operation_factory("flavors", "/flavors")
_extra = operation_factory("flavors.os-extra_specs", "/flavors/{flavor_id}/os-extra_specs")
ONE = FIELDS.one("flavor")
OPERATIONS = (
    _row("GET", "", "list", flavors.list_flavors, given=_page, query=LIST_QUERY, strict=75, quick=True,
         shown=lambda call, rows: _listed(call, rows, "/flavors", "list")),
    _row("GET", "/detail", "detail.list", flavors.list_flavors, given=_page, query=LIST_QUERY, strict=75, quick=True,
         shown=lambda call, rows: _listed(call, rows, "/flavors/detail", "show")),
    _row("POST", "", "create", flavors.create_flavor, body=Wrapped("flavor", FIELDS.body("create")), given=_arguments,
         shown=ONE),
    _row("GET", "/{id}", "show", flavors.show_flavor, shown=ONE, strict=102, quick=True),
    _row("PUT", "/{id}", "update", flavors.update_flavor, since=55, body=Wrapped("flavor", FIELDS.body("update")),
         given=_arguments, shown=ONE),
    _row("DELETE", "/{id}", "delete", flavors.delete_flavor, status=202),
    _row("GET", "/{flavor_id}/os-flavor-access", "os-flavor-access.list", flavor_access.show_flavor_access,
         shown=_access, strict=102),
    _action("addTenantAccess", flavor_access.create_flavor_access, lambda call: {
        "project": call.body["tenant"], "public": not call.at(ApiChange.FLAVOR_ACCESS_PRIVATE_ONLY)}),
    _action("removeTenantAccess", flavor_access.delete_flavor_access, lambda call: {"project": call.body["tenant"]}),
    _extra("GET", "", "list", flavor_extra_specs.show_extra_specs, strict=102,
           shown=lambda _call, text: {"extra_specs": orjson.Fragment(text)}),
    _extra("POST", "", "create", flavor_extra_specs.create_extra_specs,
           body=Wrapped("extra_specs", flavor_extra_specs.SPECS),
           given=_specs, shown=lambda call, _none: {"extra_specs": call.body}),
    _extra("GET", "/{id}", "show", flavor_extra_specs.show_extra_spec, strict=102,
           shown=lambda call, value: {call.params["id"]: value}),
    _extra("PUT", "/{id}", "update", flavor_extra_specs.update_extra_specs, handler=handle_update_extra_spec,
           body=OneKey(flavor_extra_specs.SPECS)),
    _extra("DELETE", "/{id}", "delete", flavor_extra_specs.delete_extra_spec),
)
