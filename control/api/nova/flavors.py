# SPDX-License-Identifier: GPL-3.0-or-later
"""flavors: sizes of servers. Everybody sees the public ones; administrators make and remove them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Any

import orjson
from sqlalchemy.exc import IntegrityError

from magnetar_control.api.nova.faults import not_found
from magnetar_control.api.nova.operation import Call, Operation, Query
from magnetar_control.api.nova.paging import PAGE, next_link, size
from magnetar_control.api.nova.values import FALSE, TRUE, TRUTH
from magnetar_control.api.values import Anything, Decimal, Number, Pattern, Wrapped, record, since
from magnetar_control.store import flavors
from magnetar_control.web import Answer
from magnetar_core.errors import Conflict, InvalidRequest
from magnetar_core.kinds.common import NAME
from magnetar_core.values import Choice, Choices, Integer, Nullable, OneOf, Text

SPECS = "os_compute_api:os-flavor-extra-specs:index"
MANAGE = "os_compute_api:os-flavor-manage:"
#: Gates.
DESCRIBED, SHOWS_SPECS, STRICT, SWAP_NUMBER, PLAIN, STRICT_SHOW = 55, 61, 75, 75, 102, 102
TEXT = Nullable(Text(0, 65535, r"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*", "must be printable text"))
ID = Text(1, 255, r"(?! )[a-zA-Z0-9. _-]+(?<! )", "may have letters, digits, blanks inside, and . _ - only")
_SORTS = [word for word in sorted(flavors.SORTS) if word != "rxtx_factor"]
LIST_QUERY: Mapping[str, Query] = {
    **PAGE, "is_public": Query(value=Anything()), "minRam": Query(value=Anything()), "minDisk": Query(value=Anything()),
    "sort_key": Query(value=Choices(*_SORTS, Choice("rxtx_factor", until="2.101"))),
    "sort_dir": Query(value=Choices("asc", "desc")), "name": Query(value=Pattern(), since=PLAIN)}


def links(call: Call, id: str) -> list[dict[str, str]]:
    """Self and bookmark."""
    project = "/" + call.request.extra["project"] if "project" in call.request.extra else ""
    return [{"rel": "self", "href": f"{call.base}/flavors/{id}"},
            {"rel": "bookmark", "href": f"{call.request.root}{project}/flavors/{id}"}]


def brief(call: Call, row: Any, _specs: bool = False) -> dict[str, Any]:
    """The keys of a list."""
    shown = {"id": row.id, "name": row.name, "links": links(call, row.id)}
    if call.version >= DESCRIBED:
        shown["description"] = row.description
    return shown


def full(call: Call, row: Any, specs: bool | None = None) -> dict[str, Any]:
    """All keys; *specs*: whether the caller may see the extra specs, where that is known already."""
    shown = brief(call, row)
    shown.update({
        "ram": row.ram, "disk": row.disk, "vcpus": row.vcpus, "OS-FLV-EXT-DATA:ephemeral": row.ephemeral,
        "os-flavor-access:is_public": row.is_public,
        "swap": row.swap if row.swap or call.version >= SWAP_NUMBER else ""})
    if call.version < PLAIN:
        shown.update({"OS-FLV-DISABLED:disabled": False, "rxtx_factor": row.rxtx_factor})
    if specs if specs is not None else call.version >= SHOWS_SPECS and call.allows(SPECS):
        shown["extra_specs"] = orjson.Fragment(row.extra_specs)
    return shown


def _listed(call: Call, path: str, show: Any) -> Answer:
    query = call.query
    wanted = flavors.Wanted(
        limit=size(call), sort=query.get("sort_key", "flavorid"), descending=query.get("sort_dir") == "desc",
        project=call.project, public=_public(query.get("is_public")) if call.context.is_admin else True,
        least_ram=_least(query, "minRam"), least_disk=_least(query, "minDisk"), name=query.get("name"),
        marker=query.get("marker"))
    with call.cloud.store.api.read() as connection:
        rows = flavors.page(connection, wanted)
    if rows is None:
        raise InvalidRequest(f"marker [{str(wanted.marker)[:255]}] not found")
    specs = call.version >= SHOWS_SPECS and call.allows(SPECS)
    answer: dict[str, Any] = {"flavors": [show(call, row, specs) for row in rows]}
    if len(rows) >= wanted.limit > 0:
        answer["flavors_links"] = next_link(call, path, rows[-1].id)
    return Answer(answer)


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


def list_brief(call: Call) -> Answer:
    """GET /flavors."""
    return _listed(call, "/flavors", brief)


def list_full(call: Call) -> Answer:
    """GET /flavors/detail."""
    return _listed(call, "/flavors/detail", full)


def found(call: Call, id: str) -> Any:
    """The flavor's row. Raises ``NotFound`` when there is none that the caller may see."""
    with call.cloud.store.api.read() as connection:
        row = flavors.find(connection, id, call.project, everything=call.context.is_admin)
    if row is None:
        raise not_found("Flavor", id[:255])
    return row


