# SPDX-License-Identifier: GPL-3.0-or-later
"""Volume attachments: the volumes of a server. A conductor attaches and detaches them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import select

from magnetar_control.compute.caller import Caller
from magnetar_control.compute.held_action import Change, hold_action
from magnetar_control.compute.target import ServerTarget, check_unlocked, server_use_case
from magnetar_control.documents import BlockDevice, FlavorOfServer, VolumeOfServer
from magnetar_control.store.engine.tables import actions
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, Forbidden, InvalidRequest, MagnetarError, NotFound
from magnetar_core.hardware.device_names import device_names
from magnetar_core.local_disks import flavor_local_disks, is_blank
from magnetar_core.power import OFFLOADED, SHELVED

RULE = "os_compute_api:os-volumes-attachments:"
TOO_MANY = "The maximum allowed number of disk devices to attach to a single instance has been exceeded."


def _find_attachment(target: ServerTarget, volume_id: str) -> VolumeOfServer:
    for attachment in target.row.volumes:
        if attachment["volume_id"] == volume_id:
            return attachment
    raise NotFound(f"Instance {target.row.id} is not attached to volume {volume_id[:80]}")


@server_use_case(rule=f"{RULE}index")
def list_volume_attachments(_caller: Caller, target: ServerTarget) -> Sequence[VolumeOfServer]:
    """Return all volume attachments of the server."""
    return target.row.volumes


@server_use_case(rule=f"{RULE}show")
def show_volume_attachment(_caller: Caller, target: ServerTarget, volume_id: str) -> VolumeOfServer:
    """Return the server's attachment of the volume *volume_id*. Raises ``NotFound``."""
    return _find_attachment(target, volume_id)


@server_use_case("attach_volume")
def attach_server_volume(caller: Caller, target: ServerTarget, volume_id: str, device: str | None = None,
                         tag: str | None = None, *,
                         delete_on_termination: bool = False, multiattach: bool = True,
                         shelved: bool = True) -> Document:
    """Reserve the volume *volume_id*, choose a device name, queue the attachment to the server, and return the
    attachment. If the server is shelved_offloaded, the volume is attached when the server is unshelved. *device*: the
    preferred device name. *tag*: the device tag. *multiattach*: allow a multiattach volume. *shelved*: allow a shelved
    server."""
    _check_shelved(target, "attach_volume", shelved=shelved)
    if tag and target.row.vm_state == OFFLOADED:
        raise InvalidRequest("Attaching volumes with a tag is not supported for a server that is shelved and "
                             "offloaded. Unshelve it first, or attach the volume without a tag.")
    _check_attachable(caller, target, volume_id, multiattach=multiattach)
    entry: Document = {"volume_id": volume_id, "attachment_id": str(uuid.uuid4()), "bdm_uuid": str(uuid.uuid4()),
                       "device": None, "tag": tag, "boot_index": None, "delete_on_termination": delete_on_termination}

    def added(attachments: list[Any]) -> list[Any]:
        if any(attachment["volume_id"] == volume_id for attachment in attachments):
            raise InvalidRequest(f"Invalid volume: volume {volume_id} already attached")
        check_disk_count(caller, target.row.flavor, [*attachments, entry],
                         target.row.request.get("blocks") or ())
        entry["device"] = _free_device(target.row, attachments, device)
        return [*attachments, entry]

    def removed(attachments: list[Document]) -> list[Document]:
        return [attachment for attachment in attachments if attachment["attachment_id"] != entry["attachment_id"]]

    args = {"attachment_id": entry["attachment_id"], "volume_id": volume_id}
    _reserve_and_queue(caller, target, "attach_volume", args, entry, added, removed)
    return entry


def _reserve_and_queue(caller: Caller, target: ServerTarget, key: str, args: Document, entry: Document, added: Change,
                       removed: Change) -> None:
    """Queue the action *key* (attach_volume or swap_volume) with the arguments *args*, and reserve the volume in
    Cinder. *entry*: the new volume attachment. *added*: a function that adds *entry* to the server's list of
    attachments. *removed*: a function that reverts *added* after a failure. Raises the errors of the reservation, and
    ``Conflict``."""
    id, volumes = target.row.id, caller.cloud.services.volume
    old = args["attachment_id"] if key == "swap_volume" else None
    action = hold_action(caller, target, key, args, added)
    try:
        volumes.reserve(caller.context, entry["volume_id"], id, attachment_id=entry["attachment_id"])
    except MagnetarError:
        action.withdraw(removed)
        raise
    if old:
        volumes.begin_detaching(old)
    elif not target.row.host:  # a server without a host has the volume immediately, as in Nova
        with suppress(NotFound):  # the server was deleted meanwhile
            volumes.attached(entry["attachment_id"], "", "")
    if not action.release():
        volumes.detached(entry["attachment_id"])
        if old:
            volumes.roll_detaching(old)
        with target.database.write() as connection:
            servers.update_list_column(connection, id, "volumes", removed)
        raise Conflict(f"Cannot '{key}' instance {id} while it is being deleted.")


