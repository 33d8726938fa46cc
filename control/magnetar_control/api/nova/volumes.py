# SPDX-License-Identifier: GPL-3.0-or-later
"""os-volumes and os-snapshots, until 2.35: the API of the volume service as Nova proxies it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.api.values import Number, Wrapped
from magnetar_control.compute.proxies import volumes
from magnetar_control.web import Answer
from magnetar_core.document import Document
from magnetar_core.values import Nullable, Text

from .fields import ApiField, Fields, View
from .operation import Call, Query, operation_factory
from .paging import Limit
from .values import METADATA, PROXIES, TRUTH

#: Largest size of a volume in a body.
MOST = 2**31 - 1
NAME = Nullable(Text(0, 255))


def _attachments(_view: View, volume: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the value of ``attachments`` of a volume: a list with the volume's first attachment to a server, or with
    an empty object if there is none, as in Nova."""
    attachment = next((attachment for attachment in volume["attachments"] if attachment["status"] == "attached"), None)
    return [{"id": volume["id"], "volumeId": volume["id"], "serverId": attachment["server_id"],
             "device": attachment["device"]}
            if attachment else {}]


FIELDS = Fields(
    *(ApiField(name, shows="show") for name in ("id", "status")),
    ApiField("size", Number(1, MOST), takes="create", required="create", shows="show"),
    ApiField("availabilityZone", name="availability_zone", shows="show"),
    ApiField("createdAt", name="created_at", shows="show"),
    ApiField("displayName", name="name", shows="show"),
    ApiField("displayDescription", name="description", shows="show"),
    ApiField("volumeType", name="volume_type", shows="show"),
    ApiField("snapshotId", name="snapshot_id", shows="show"),
    ApiField("attachments", shows="show", show=_attachments),
    ApiField("metadata", METADATA, takes="create", shows="show"),
    ApiField("display_name", NAME, name="name", takes="create"),
    ApiField("display_description", NAME, name="description", takes="create"),
    ApiField("volume_type", NAME, takes="create"),
    ApiField("snapshot_id", NAME, takes="create"),
    ApiField("availability_zone", NAME, name="zone", takes="create"),
    mapping=True)
SNAPSHOT = Fields(
    *(ApiField(name, shows="show") for name in ("id", "status", "size")),
    ApiField("volumeId", name="volume_id", shows="show"),
    ApiField("createdAt", name="created_at", shows="show"),
    ApiField("displayName", name="name", shows="show"),
    ApiField("displayDescription", name="description", shows="show"),
    ApiField("volume_id", Text(1, 255), takes="create", required="create"),
    ApiField("force", TRUTH, takes="create"),
    ApiField("display_name", NAME, name="name", takes="create"),
    ApiField("display_description", NAME, name="description", takes="create"),
    mapping=True)


def _page(call: Call) -> dict[str, int]:
    most = call.settings.max_limit
    return {"limit": min(call.query.get("limit") or most, most), "offset": call.query.get("offset", 0)}


def _made(call: Call, volume: Document) -> Answer:
    return Answer({"volume": View(call, FIELDS).document(volume)}, 200,
                  {"Location": f"{call.base}/os-volumes/{volume['id']}"})


QUERY = {"limit": Query(value=Limit()), "offset": Query(value=Limit())}
_row = operation_factory("os-volumes", "/os-volumes", until=PROXIES)
_snapshot = operation_factory("os-snapshots", "/os-snapshots", until=PROXIES)
OPERATIONS = (
    _row("GET", "", "list", volumes.list_volumes, given=_page, query=QUERY, shown=FIELDS.many("volumes")),
    _row("GET", "/detail", "detail.list", volumes.list_volumes_detail, given=_page, query=QUERY,
         shown=FIELDS.many("volumes")),
    _row("POST", "", "create", volumes.create_volume, body=Wrapped("volume", FIELDS.body("create")), shown=_made,
         given=lambda call: FIELDS.arguments(call.body, "create")),
    _row("GET", "/{id}", "show", volumes.show_volume, shown=FIELDS.one("volume")),
    _row("DELETE", "/{id}", "delete", volumes.delete_volume, status=202),
    _snapshot("GET", "", "list", volumes.list_volume_snapshots, given=_page, query=QUERY,
              shown=SNAPSHOT.many("snapshots")),
    _snapshot("GET", "/detail", "detail.list", volumes.list_volume_snapshots_detail, given=_page, query=QUERY,
              shown=SNAPSHOT.many("snapshots")),
    _snapshot("POST", "", "create", volumes.create_volume_snapshot, body=Wrapped("snapshot", SNAPSHOT.body("create")),
              given=lambda call: SNAPSHOT.arguments(call.body, "create"), shown=SNAPSHOT.one("snapshot")),
    _snapshot("GET", "/{id}", "show", volumes.show_volume_snapshot, shown=SNAPSHOT.one("snapshot")),
    _snapshot("DELETE", "/{id}", "delete", volumes.delete_volume_snapshot, status=202),
)