def show(call: Call) -> dict[str, Any]:
    """GET /flavors/{id}."""
    return {"flavor": full(call, found(call, call.params["id"]))}


SIZE, SOME = Number(0), Number(1)
CREATE_BODY = Wrapped("flavor", record({
    "name": NAME, "id": Nullable(OneOf(ID, Integer())), "ram": SOME, "vcpus": SOME, "disk": SIZE,
    "OS-FLV-EXT-DATA:ephemeral": SIZE, "swap": SIZE, "os-flavor-access:is_public": TRUTH,
    "rxtx_factor": since("2.1", Decimal(3.40282e38), until="2.101"), "description": since("2.55", TEXT),
}, "name", "ram", "vcpus", "disk"))


def create(call: Call) -> dict[str, Any]:
    """POST /flavors."""
    want = call.body
    given = want.get("id")
    id = str(uuid.uuid4()) if given in (None, "auto") else str(given)
    values = {"id": id, "name": want["name"], "ram": want["ram"], "vcpus": want["vcpus"], "disk": want["disk"],
              "ephemeral": want.get("OS-FLV-EXT-DATA:ephemeral", 0), "swap": want.get("swap", 0),
              "is_public": want.get("os-flavor-access:is_public", True), "rxtx_factor": want.get("rxtx_factor", 1.0),
              "description": want.get("description")}
    try:
        with call.cloud.store.api.write() as connection:
            _free(flavors.taken(connection, id, want["name"]), values)
            row = flavors.make(connection, **values)
    except IntegrityError:  # somebody else made one of that id or name meanwhile
        with call.cloud.store.api.read() as connection:
            _free(flavors.taken(connection, id, want["name"]), values)
        raise
    return {"flavor": full(call, row)}


def _free(taken: str | None, values: Mapping[str, Any]) -> None:
    if taken:
        raise Conflict(f"Flavor with {'ID' if taken == 'id' else 'name'} {values[taken]} already exists.")


UPDATE_BODY = Wrapped("flavor", record({"description": TEXT}, "description"))


def update(call: Call) -> dict[str, Any]:
    """PUT /flavors/{id}: the description."""
    row = found(call, call.params["id"])
    with call.cloud.store.api.write() as connection:
        flavors.change(connection, row.number, description=call.body["description"])
    return {"flavor": full(call, found(call, row.id))}


def delete(call: Call) -> Answer:
    """DELETE /flavors/{id}."""
    with call.cloud.store.api.write() as connection:
        gone = flavors.remove(connection, call.params["id"])
    if not gone:
        raise not_found("Flavor", call.params["id"][:255])
    return Answer(None, 202)


OPERATIONS = (
    Operation(method="GET", path="/flavors", handler=list_brief, name="flavors.list", query=LIST_QUERY, strict=STRICT,
              quick=True),
    Operation(method="GET", path="/flavors/detail", handler=list_full, name="flavors.detail.list", query=LIST_QUERY,
              strict=STRICT, quick=True),
    Operation(method="POST", path="/flavors", handler=create, name="flavors.create", rule=f"{MANAGE}create",
              body=CREATE_BODY),
    Operation(method="GET", path="/flavors/{id}", handler=show, name="flavors.show", strict=STRICT_SHOW,
              quick=True),
    Operation(method="PUT", path="/flavors/{id}", handler=update, name="flavors.update", rule=f"{MANAGE}update",
              since=55, body=UPDATE_BODY),
    Operation(method="DELETE", path="/flavors/{id}", handler=delete, name="flavors.delete", rule=f"{MANAGE}delete",
              status=202),
)
