# SPDX-License-Identifier: GPL-3.0-or-later
"""servers/{id}/os-volume_attachments: the volumes that a server has. A conductor attaches and detaches them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import orjson
from sqlalchemy import select

from magnetar_control.api.nova.app import guard
from magnetar_control.api.nova.operation import Call, Operation, Query
from magnetar_control.api.nova.paging import Limit
from magnetar_control.api.nova.values import TAG, TRUTH
from magnetar_control.api.values import Id, Wrapped, record, since
from magnetar_control.compute import hold
from magnetar_control.store import servers
from magnetar_control.store.tables import actions
from magnetar_control.web import Answer
from magnetar_core.errors import Conflict, Forbidden, InvalidRequest, MagnetarError, NotFound
from magnetar_core.values import Nullable, Text

RULE = "os_compute_api:os-volumes-attachments:"
PATH = "/servers/{server_id}/os-volume_attachments"
#: Gates.
SHOWS_TAG, SHOWS_DELETE, SHOWS_IDS, MULTIATTACH, ANSWERS_NOTHING, UPDATES, STRICT = 70, 79, 89, 60, 101, 85, 75
#: Device names that the host gives: vda is the root disk, vdz the config drive.
LETTERS = "bcdefghijklmnopqrstuvwxy"
DEVICE = Text(1, 255, r"(/dev/x?[a-z]?d?)([a-z]+)[0-9]*", "must be a device name such as /dev/vdb")


def view(call: Call, entry: Mapping[str, Any], ids: bool | None = None) -> dict[str, Any]:
    """An attachment at the version of the request; *ids*: with the uuids of 2.89 in place of ``id``."""
    version, shown = call.version, {"serverId": call.server.id, "volumeId": entry["volume_id"]}
    if entry["device"]:
        shown["device"] = entry["device"]
    if version >= SHOWS_TAG:
        shown["tag"] = entry["tag"]
    if version >= SHOWS_DELETE:
        shown["delete_on_termination"] = entry["delete_on_termination"]
    if version >= SHOWS_IDS if ids is None else ids:
        return {**shown, "attachment_id": entry["attachment_id"], "bdm_uuid": entry["bdm_uuid"]}
    return {**shown, "id": entry["volume_id"]}


def entries(call: Call) -> list[dict[str, Any]]:
    """What the server has, or is being given."""
    found: list[dict[str, Any]] = orjson.loads(call.server.volumes)
    return found


def entry_of(call: Call, id: str) -> dict[str, Any]:
    """The attachment of volume *id*. Raises ``NotFound``."""
    for one in entries(call):
        if one["volume_id"] == id:
            return one
    raise NotFound(f"Instance {call.server.id} is not attached to volume {id[:80]}")


def index(call: Call) -> dict[str, Any]:
    """GET: all of them."""
    most, begin = call.settings.max_limit, call.query.get("offset", 0)
    count = min(call.query.get("limit") or most, most)
    return {"volumeAttachments": [view(call, one) for one in entries(call)[begin:begin + count]]}


def show(call: Call) -> dict[str, Any]:
    """GET of one."""
    return {"volumeAttachment": view(call, entry_of(call, call.params["id"]))}


# Attaching ------------------------------------------------------------------------------------------------------
def create(call: Call) -> Answer:
    """POST: the volume is reserved and its device named; then it is attached. Since 2.101 the answer is empty."""
    want = call.body
    id = want["volumeId"]
    _check(call, id)
    entry = {"volume_id": id, "attachment_id": str(uuid.uuid4()), "bdm_uuid": str(uuid.uuid4()), "device": None,
             "tag": want.get("tag"), "boot_index": None,
             "delete_on_termination": bool(want.get("delete_on_termination"))}

    def added(kept: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if any(one["volume_id"] == id for one in kept):
            raise InvalidRequest(f"Invalid volume: volume {id} already attached")
        entry["device"] = device(call, kept, want.get("device"))
        return [*kept, entry]

    def removed(kept: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [one for one in kept if one["attachment_id"] != entry["attachment_id"]]

    args = {"attachment_id": entry["attachment_id"], "volume_id": id}
    number = hold.held(call, "attach_volume", args, "volumes", added)
    volumes = call.cloud.services.volume
    try:
        volumes.reserve(call.context, id, call.server.id, attachment_id=entry["attachment_id"])
    except MagnetarError:
        hold.withdrawn(call, number, "volumes", removed)
        raise
    if not hold.given(call, number):
        volumes.detached(str(entry["attachment_id"]))
        with call.database.write() as connection:
            servers.revise(connection, call.server.id, "volumes", removed)
        raise Conflict(f"Cannot 'attach_volume' instance {call.server.id} while it is being deleted.")
    if call.version >= ANSWERS_NOTHING:
        return Answer(None, 202)
    return Answer({"volumeAttachment": view(call, entry, ids=False)}, 200)


def _check(call: Call, id: str) -> None:
    """Whether the volume may be attached now. Raises ``NotFound`` or 400."""
    volume = call.cloud.services.volume.show(call.context, id)
    if volume is None:
        raise NotFound(f"Volume {id} could not be found.")
    if volume["multiattach"] and call.version < MULTIATTACH:
        raise InvalidRequest("Multiattach volumes are only supported starting with compute API version 2.60.")
    states = ("available", "in-use") if volume["multiattach"] else ("available",)
    if volume["status"] not in states and not any(one["volume_id"] == id for one in entries(call)):
        raise InvalidRequest(f"Invalid volume: volume {id} status must be {' or '.join(states)}. Currently in "
                             f"'{volume['status']}'")


def device(call: Call, kept: list[dict[str, Any]], asked: str | None) -> str:
    """The name that the disk will have: the one that was asked for when it is free and the host can give it, as Nova's
    libvirt driver names disks itself (BDM-08). Raises ``Forbidden`` when there is no room."""
    flavor = orjson.loads(call.server.flavor)
    taken = {one["device"] for one in kept}
    taken |= {"/dev/vdb"} if flavor["ephemeral"] else set()
    taken |= {"/dev/vdc"} if flavor["swap"] else set()
    free = [name for letter in LETTERS if (name := f"/dev/vd{letter}") not in taken]
    if not free:
        raise Forbidden("The maximum allowed number of disk devices to attach to a single instance has been exceeded.")
    return asked if asked in free else free[0]


# Changing and detaching -----------------------------------------------------------------------------------------
def update(call: Call) -> Answer:
    """PUT: since 2.85 whether the volume is deleted with the server. Another volume (a swap) is refused, as Nova does
    unless the volume service asks."""
    guard(call, "update")
    want, id = call.body, call.params["id"]
    entry = entry_of(call, id)
    if want["volumeId"] != id or call.version < UPDATES:
        raise Conflict(f"Volume {id} cannot be swapped: it is not being migrated by the volume service. Detach it "
                       "and attach the other one.")
    fixed = {"device": entry["device"], "tag": entry["tag"], "serverId": call.server.id, "id": id}
    for name, value in fixed.items():
        if name in want and want[name] != value:
            raise InvalidRequest(f"Invalid input for field/attribute volumeAttachment.{name}: it is {value} and "
                                 "stays so.")
    if "delete_on_termination" in want:
        flag = want["delete_on_termination"]
        with call.database.write() as connection:
            servers.revise(connection, call.server.id, "volumes", lambda kept: [
                {**one, "delete_on_termination": flag} if one["volume_id"] == id else one for one in kept])
    return Answer(None, 202)


def delete(call: Call) -> Answer:
    """DELETE: 202; the guest lets go of it afterwards."""
    id = call.params["id"]
    entry = entry_of(call, id)
    if entry["boot_index"] == 0:
        raise InvalidRequest("Cannot detach a root device volume")
    args = {"attachment_id": entry["attachment_id"], "volume_id": id}
    with call.database.read() as connection:
        going = connection.execute(select(actions.c.id).where(
            actions.c.server_id == call.server.id, actions.c.action == "detach_volume",
            actions.c.state.in_(("queued", "running")), actions.c.args == servers.text(args)).limit(1)).first()
    if going:
        raise InvalidRequest(f"Invalid volume: volume {id} status must be 'in-use'. Currently in 'detaching'")
    with call.database.write() as connection:
        done = servers.ask(connection, call.server, "detach_volume", call.request.id, call.context.user_id,
                           call.project, args)
        call.database.ring(connection, servers.ACTIONS_BELL)
    if not done:
        raise Conflict(f"Cannot 'detach_volume' instance {call.server.id}: something else is being done to it.")
    return Answer(None, 202)


CREATE = record({"volumeId": Id(), "device": Nullable(DEVICE), "tag": since("2.49", TAG),
                 "delete_on_termination": since("2.79", TRUTH)}, "volumeId")
UPDATE = record({"volumeId": Id(), "device": since("2.85", Nullable(DEVICE)), "tag": since("2.85", Nullable(TAG)),
                 "delete_on_termination": since("2.85", TRUTH), "serverId": since("2.85", Id()),
                 "id": since("2.85", Id())}, "volumeId")
_PAGE = {"limit": Query(value=Limit()), "offset": Query(value=Limit())}


def _row(method: str, handler: Any, verb: str, rule: str, path: str = PATH, **more: Any) -> Operation:
    return Operation(method=method, path=path, handler=handler, name=f"servers.os-volume_attachments.{verb}",
                     rule=RULE + rule, target="server", **more)


OPERATIONS = (
    _row("GET", index, "list", "index", query=_PAGE, strict=STRICT),
    _row("POST", create, "create", "create", act="attach_volume", body=Wrapped("volumeAttachment", CREATE)),
    _row("GET", show, "show", "show", PATH + "/{id}"),
    _row("PUT", update, "update", "update", PATH + "/{id}", body=Wrapped("volumeAttachment", UPDATE), status=202),
    _row("DELETE", delete, "delete", "delete", PATH + "/{id}", act="detach_volume", status=202),
)
