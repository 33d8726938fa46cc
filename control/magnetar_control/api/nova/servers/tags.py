# SPDX-License-Identifier: GPL-3.0-or-later
"""servers/{id}/tags (2.26): words by which lists of servers can be filtered."""

from __future__ import annotations

from urllib.parse import quote

import orjson

from magnetar_control.api.nova.operation import Call, body_as, operation_factory, shown_as
from magnetar_control.api.nova.values import TAG, TAGS
from magnetar_control.api.values import Wrapped
from magnetar_control.compute.servers import tags
from magnetar_control.web import Answer


def handle_add_tag(call: Call) -> Answer:
    """Add a tag to a server: PUT …/tags/{id}. Return 201 if the tag is new, 204 if the server already had it."""
    tag = TAG.check(call.params["id"], "tag")
    if not tags.add_server_tag(call, call.target, tag):
        return Answer(None, 204)
    return Answer(None, 201, {"Location": f"{call.base}/servers/{call.target.row.id}/tags/{quote(tag, safe='')}"})


_row = operation_factory("servers.tags", "/servers/{server_id}/tags", target="server", since=26)
OPERATIONS = (
    _row("GET", "", "list", tags.list_server_tags, shown=lambda _call, text: {"tags": orjson.Fragment(text)}),
    _row("PUT", "", "replace", tags.replace_server_tags, body=Wrapped("tags", TAGS), given=body_as("tags"),
         shown=shown_as("tags")),
    _row("DELETE", "", "delete_all", tags.delete_server_tags, status=204),
    _row("GET", "/{id}", "show", tags.show_server_tag, status=204),
    _row("PUT", "/{id}", "update", tags.add_server_tag, handler=handle_add_tag, bodiless=True, status=201),
    _row("DELETE", "/{id}", "delete", tags.delete_server_tag, status=204),
)
