# SPDX-License-Identifier: GPL-3.0-or-later
"""Volume attachments: the volumes that a server has. A conductor attaches and detaches them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson
from sqlalchemy import select

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.held_action import Change, hold
from magnetar_control.compute.target import Target, check_unlocked, of_server
from magnetar_control.store.engine.tables import actions
from magnetar_control.store.servers import servers
from magnetar_core.device_names import device_names
from magnetar_core.errors import Conflict, Forbidden, InvalidRequest, MagnetarError, NotFound
from magnetar_core.local_disks import is_blank, local_disks
from magnetar_core.power import OFFLOADED, SHELVED

RULE = "os_compute_api:os-volumes-attachments:"
TOO_MANY = "The maximum allowed number of disk devices to attach to a single instance has been exceeded."
Document = dict[str, Any]


def attachments(server: servers.Found) -> list[Document]:
    """The attachments that a server has, or is being given: volume_id, attachment_id, bdm_uuid, device, tag,
    boot_index, delete_on_termination."""
    found: list[Document] = orjson.loads(server.volumes)
    return found


def _attachment(target: Target, volume_id: str) -> Document:
    for one in attachments(target.row):
        if one["volume_id"] == volume_id:
            return one
    raise NotFound(f"Instance {target.row.id} is not attached to volume {volume_id[:80]}")


@of_server(rule=f"{RULE}index")
def index(_caller: Caller, target: Target) -> list[Document]:
    """All of them."""
    return attachments(target.row)


@of_server(rule=f"{RULE}show")
def show(_caller: Caller, target: Target, volume_id: str) -> Document:
    """One of them. Raises ``NotFound``."""
    return _attachment(target, volume_id)


@of_server("attach_volume")
def attach(caller: Caller, target: Target, volume_id: str, device: str | None = None, tag: str | None = None, *,
           delete_on_termination: bool = False, multiattach: bool = True, shelved: bool = True) -> Document:
    """Reserve the volume and name its device; it is attached afterwards, or when a server that was offloaded is on a
    host again. *device*: the name wished for. *multiattach*: whether a volume for several servers may be named.
    *shelved*: whether the server may be shelved. Returns the attachment."""
    _check_shelved(target, "attach_volume", shelved=shelved)
    if tag and target.row.vm_state == OFFLOADED:
        raise InvalidRequest("Attaching volumes with a tag is not supported for a server that is shelved and "
                             "offloaded. Unshelve it first, or attach the volume without a tag.")
    _check_attachable(caller, target, volume_id, multiattach=multiattach)
    entry: Document = {"volume_id": volume_id, "attachment_id": str(uuid.uuid4()), "bdm_uuid": str(uuid.uuid4()),
                       "device": None, "tag": tag, "boot_index": None, "delete_on_termination": delete_on_termination}

    def added(kept: list[Document]) -> list[Document]:
        if any(one["volume_id"] == volume_id for one in kept):
            raise InvalidRequest(f"Invalid volume: volume {volume_id} already attached")
        check_disks(caller, orjson.loads(target.row.flavor), [*kept, entry], _blocks(target.row))
        entry["device"] = _free_device(target.row, kept, device)
        return [*kept, entry]

    def removed(kept: list[Document]) -> list[Document]:
        return [one for one in kept if one["attachment_id"] != entry["attachment_id"]]

    args = {"attachment_id": entry["attachment_id"], "volume_id": volume_id}
    _reserved(caller, target, "attach_volume", args, entry, added, removed)
    return entry


def _reserved(caller: Caller, target: Target, key: str, args: Document, entry: Document, added: Change,
              removed: Change) -> None:
    """Ask for the action *key*, with the volume of *entry* reserved under its attachment's id. *added* and *removed*
    note it in the server's volumes, and take that back. Raises what reserving it raises, and ``Conflict``."""
    id, volumes = target.row.id, caller.cloud.services.volume
    old = args["attachment_id"] if key == "swap_volume" else None
    action = hold(caller, target, key, args, added)
    try:
        volumes.reserve(caller.context, entry["volume_id"], id, attachment_id=entry["attachment_id"])
    except MagnetarError:
        action.withdraw(removed)
        raise
    if old:
        volumes.begin_detaching(old)
    elif not target.row.host:  # on no host, it has the volume as soon as it is asked for, as at Nova
        with suppress(NotFound):  # the server was deleted meanwhile
            volumes.attached(entry["attachment_id"], "", "")
    if not action.release():
        volumes.detached(entry["attachment_id"])
        if old:
            volumes.roll_detaching(old)
        with target.database.write() as connection:
            servers.revise(connection, id, "volumes", removed)
        raise Conflict(f"Cannot '{key}' instance {id} while it is being deleted.")


