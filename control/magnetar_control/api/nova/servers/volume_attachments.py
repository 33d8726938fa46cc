# SPDX-License-Identifier: GPL-3.0-or-later
"""servers/{id}/os-volume_attachments: the volumes of a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from magnetar_control.api.nova.fields import ApiField, Fields, View
from magnetar_control.api.nova.history import ApiChange
from magnetar_control.api.nova.operation import Call, Query, operation_factory
from magnetar_control.api.nova.paging import Limit
from magnetar_control.api.nova.values import TAG, TRUTH, body_object, field_since
from magnetar_control.api.values import Id, Wrapped
from magnetar_control.compute.attachments import volume_attachments
from magnetar_control.web import Answer
from magnetar_core.values import Nullable, Text

DEVICE = Text(1, 255, r"(/dev/x?[a-z]?d?)([a-z]+)[0-9]*", "must be a device name such as /dev/vdb")


#: The fields by answer; create is the answer of POST.
FIELDS = Fields(
    ApiField("serverId", shows="show create", show=lambda view, _entry: view.call.target.row.id),
    ApiField("volumeId", name="volume_id", shows="show create"),
    ApiField("device", shows="show create", when=lambda _shown, entry: entry["device"]),
    ApiField("tag", shows="show create", since=70),
    ApiField("delete_on_termination", shows="show create", since=79),
    ApiField("id", name="volume_id", shows="create"),
    ApiField("id", name="volume_id", shows="show", until=88),
    ApiField("attachment_id", shows="show", since=89),
    ApiField("bdm_uuid", shows="show", since=89),
    mapping=True)


def _page(call: Call, attachments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    most, begin = call.settings.max_limit, call.query.get("offset", 0)
    count = min(call.query.get("limit") or most, most)
    return {"volumeAttachments": View(call, FIELDS).documents(attachments[begin:begin + count])}


def _attach_arguments(call: Call) -> dict[str, Any]:
    want = call.body
    return {"volume_id": want["volumeId"], "device": want.get("device"), "tag": want.get("tag"),
            "delete_on_termination": bool(want.get("delete_on_termination")),
            "multiattach": call.at(ApiChange.MULTIATTACH), **_shelved(call)}


def _shelved(call: Call) -> dict[str, Any]:
    return {"shelved": call.at(ApiChange.SHELVED_VOLUMES)}


def _attached(call: Call, entry: Mapping[str, Any]) -> Answer:
    if call.at(ApiChange.ATTACH_ANSWERS_202):
        return Answer(None, 202)
    return Answer({"volumeAttachment": View(call, FIELDS, "create").document(entry)})


def _change(call: Call) -> None:
    """Handle PUT …/os-volume_attachments/{id}: since 2.85, update delete_on_termination of the attachment. Before 2.85,
    or if the body names another volume, replace the attached volume; this needs a different permission."""
    want, id = call.body, call.params["id"]
    if want["volumeId"] != id or not call.at(ApiChange.ATTACHMENT_UPDATES):
        volume_attachments.swap_server_volume(call, call.target, id, want["volumeId"])
        return
    same = {name: want[name] for name in ("device", "tag", "serverId", "id") if name in want}
    volume_attachments.update_volume_attachment(call, call.target, id, same=same,
                                                delete_on_termination=want.get("delete_on_termination"))


CREATE = body_object({"volumeId": Id(), "device": Nullable(DEVICE), "tag": field_since("2.49", TAG),
                      "delete_on_termination": field_since("2.79", TRUTH)}, "volumeId")
UPDATE = body_object({"volumeId": Id(), "device": field_since("2.85", Nullable(DEVICE)),
                      "tag": field_since("2.85", Nullable(TAG)),
                      "delete_on_termination": field_since("2.85", TRUTH), "serverId": field_since("2.85", Id()),
                      "id": field_since("2.85", Id())}, "volumeId")
_row = operation_factory("servers.os-volume_attachments", "/servers/{server_id}/os-volume_attachments", target="server")
OPERATIONS = (
    _row("GET", "", "list", volume_attachments.list_volume_attachments, shown=_page, strict=75,
         query={"limit": Query(value=Limit()), "offset": Query(value=Limit())}),
    _row("POST", "", "create", volume_attachments.attach_server_volume, body=Wrapped("volumeAttachment", CREATE),
         given=_attach_arguments, shown=_attached),
    _row("GET", "/{id}", "show", volume_attachments.show_volume_attachment, shown=FIELDS.one("volumeAttachment")),
    _row("PUT", "/{id}", "update", volume_attachments.update_volume_attachment, handler=_change,
         body=Wrapped("volumeAttachment", UPDATE), status=202),
    _row("DELETE", "/{id}", "delete", volume_attachments.detach_server_volume, given=_shelved, status=202),
)