def _check_shelved(target: ServerTarget, key: str, *, shelved: bool) -> None:
    """Raise ``Conflict`` if the server is shelved and *shelved* is false. *key*: the action, for the error message."""
    state = target.row.vm_state
    if state in (SHELVED, OFFLOADED) and not shelved:
        raise Conflict(f"Cannot '{key}' instance {target.row.id} while it is in vm_state {state}")


def _check_attachable(caller: Caller, target: ServerTarget, volume_id: str, *, multiattach: bool) -> None:
    """Check that the volume *volume_id* can be attached now. *multiattach*: allow a multiattach volume. Raises
    ``NotFound`` or ``InvalidRequest``."""
    volume = caller.cloud.services.volume.show(caller.context, volume_id)
    if volume is None:
        raise NotFound(f"Volume {volume_id} could not be found.")
    if volume["multiattach"] and not multiattach:
        raise InvalidRequest("Multiattach volumes are only supported starting with compute API version 2.60.")
    states = ("available", "in-use") if volume["multiattach"] else ("available",)
    if volume["status"] not in states and not any(
            attachment["volume_id"] == volume_id for attachment in target.row.volumes):
        raise InvalidRequest(f"Invalid volume: volume {volume_id} status must be {' or '.join(states)}. Currently in "
                             f"'{volume['status']}'")


def check_disk_count(caller: Caller, flavor: FlavorOfServer,
                     volumes: Sequence[VolumeOfServer] | Sequence[BlockDevice],
                     block_devices: Sequence[BlockDevice]) -> None:
    """Raise ``Forbidden`` when a server would have more disks than the setting ``max_disk_devices_to_attach`` allows.
    *volumes*: the server's volumes, which may include the root disk. *block_devices*: the requested block devices,
    which may include ephemeral and swap disks. The local disks of *flavor* count too."""
    local_root, blank = not any(volume["boot_index"] == 0 for volume in volumes), sum(map(is_blank, block_devices))
    most = caller.cloud.settings.max_disk_devices_to_attach
    if most < 0:
        return
    if most < len(volumes) + local_root + blank or most < len(volumes) + local_root + len(
        flavor_local_disks(flavor, block_devices)):
        raise Forbidden(TOO_MANY)


def local_disk_names(server: ServerRow) -> set[str]:
    """Return the device names of a server's ephemeral and swap disks, such as ``vdb``."""
    return {disk.device for disk in flavor_local_disks(server.flavor, server.request.get("blocks") or ())}


def _free_device(server: ServerRow, attachments: list[Document], wished: str | None) -> str:
    """Return a device name, such as ``vdb``, for a new disk of *server*: *wished* if no other disk has it, otherwise
    the first free name, as in Nova's libvirt driver. *attachments*: the server's volume attachments. Raises
    ``Forbidden`` when no name is free."""
    taken = {attachment["device"] for attachment in attachments} | {f"/dev/{name}"
                                                                    for name in ("vda", *local_disk_names(server))}
    free = [name for name in device_names("/dev/vd") if name not in taken]
    if not free:
        raise Forbidden(TOO_MANY)
    return wished if wished in free else free[0]


@server_use_case("update", f"{RULE}update")
def update_volume_attachment(caller: Caller, target: ServerTarget, volume_id: str, *,
                             same: Mapping[str, Any] | None = None,
                             delete_on_termination: bool | None = None) -> None:
    """Set whether the volume is deleted with the server; ``None`` leaves this unchanged. *same*: further fields of the
    API request (device, tag, serverId, and the volume's uuid as id), which must equal the current values. Raises
    ``InvalidRequest`` when one of them differs, ``NotFound``, and ``Conflict`` when the server is locked."""
    check_unlocked(caller, target.row)
    entry = _find_attachment(target, volume_id)
    fixed = {"device": entry["device"], "tag": entry["tag"], "serverId": target.row.id, "id": volume_id}
    for name, value in (same or {}).items():
        if value != fixed[name]:
            raise InvalidRequest(f"Invalid input for field/attribute volumeAttachment.{name}: it is {fixed[name]} and "
                                 "stays so.")
    if delete_on_termination is not None:
        with target.database.write() as connection:
            servers.update_list_column(connection, target.row.id, "volumes", lambda attachments: [
                {**attachment, "delete_on_termination": delete_on_termination} if attachment["volume_id"] == volume_id
                else attachment
                for attachment in attachments])