def _check_shelved(target: Target, key: str, *, shelved: bool) -> None:
    """Raises ``Conflict`` for a shelved server where that is not allowed."""
    state = target.row.vm_state
    if state in (SHELVED, OFFLOADED) and not shelved:
        raise Conflict(f"Cannot '{key}' instance {target.row.id} while it is in vm_state {state}")


def _check_attachable(caller: Caller, target: Target, volume_id: str, *, multiattach: bool) -> None:
    """Whether the volume may be attached now. Raises ``NotFound`` or ``InvalidRequest``."""
    volume = caller.cloud.services.volume.show(caller.context, volume_id)
    if volume is None:
        raise NotFound(f"Volume {volume_id} could not be found.")
    if volume["multiattach"] and not multiattach:
        raise InvalidRequest("Multiattach volumes are only supported starting with compute API version 2.60.")
    states = ("available", "in-use") if volume["multiattach"] else ("available",)
    if volume["status"] not in states and not any(
            one["volume_id"] == volume_id for one in attachments(target.row)):
        raise InvalidRequest(f"Invalid volume: volume {volume_id} status must be {' or '.join(states)}. Currently in "
                             f"'{volume['status']}'")


def check_disks(caller: Caller, flavor: Mapping[str, Any], volumes: Sequence[Mapping[str, Any]],
                blocks: Sequence[Mapping[str, Any]]) -> None:
    """Raise ``Forbidden`` where a server with these *volumes*, among which its root disk may be, and the ephemeral and
    swap disks of *blocks*, has more disks than the setting ``max_disk_devices_to_attach`` allows (LCH-31)."""
    own, blank = not any(one["boot_index"] == 0 for one in volumes), sum(map(is_blank, blocks))
    most = caller.cloud.settings.max_disk_devices_to_attach
    if most < 0:
        return
    if most < len(volumes) + own + blank or most < len(volumes) + own + len(local_disks(flavor, blocks)):
        raise Forbidden(TOO_MANY)


def local_names(server: servers.Found) -> set[str]:
    """The device names of a server's ephemeral and swap disks, such as ``vdb``."""
    return {one.device for one in local_disks(orjson.loads(server.flavor), _blocks(server))}


def _blocks(server: servers.Found) -> list[Document]:
    """The block devices that it was asked for with."""
    found: list[Document] = orjson.loads(server.request).get("blocks") or []
    return found


def _free_device(server: servers.Found, kept: list[Document], wished: str | None) -> str:
    """The name that the disk will have: the one that is wished for when it is free and the host can give it, as Nova's
    libvirt driver names disks itself (BDM-08). Raises ``Forbidden`` when there is no room."""
    taken = {one["device"] for one in kept} | {f"/dev/{name}" for name in ("vda", *local_names(server))}
    free = [name for name in device_names("/dev/vd") if name not in taken]
    if not free:
        raise Forbidden(TOO_MANY)
    return wished if wished in free else free[0]


@of_server("update", f"{RULE}update")
def update(caller: Caller, target: Target, volume_id: str, *, same: Mapping[str, Any] | None = None,
           delete_on_termination: bool | None = None) -> None:
    """Set whether the volume is deleted with the server. *same*: what the caller repeats of device, tag, serverId, id
    (the volume's); it cannot change. Raises ``Conflict`` when the server is locked."""
    check_unlocked(caller, target.row)
    entry = _attachment(target, volume_id)
    fixed = {"device": entry["device"], "tag": entry["tag"], "serverId": target.row.id, "id": volume_id}
    for name, value in (same or {}).items():
        if value != fixed[name]:
            raise InvalidRequest(f"Invalid input for field/attribute volumeAttachment.{name}: it is {fixed[name]} and "
                                 "stays so.")
    if delete_on_termination is not None:
        with target.database.write() as connection:
            servers.revise(connection, target.row.id, "volumes", lambda kept: [
                {**one, "delete_on_termination": delete_on_termination} if one["volume_id"] == volume_id else one
                for one in kept])


