# SPDX-License-Identifier: GPL-3.0-or-later
"""os-keypairs: public keys of users. Until 2.91 pairs are made here on request."""

from __future__ import annotations

from typing import Any

from magnetar_control.api.nova.fields import ApiField, Fields, View, below
from magnetar_control.api.nova.history import Gate
from magnetar_control.api.nova.operation import Call, Operation, Query
from magnetar_control.api.nova.paging import PAGE, next_link, size
from magnetar_control.api.values import Anything, Wrapped
from magnetar_control.compute import keypairs
from magnetar_core.values import Choices, Text

PATH = "/os-keypairs"
KEY = Text(1, 16384)
#: create: also what POST answers.
FIELDS = Fields(
    ApiField("name", Text(1, 255, r"(?! )[a-zA-Z0-9_ -]+(?<! )",
                          "may have letters, digits, blanks inside, - and _ only"),
             takes="create", required="create", until=91),
    ApiField("name", Text(1, 255, r"(?! )[a-zA-Z0-9_ @.-]+(?<! )",
                          "may have letters, digits, blanks inside, and - _ @ . only"),
             takes="create", required="create", since=92),
    ApiField("name", shows="list show create"),
    ApiField("type", Choices("ssh", "x509"), takes="create", shows="list show create", since=2),
    ApiField("user_id", Text(1, 255), takes="create", since=10),
    ApiField("user_id", shows="show create"),
    ApiField("public_key", KEY, takes="create", until=91),
    ApiField("public_key", KEY, takes="create", required="create", since=92),
    ApiField("public_key", shows="list show create"),
    ApiField("fingerprint", shows="list show create"),
    ApiField("id", name="number", shows="show"),
    ApiField("created_at", shows="show"),
    ApiField("updated_at", shows="show"),
    ApiField("deleted", shows="show", show=lambda _view, _row: False),
    ApiField("deleted_at", shows="show", show=lambda _view, _row: None))
USER = {"user_id": Query(value=Text(1, 255), since=10)}


def index(call: Call) -> dict[str, Any]:
    """GET /os-keypairs."""
    limit = size(call) if call.at(Gate.KEYPAIR_PAGES) else None
    rows = keypairs.page(call, call.query.get("user_id"), limit, call.query.get("marker"))
    view = View(call, FIELDS, "list")
    answer: dict[str, Any] = {"keypairs": [{"keypair": view.document(row)} for row in rows]}
    if limit is not None and len(rows) >= limit > 0:
        answer["keypairs_links"] = next_link(call, PATH, rows[-1].name)
    return answer


def show(call: Call) -> dict[str, Any]:
    """GET /os-keypairs/{id}; the id is the name."""
    row = keypairs.show(call, call.params["id"], call.query.get("user_id"))
    return {"keypair": View(call, FIELDS).document(row)}


def create(call: Call) -> dict[str, Any]:
    """POST /os-keypairs: keep a public key, or (until 2.91, without one) make a pair."""
    with below("keypair"):
        made = keypairs.create(call, **FIELDS.arguments(call.body))
    shown = View(call, FIELDS, "create").document(made)
    if made.private_key is not None:
        shown["private_key"] = made.private_key
    return {"keypair": shown}


def delete(call: Call) -> None:
    """DELETE /os-keypairs/{id}."""
    keypairs.delete(call, call.params["id"], call.query.get("user_id"))


_PAGED = Gate.KEYPAIR_PAGES.version
OPERATIONS = (
    Operation(method="GET", path=PATH, handler=index, name="os-keypairs.list", strict=75, query={
        **USER, "limit": Query(value=PAGE["limit"].value, since=_PAGED),
        "marker": Query(value=Anything(), since=_PAGED)}),
    Operation(method="POST", path=PATH, handler=create, name="os-keypairs.create",
              body=Wrapped("keypair", FIELDS.body("create")), status=((1, 200), (2, 201))),
    Operation(method="GET", path=PATH + "/{id}", handler=show, name="os-keypairs.show", query=USER, strict=75),
    Operation(method="DELETE", path=PATH + "/{id}", handler=delete, name="os-keypairs.delete", query=USER, strict=75,
              status=((1, 202), (2, 204))),
)
