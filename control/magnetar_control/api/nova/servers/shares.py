# SPDX-License-Identifier: GPL-3.0-or-later
"""servers/{id}/shares: the shares of a server (2.97)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from magnetar_control.api.nova.fields import ABSENT, ApiField, Fields, View
from magnetar_control.api.nova.operation import operation_factory
from magnetar_control.api.values import Id, Wrapped
from magnetar_control.compute.attachments import shares
from magnetar_core.events import SHARE_TAG


def _to_admins(name: str) -> Callable[[View, Mapping[str, Any]], Any]:
    return lambda view, entry: entry[name] if view.call.is_admin else ABSENT


def _has_location(_document: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    """Return whether the field for the share's location is shown: *entry*, the share attachment, has a location only
    after the host has attached the share."""
    return entry["location"] is not None


FIELDS = Fields(
    ApiField("share_id", Id(), takes="create", required="create", shows="list show"),
    ApiField("status", shows="list show"),
    ApiField("tag", SHARE_TAG, takes="create", shows="list show"),
    ApiField("export_location", name="location", shows="show", when=_has_location, show=_to_admins("location")),
    ApiField("uuid", shows="show", when=lambda _document, _entry: True, show=_to_admins("uuid")),
    mapping=True)
_row = operation_factory("servers.shares", "/servers/{server_id}/shares", target="server", since=97)
OPERATIONS = (
    _row("GET", "", "list", shares.list_server_shares, shown=FIELDS.many("shares", "list"), strict=97),
    _row("POST", "", "create", shares.attach_server_share, body=Wrapped("share", FIELDS.body("create")),
         given=lambda call: FIELDS.arguments(call.body), shown=FIELDS.one("share"), status=201),
    _row("GET", "/{id}", "show", shares.show_server_share, shown=FIELDS.one("share"), strict=97),
    _row("DELETE", "/{id}", "delete", shares.detach_server_share),
)