@server_use_case("swap_volume")
def swap_server_volume(caller: Caller, target: ServerTarget, volume_id: str, new_volume_id: str) -> None:
    """Queue the replacement of the attached volume *volume_id* by *new_volume_id*. The content is copied, and the guest
    continues to use the same disk. Raises ``NotFound``, ``InvalidRequest``, ``Conflict``."""
    entry = check_volume_swap(caller, target, volume_id, new_volume_id)
    new = {"volume_id": new_volume_id, "attachment_id": str(uuid.uuid4())}

    def noted(attachments: list[Any]) -> list[Any]:
        for attachment in attachments:
            if attachment["attachment_id"] == entry["attachment_id"]:
                _check_idle(target, attachment)
        return [{**attachment, "swap": new} if attachment["attachment_id"] == entry["attachment_id"] else attachment
                for attachment in attachments]

    def removed(attachments: list[Document]) -> list[Document]:
        return [{name: value for name, value in attachment.items() if name != "swap" or value != new}
                for attachment in attachments]

    args = {"attachment_id": entry["attachment_id"], "volume_id": volume_id, "new_volume_id": new_volume_id,
            "new_attachment_id": new["attachment_id"]}
    _reserve_and_queue(caller, target, "swap_volume", args, new, noted, removed)


def check_volume_swap(caller: Caller, target: ServerTarget, volume_id: str, new_volume_id: str) -> VolumeOfServer:
    """Return the attachment of *volume_id*, after checking that *new_volume_id* may replace that volume. Raises
    ``NotFound``, ``InvalidRequest``.

    As in Nova, the new volume must be available and at least as large. Unlike in Nova, root disks, multiattach volumes
    and encrypted volumes are refused. The agent also refuses read-only disks
    (``agent/magnetar_agent/volumes/swapping.py``).
    """
    entry, show = _find_attachment(target, volume_id), caller.cloud.services.volume.show
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


def _check_idle(target: ServerTarget, entry: VolumeOfServer) -> None:
    """Raise ``InvalidRequest`` if the volume of the attachment *entry* is being swapped already."""
    if entry.get("swap"):
        raise InvalidRequest(f"Invalid volume: volume {entry['volume_id']} is being swapped for "
                             f"{entry['swap']['volume_id']} in server {target.row.id}. Wait until that has ended.")


@server_use_case("detach_volume")
def detach_server_volume(caller: Caller, target: ServerTarget, volume_id: str, *, shelved: bool = True) -> None:
    """Queue the detachment of the volume *volume_id* from the server. *shelved*: allow a shelved server. Raises
    ``NotFound``, ``InvalidRequest``, ``Conflict``."""
    _check_shelved(target, "detach_volume", shelved=shelved)
    entry = _find_attachment(target, volume_id)
    _check_idle(target, entry)
    if entry["boot_index"] == 0:
        raise InvalidRequest("Cannot detach a root device volume")
    args = {"attachment_id": entry["attachment_id"], "volume_id": volume_id}
    with target.database.read() as connection:
        going = connection.execute(select(actions.c.id).where(
            actions.c.server_id == target.row.id, actions.c.action == "detach_volume",
            actions.c.state.in_(("queued", "running")), actions.c.args == servers.json_text(args)).limit(1)).first()
    if going:
        raise InvalidRequest(f"Invalid volume: volume {volume_id} status must be 'in-use'. Currently in 'detaching'")
    _begin_detaching(caller, target, args)


def _begin_detaching(caller: Caller, target: ServerTarget, args: Document) -> None:
    """Queue the action ``detach_volume`` with the arguments *args*, and set the volume's status to detaching. Raises
    ``Conflict`` when the server is being deleted."""
    volumes, attachment_id = caller.cloud.services.volume, args["attachment_id"]
    action = hold_action(caller, target, "detach_volume", args)
    volumes.begin_detaching(attachment_id)
    if not action.release():
        volumes.roll_detaching(attachment_id)
        raise Conflict(f"Cannot 'detach_volume' instance {target.row.id} while it is being deleted.")