@of_server("swap_volume")
def swap(caller: Caller, target: Target, volume_id: str, new_volume_id: str) -> None:
    """Have the volume *new_volume_id* take the place of one, afterwards: the guest keeps the disk and its content.
    Raises ``NotFound``, ``InvalidRequest``, ``Conflict``."""
    entry = check_swap(caller, target, volume_id, new_volume_id)
    new = {"volume_id": new_volume_id, "attachment_id": str(uuid.uuid4())}

    def noted(kept: list[Document]) -> list[Document]:
        for one in kept:
            if one["attachment_id"] == entry["attachment_id"]:
                _check_idle(target, one)
        return [{**one, "swap": new} if one["attachment_id"] == entry["attachment_id"] else one for one in kept]

    def removed(kept: list[Document]) -> list[Document]:
        return [{name: value for name, value in one.items() if name != "swap" or value != new} for one in kept]

    args = {"attachment_id": entry["attachment_id"], "volume_id": volume_id, "new_volume_id": new_volume_id,
            "new_attachment_id": new["attachment_id"]}
    _reserved(caller, target, "swap_volume", args, new, noted, removed)


def check_swap(caller: Caller, target: Target, volume_id: str, new_volume_id: str) -> Document:
    """The attachment of a volume whose place another one may take. Raises ``NotFound``, ``InvalidRequest``.

    Nova's ``API.swap_volume`` looks at sizes, states and, of multiattach, whether more than one server writes; neither
    at the root disk nor at whether the guest may only read. Both are refused here, the latter by the agent
    (``agent/magnetar_agent/volumes/swapping.py``): a server's root volume is part of its document, by which it is
    moved, rebuilt and shelved."""
    entry, show = _attachment(target, volume_id), caller.cloud.services.volume.show
    old, new = show(caller.context, entry["volume_id"]), show(caller.context, new_volume_id)
    if new is None:
        raise InvalidRequest(f"Volume {new_volume_id[:80]} could not be found.")
    if old is None:
        raise NotFound(f"Volume {entry['volume_id']} could not be found.")
    if entry["boot_index"] == 0:
        raise InvalidRequest(f"Volume {old['id']} is the root disk of the server, which cannot be swapped.")
    if old["multiattach"] or new["multiattach"]:
        raise InvalidRequest("Swapping multi-attach volumes is not supported: other servers may write to them.")
    if old.get("encryption_key_id") or new.get("encryption_key_id"):
        raise InvalidRequest("Swapping encrypted volumes is not supported. Stop the server, and attach a copy of the "
                             "volume instead of it.")
    if new["status"] != "available":
        raise InvalidRequest(f"Invalid volume: New volume must be detached in order to swap: volume {new_volume_id} "
                             f"status must be available. Currently in '{new['status']}'")
    if new["size"] < old["size"]:
        raise InvalidRequest(f"Invalid volume: New volume must be the same size or larger: volume {new_volume_id} has "
                             f"{new['size']} GiB, and volume {old['id']} has {old['size']} GiB")
    return entry


def _check_idle(target: Target, entry: Document) -> None:
    """Raises ``InvalidRequest`` for a volume that is being swapped."""
    if entry.get("swap"):
        raise InvalidRequest(f"Invalid volume: volume {entry['volume_id']} is being swapped for "
                             f"{entry['swap']['volume_id']} in server {target.row.id}. Wait until that has ended.")


@of_server("detach_volume")
def detach(caller: Caller, target: Target, volume_id: str, *, shelved: bool = True) -> None:
    """Have the guest let go of the volume, afterwards. *shelved*: whether the server may be shelved. Raises
    ``NotFound``, ``InvalidRequest``, ``Conflict``."""
    _check_shelved(target, "detach_volume", shelved=shelved)
    entry = _attachment(target, volume_id)
    _check_idle(target, entry)
    if entry["boot_index"] == 0:
        raise InvalidRequest("Cannot detach a root device volume")
    args = {"attachment_id": entry["attachment_id"], "volume_id": volume_id}
    with target.database.read() as connection:
        going = connection.execute(select(actions.c.id).where(
            actions.c.server_id == target.row.id, actions.c.action == "detach_volume",
            actions.c.state.in_(("queued", "running")), actions.c.args == servers.text(args)).limit(1)).first()
    if going:
        raise InvalidRequest(f"Invalid volume: volume {volume_id} status must be 'in-use'. Currently in 'detaching'")
    _begin_detaching(caller, target, args)


def _begin_detaching(caller: Caller, target: Target, args: Document) -> None:
    """Ask for ``detach_volume``, with the volume shown as detaching before the caller is answered. Raises ``Conflict``.
    """
    volumes, attachment_id = caller.cloud.services.volume, args["attachment_id"]
    action = hold(caller, target, "detach_volume", args)
    volumes.begin_detaching(attachment_id)
    if not action.release():
        volumes.roll_detaching(attachment_id)
        raise Conflict(f"Cannot 'detach_volume' instance {target.row.id} while it is being deleted.")
