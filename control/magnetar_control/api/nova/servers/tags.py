# SPDX-License-Identifier: GPL-3.0-or-later
"""Tags of servers (2.26): words to find them by."""

from __future__ import annotations

from urllib.parse import quote

import orjson

from magnetar_control.api.nova.operation import Call, body_as, noun, shown_as
from magnetar_control.api.nova.values import TAG, TAGS
from magnetar_control.api.values import Wrapped
from magnetar_control.compute.servers import tags
from magnetar_control.web import Answer


def update(call: Call) -> Answer:
    """PUT …/tags/{id}: 201 when the server has it now, 204 when it had it."""
    tag = TAG.check(call.params["id"], "tag")
    if not tags.add(call, call.target, tag):
        return Answer(None, 204)
    return Answer(None, 201, {"Location": f"{call.base}/servers/{call.target.row.id}/tags/{quote(tag, safe='')}"})


_row = noun("servers.tags", "/servers/{server_id}/tags", target="server", since=26)
OPERATIONS = (
    _row("GET", "", "list", tags.index, shown=lambda _call, text: {"tags": orjson.Fragment(text)}),
    _row("PUT", "", "replace", tags.replace, body=Wrapped("tags", TAGS), given=body_as("tags"), shown=shown_as("tags")),
    _row("DELETE", "", "delete_all", tags.delete_all, status=204),
    _row("GET", "/{id}", "show", tags.show, status=204),
    _row("PUT", "/{id}", "update", tags.add, handler=update, bodiless=True, status=201),
    _row("DELETE", "/{id}", "delete", tags.delete, status=204),
)
