# SPDX-License-Identifier: GPL-3.0-or-later
"""servers/{id}/os-volume_attachments: the volumes that a server has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.api.nova.history import Gate
from magnetar_control.api.nova.operation import Call, Operation, Query
from magnetar_control.api.nova.paging import Limit
from magnetar_control.api.nova.values import (
    TAG,
    TRUTH,
    record,
    since,
)
from magnetar_control.api.values import Id, Wrapped
from magnetar_control.compute import volume_attachments
from magnetar_control.web import Answer
from magnetar_core.values import Nullable, Text

PATH = "/servers/{server_id}/os-volume_attachments"
DEVICE = Text(1, 255, r"(/dev/x?[a-z]?d?)([a-z]+)[0-9]*", "must be a device name such as /dev/vdb")


def view(call: Call, entry: Mapping[str, Any], ids: bool | None = None) -> dict[str, Any]:
    """An attachment at the version of the request; *ids*: with the uuids of 2.89 in place of ``id``."""
    shown = {"serverId": call.target.row.id, "volumeId": entry["volume_id"]}
    if entry["device"]:
        shown["device"] = entry["device"]
    if call.at(Gate.DEVICE_TAGS_SHOWN):
        shown["tag"] = entry["tag"]
    if call.at(Gate.ATTACHMENT_DELETES):
        shown["delete_on_termination"] = entry["delete_on_termination"]
    if call.at(Gate.ATTACHMENT_UUIDS) if ids is None else ids:
        return {**shown, "attachment_id": entry["attachment_id"], "bdm_uuid": entry["bdm_uuid"]}
    return {**shown, "id": entry["volume_id"]}


def index(call: Call) -> dict[str, Any]:
    """GET: all of them."""
    found = volume_attachments.index(call, call.target)
    most, begin = call.settings.max_limit, call.query.get("offset", 0)
    count = min(call.query.get("limit") or most, most)
    return {"volumeAttachments": [view(call, one) for one in found[begin:begin + count]]}


def show(call: Call) -> dict[str, Any]:
    """GET of one."""
    return {"volumeAttachment": view(call, volume_attachments.show(call, call.target, call.params["id"]))}


def create(call: Call) -> Answer:
    """POST: the volume is reserved and its device named; then it is attached. Since 2.101 the answer is empty."""
    want = call.body
    entry = volume_attachments.attach(
        call, call.target, want["volumeId"], want.get("device"), want.get("tag"),
        delete_on_termination=bool(want.get("delete_on_termination")), multiattach=call.at(Gate.MULTIATTACH))
    if call.at(Gate.ATTACH_ANSWERS_202):
        return Answer(None, 202)
    return Answer({"volumeAttachment": view(call, entry, ids=False)}, 200)


def update(call: Call) -> Answer:
    """PUT: since 2.85 whether the volume is deleted with the server. Before, and with another volume, it is a swap."""
    want, id = call.body, call.params["id"]
    swap = want["volumeId"] != id or not call.at(Gate.ATTACHMENT_UPDATES)
    same = {name: want[name] for name in ("device", "tag", "serverId", "id") if name in want}
    volume_attachments.update(call, call.target, id, want["volumeId"] if swap else None, same=same,
                              delete_on_termination=want.get("delete_on_termination"))
    return Answer(None, 202)


def delete(call: Call) -> Answer:
    """DELETE: 202; the guest lets go of it afterwards."""
    volume_attachments.detach(call, call.target, call.params["id"])
    return Answer(None, 202)


CREATE = record({"volumeId": Id(), "device": Nullable(DEVICE), "tag": since("2.49", TAG),
                 "delete_on_termination": since("2.79", TRUTH)}, "volumeId")
UPDATE = record({"volumeId": Id(), "device": since("2.85", Nullable(DEVICE)), "tag": since("2.85", Nullable(TAG)),
                 "delete_on_termination": since("2.85", TRUTH), "serverId": since("2.85", Id()),
                 "id": since("2.85", Id())}, "volumeId")
_PAGE = {"limit": Query(value=Limit()), "offset": Query(value=Limit())}


def _row(method: str, handler: Any, verb: str, use: Any, path: str = PATH, **more: Any) -> Operation:
    return Operation(method=method, path=path, handler=handler, name=f"servers.os-volume_attachments.{verb}", use=use,
                     target="server", **more)


OPERATIONS = (
    _row("GET", index, "list", volume_attachments.index, query=_PAGE, strict=75),
    _row("POST", create, "create", volume_attachments.attach, body=Wrapped("volumeAttachment", CREATE)),
    _row("GET", show, "show", volume_attachments.show, PATH + "/{id}"),
    _row("PUT", update, "update", volume_attachments.update, PATH + "/{id}", body=Wrapped("volumeAttachment", UPDATE),
         status=202),
    _row("DELETE", delete, "delete", volume_attachments.detach, PATH + "/{id}", status=202),
)
