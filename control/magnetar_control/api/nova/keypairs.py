# SPDX-License-Identifier: GPL-3.0-or-later
"""os-keypairs: public keys of users. Until 2.91 the service generates key pairs on request."""

from __future__ import annotations

from typing import Any

from magnetar_control.api.values import Wrapped
from magnetar_control.compute.accounts import keypairs
from magnetar_core.values import Choices, Text

from .fields import ApiField, Fields, View, field_errors_below
from .history import ApiChange
from .operation import Call, Query, operation_factory
from .paging import next_link, page_size, paging_parameters

PATH = "/os-keypairs"
KEY = Text(1, 16384)
#: The fields by request and answer; create is the body and the answer of POST.
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
    ApiField("deleted_at", shows="show", show=lambda _view, _row: None),
    ApiField("private_key", shows="create", when=lambda _document, row: row.private_key is not None))


def handle_list_keypairs(call: Call) -> dict[str, Any]:
    """Return a page of key pairs: GET /os-keypairs."""
    limit = page_size(call) if call.at(ApiChange.KEYPAIR_PAGES) else None
    rows = keypairs.list_keypairs(call, call.query.get("user_id"), limit, call.query.get("marker"))
    view = View(call, FIELDS, "list")
    answer: dict[str, Any] = {"keypairs": [{"keypair": view.document(row)} for row in rows]}
    if limit is not None and len(rows) >= limit > 0:
        answer["keypairs_links"] = next_link(call, PATH, rows[-1].name)
    return answer


def handle_create_keypair(call: Call) -> dict[str, Any]:
    """Create a key pair from the public key in the body, and return it: POST /os-keypairs. Until 2.91, the key pair is
    generated if the body has no public key."""
    with field_errors_below("keypair"):
        made = keypairs.create_keypair(call, **FIELDS.arguments(call.body))
    return {"keypair": View(call, FIELDS, "create").document(made)}


_row = operation_factory("os-keypairs", PATH)
_USER = {"user_id": Query(value=Text(1, 255), since=10)}
_NAMED = {"given": lambda call: {"user": call.query.get("user_id")}, "query": _USER, "strict": 75}
OPERATIONS = (
    _row("GET", "", "list", keypairs.list_keypairs, handler=handle_list_keypairs, strict=75,
         query={**_USER, **paging_parameters(ApiChange.KEYPAIR_PAGES.version)}),
    _row("POST", "", "create", keypairs.create_keypair, handler=handle_create_keypair,
         body=Wrapped("keypair", FIELDS.body("create")), status=((1, 200), (2, 201))),
    _row("GET", "/{id}", "show", keypairs.show_keypair, shown=FIELDS.one("keypair"), **_NAMED),
    _row("DELETE", "/{id}", "delete", keypairs.delete_keypair, status=((1, 202), (2, 204)), **_NAMED),
)
