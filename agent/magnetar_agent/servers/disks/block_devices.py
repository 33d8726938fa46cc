# SPDX-License-Identifier: GPL-3.0-or-later
"""Block device mapping (Nova's v2): the volumes that a server boots from, and those that are created, attached or
deleted with it.

The server's ``block_device_mapping`` is kept as requested, with the drawn values: ``volume`` (the uuid) and
``device_name`` of each volume, ``name`` of its source. The volumes themselves are ordinary attachments.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent.hardware import devices
from magnetar_agent.host.storage import Disk
from magnetar_agent.images import importing
from magnetar_agent.reconcile.documents import REPLACEMENT, Document
from magnetar_agent.reconcile.locks import CHOICES
from magnetar_agent.volumes import (
    GIB,
    attaching,
    content,
    holders_of_volume,
    is_content_complete,
    pools,
    remote,
    round_up_gib,
)
from magnetar_core.errors import Conflict, InvalidField, Unreachable
from magnetar_core.hardware.architectures import check_bus
from magnetar_core.hardware.machines import machine_architecture
from magnetar_core.hardware.merge import PREFIX, root_device
from magnetar_core.kinds import Volume
from magnetar_core.kinds.server import block_device_destination, is_root_volume
from magnetar_core.kinds.volume import VolumeAttachment
from magnetar_core.reconcile import refuse_missing
from magnetar_core.server_plan import server_hardware, volume_block_devices

from . import disk_layout, local_disks

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Fields
    from magnetar_agent.reconcile.task import Task

log = logging.getLogger(__name__)

FIELD = "block_device_mapping"
#: Valid pairs of source and destination.
PAIRS = {("image", "local"), ("volume", "volume"), ("snapshot", "volume"), ("image", "volume"), ("blank", "volume"),
         ("blank", "local")}
#: Source to the kind of its document, and to the field of a volume that is made from it.
KINDS = {"image": "image", "volume": "volume", "snapshot": "volume_snapshot"}
MADE_FROM = {"image": "image", "snapshot": "snapshot"}


# The document -------------------------------------------------------------------------------------------------------
def local_disk_tags(want: Fields) -> dict[str, str]:
    """Return the tags of the server's local disks by file name, from the block device mapping in the server's fields
    *want*."""
    return {file: block_device["tag"] for block_device, file in local_disks.local_disk_files(want.get(FIELD, ()))
            if block_device.get("tag")}


# Completing ---------------------------------------------------------------------------------------------------------
def complete_device_mapping(host: LocalHost, desired: Fields, document: Document | None) -> list[Fields]:
    """Return the block device mapping of the server's requested fields *desired*, after replacing names by uuids and
    adding defaults. *document*: the stored server, ``None`` for a new one. Raises ``InvalidField``, which names the
    item, or ``Conflict``."""
    requested = desired.get(FIELD) or []
    if document is not None:
        recorded: list[Fields] = document.want.get(FIELD, [])
        same = [_unchanged_block_device(host, block_device, old, f"{FIELD}[{at}].uuid")
                for at, (block_device, old) in enumerate(zip(requested, recorded, strict=False))]
        if len(requested) == len(recorded) and all(same):
            local_disks.check_sum(desired["flavor"], recorded, "flavor")
            return [block_device for block_device in same if block_device]
    id = document.id if document else None
    made, parts = [_complete_block_device(host, desired, block_device, f"{FIELD}[{at}]", id) for at,
                   block_device in enumerate(requested)], server_hardware(desired)
    _check_whole(desired, made)
    taken = _cd_names(host, desired, parts)
    taken |= set() if any(map(is_root_volume, made)) else {root_device(parts)}
    taken |= local_disks.complete_local_disks(desired, made, FIELD, parts.get("disk_bus", "virtio"))
    for at, block_device in enumerate(made):
        if block_device["destination_type"] == "volume":
            bus = block_device.setdefault("disk_bus", devices.volume_bus(parts))
            check_bus(bus, machine_architecture(desired["machine"]), f"{FIELD}[{at}].disk_bus")
            _name_device(block_device, taken, f"{FIELD}[{at}].device_name")
    return made


def _cd_names(host: LocalHost, desired: Fields, parts: Fields) -> set[str]:
    """Return the device names that CDs of the new server *desired* occupy: the config drive, and the CD that it boots
    from, if any. *parts*: the server's hardware fields (made from extra specs and image properties)."""
    image = host.documents.get("image", desired["image"]) if desired.get("image") else None
    has_cd = image is not None and image.state.get("disk_format") == "iso"
    drive = disk_layout.config_drive_layout(desired, disk_layout.drive_format(host, desired), has_cd)["target"]
    cd = devices.own_disk(parts, Disk(Path("base"), "sda", "raw", "cdrom", "sata", True)).target
    return {cd, drive} if has_cd else {drive}


def _alike(host: LocalHost, requested: Fields, recorded: Fields) -> bool:
    """Return whether *requested*, an item of a block device mapping, has the same values as the *recorded* item. Values
    that are not in *requested* count as equal."""
    normalized = dict(requested)
    if "uuid" in normalized and normalized.pop("uuid") not in (recorded.get("uuid"), recorded.get("name")):
        standing = host.documents.peek_by_key(KINDS.get(requested["source_type"], "volume"), requested["uuid"])
        if standing is None or standing.id != recorded.get("uuid"):
            return False
    if normalized.get("boot_index") == -1:
        normalized["boot_index"] = None
    if normalized.get("device_name"):
        normalized["device_name"] = normalized["device_name"].removeprefix("/dev/")
    return all(value is None or recorded.get(name) == value for name, value in normalized.items())


def _unchanged_block_device(host: LocalHost, requested: Fields, recorded: Fields, field: str) -> Fields | None:
    """Return the *recorded* item of a block device mapping if *requested* has the same values. If *requested* differs
    only in the image of the root volume, return *recorded* with the new image if the volume is large enough for it: a
    rebuild then replaces the volume's content. Otherwise return ``None``. *field*: the item's path, for error messages.
    """
    if _alike(host, requested, recorded):
        return recorded
    root = recorded["source_type"] == "image" and is_root_volume(recorded)
    if not root or not requested.get("uuid") or not _alike(host, {**requested, "uuid": recorded["uuid"]}, recorded):
        return None
    image, volume = host.documents.standing("image", requested["uuid"]), host.documents.get("volume",
                                                                                            recorded["volume"])
    size = volume.want["size"] if volume else recorded["volume_size"]
    if size * GIB < content.source_bytes("image", image, requested["uuid"], field):
        return None
    return {**recorded, **({"uuid": image.id, "name": image.name} if image else {"uuid": requested["uuid"]})}


def _complete_block_device(host: LocalHost, desired: Fields, requested: Fields, field: str, id: str | None) -> Fields:
    made = {name: value for name, value in requested.items() if value is not None}
    source = made["source_type"]
    pair = (source, made.setdefault("destination_type", block_device_destination(made)))
    if pair not in PAIRS:
        raise InvalidField(f"{field}.destination_type", f"cannot be {pair[1]} for source_type {pair[0]}")
    if made.get("boot_index") == -1:
        del made["boot_index"]
    if ("uuid" in made) != (source != "blank"):
        raise InvalidField(f"{field}.uuid", "is for sources other than blank" if source == "blank" else "is required")
    if pair[1] == "local":
        local_disks.check_item(host, desired, made, field)
    else:
        _volume(host, made, field, id)
    return made


def _volume(host: LocalHost, made: Fields, field: str, id: str | None) -> None:
    """Complete *made*, an item of the block device mapping whose disk is a volume: replace the name of the volume or
    source by its uuid, and choose the uuid of a new volume. *id*: the server's uuid, ``None`` for a new server.
    *field*: the item's path, for the errors (``InvalidField``)."""
    source = made["source_type"]
    if made.get("guest_format"):
        raise InvalidField(f"{field}.guest_format", "is for blank local disks only (BDM-13)")
    if made.get("readonly") and made.get("disk_bus") == "sata":
        raise InvalidField(f"{field}.readonly", attaching.SATA_WRITES)
    if source != "volume":
        _draw(host, made, field, id)
    if source == "blank":
        if "volume_size" not in made:
            raise InvalidField(f"{field}.volume_size", "is required for a blank volume (BDM-23)")
        return
    standing = host.documents.standing(KINDS[source], made["uuid"])
    if standing is None:
        refuse_missing(InvalidField(f"{field}.uuid", f"must name a {KINDS[source].replace('_', ' ')} of this host",
                                    made["uuid"]), KINDS[source], made["uuid"])
        return
    made.update(uuid=standing.id, name=standing.name)
    if source == "volume":
        _existing(host, made, standing, field, id)
        return
    least = content.source_bytes(source, standing, made["uuid"], f"{field}.uuid")
    if made.setdefault("volume_size", round_up_gib(least)) * GIB < least:
        raise InvalidField(f"{field}.volume_size", f"must be at least {round_up_gib(least)} GiB, which its source has")


def _existing(host: LocalHost, made: Fields, volume: Document, field: str, id: str | None) -> None:
    """Complete *made*, an item of the block device mapping, with the uuid of the existing *volume*. *id*: the server's
    uuid, ``None`` for a new server. *field*: the item's path, for errors. Raises ``InvalidField`` if the item requests
    a size or pool, ``Conflict`` if the volume is in use."""
    for name in ("volume_size", "volume_type"):
        if name in made:
            raise InvalidField(f"{field}.{name}", "is for volumes that are made; this one has its size and pool")
    if made.setdefault("volume", volume.id) != volume.id:
        raise InvalidField(f"{field}.volume", "must be that of the volume in uuid, or be left out", made["volume"])
    _check_volume_free(host, volume, id)


def _draw(host: LocalHost, made: Fields, field: str, id: str | None) -> None:
    """Choose the uuid of the volume to create for *made*, an item of the block device mapping: the requested one, or a
    random one. For an existing server (uuid *id*), the volume's uuid is always random. Check that the pool is usable.
    *field*: the item's path, for errors."""
    pools.find_pool(host, made.get("volume_type", pools.DEFAULT), f"{field}.volume_type").check_usable()
    if id is not None:
        made.pop("volume", None)
    taken = host.documents.get("volume", made.setdefault("volume", str(uuid.uuid4())))
    if taken:
        raise InvalidField(f"{field}.volume", f"is the uuid of volume {taken.name!r}; leave it out, or make that one "
                                              "the item's source", made["volume"])


def _check_volume_free(host: LocalHost, volume: Document, server: str | None) -> None:
    """Raise ``Conflict`` if the volume cannot be attached to *server* (uuid, ``None`` for a new server): it is attached
    to another server without multiattach, or is not complete."""
    other_holders = [holder for holder in holders_of_volume(host, volume.id) if holder.want["server"] != server]
    if other_holders and not volume.want["multiattach"]:
        raise Conflict(f"Volume {volume.name!r} is attached to another server. Detach it there first.",
                       uuids=[other_holders[0].want["server"]])
    if not is_content_complete(volume):
        raise Conflict(f"Volume {volume.name!r} is still being made. Wait until it is available.")


def _check_whole(desired: Fields, made: list[Fields]) -> None:
    """Raise ``InvalidField`` if the items *made* of the block device mapping contradict each other, such as two items
    with the same volume. *desired*: the server's requested fields."""
    turns = sorted(block_device["boot_index"] for block_device in made if block_device.get("boot_index") is not None)
    has_own_image = desired.get("image") is not None and not any(
        block_device["source_type"] == "image" and block_device["destination_type"] == "local" for block_device in made)
    if has_own_image and 0 in turns:
        raise InvalidField(FIELD, "boots from a volume, so the server has no image of its own: leave image out, or "
                                  "give the volume another boot_index")
    turns = [0, *turns] if has_own_image or (0 not in turns and turns) else turns
    if turns != list(range(len(turns))):
        raise InvalidField(FIELD, f"must have each boot_index from 0 on once (got {', '.join(map(str, turns))})")
    volume_ids = [block_device["volume"] for block_device in made if "volume" in block_device
                  and block_device["destination_type"] == "volume"]
    if len(volume_ids) != len(set(volume_ids)):
        raise InvalidField(FIELD, "names a volume twice")


def _name_device(made: Fields, taken: set[str], field: str) -> None:
    bus, requested_name = made.setdefault("disk_bus", "virtio"), made.get("device_name")
    is_root = made.get("boot_index") == 0
    name = requested_name.removeprefix("/dev/") if requested_name else None
    first = PREFIX[bus] + "a"
    if is_root:
        if name not in (None, first):
            raise InvalidField(field, f"must be {first} for the root disk, or be left out", requested_name)
        name = first
    elif name is not None and (name in taken or not name.startswith(PREFIX[bus])):
        raise InvalidField(field, f"must be free, and begin with {PREFIX[bus]} on bus {bus}", requested_name)
    made["device_name"] = name or attaching.draw_device_name(bus, taken)
    taken.add(made["device_name"])


def check_replacement(host: LocalHost, want: Fields, document: Document) -> None:
    """Raise an error if the volumes in *want* could not be created or attached after the removal of *document*, the
    server to be recreated."""
    for at, item in enumerate(volume_block_devices(want)):
        source, field = item["source_type"], f"{FIELD}[{at}].uuid"
        if source != "volume":
            pools.find_pool(host, item.get("volume_type", pools.DEFAULT)).check_usable()
        if source == "blank":
            continue
        standing = host.documents.standing(KINDS[source], item["uuid"])
        source_label = f"{KINDS[source].replace('_', ' ')} {item.get('name', item['uuid'])!r}"
        if standing is None:
            if item in document.want.get(FIELD, []):  # otherwise a dry run assumes it
                raise Conflict(
                    f"The {source_label} is not on this host any more, so server {document.name!r} cannot be made "
                               f"again with it. Create it again, or ask for another {FIELD}.", field=field)
            continue
        if source == "volume":
            _check_volume_free(host, standing, document.id)
        elif item["volume_size"] * GIB < (least := content.source_bytes(source, standing, standing.name, field)):
            raise InvalidField(field, f"has {round_up_gib(least)} GiB now, and volume_size is less", standing.name)
        if not _content_of(host, standing):
            raise Conflict(
                f"The content of {source_label} is gone from the host, so server {document.name!r} cannot be made "
                           "again with it. Restore it first.", field=field)


def _content_of(host: LocalHost, source: Document) -> bool:
    if source.kind == "image":
        return importing.content_is_stored(source)
    return pools.find_pool(host, source.state.get("pool") or source.want["pool"]).has(source.id)


# The verbs ----------------------------------------------------------------------------------------------------------
def volumes(task: Task) -> None:
    """Create the new volumes of the block device mapping, and attach all volumes of the mapping to the server."""
    host, document = task.host, task.document
    if not document.state.get("volumes_drawn"):
        _redraw(host, document)
        task.keep()
    for item in volume_block_devices(document.want):
        if item["source_type"] != "volume":
            host.ensure(Volume, item["volume"], _volume_fields(host, document, item), task.operation)
        with host.locks.hold(*CHOICES):
            _attach(host, document, item)
    document.state["volumes_made"] = True
    task.keep()


def _redraw(host: LocalHost, document: Document) -> None:
    """Choose new uuids for volumes that a recreated server must create, if volumes with the old uuids still exist."""
    for item in volume_block_devices(document.want):
        if item["source_type"] != "volume" and host.documents.get("volume", item["volume"]):
            item["volume"] = str(uuid.uuid4())
    document.state["volumes_drawn"] = True


def _volume_fields(host: LocalHost, document: Document, item: Fields) -> Fields:
    existing = host.documents.get("volume", item["volume"])
    name = existing.name if existing else f"{document.want['name'][:200]}-{item['device_name']}-{item['volume'][:8]}"
    wish = {"name": name, "size": item["volume_size"], "pool": item.get("volume_type", pools.DEFAULT)}
    if item["source_type"] in MADE_FROM:
        wish[MADE_FROM[item["source_type"]]] = item["uuid"]
    return wish


def _attach(host: LocalHost, document: Document, item: Fields) -> None:
    volume = host.documents.standing("volume", item["volume"])
    if volume is None:
        raise Conflict(f"The volume {item['volume']} was removed while the server was made.")
    _check_volume_free(host, volume, document.id)
    id = attaching.attachment_id(document.id, volume.id)
    if host.documents.get("volume_attachment", id):
        return
    want: Fields = {
        **VolumeAttachment.defaults(), "name": f"{document.id}:{volume.id}", "server": document.id,
        "volume": volume.id, "device": item["device_name"], "bus": item["disk_bus"], "tag": item.get("tag"),
        "readonly": item.get("readonly", False),
        "boot_index": item.get("boot_index"), "delete_on_termination": item.get("delete_on_termination", False)}
    state: dict[str, Any] = {"made_with_server": item["source_type"] != "volume"}
    host.documents.write(Document("volume_attachment", id, want["name"], want, state))


def free(task: Task) -> None:
    """Detach the volumes of a server that is being deleted. Delete the volumes with ``delete_on_termination``; if the
    server is then created again, keep those that the new server uses. If the creation of the server failed, instead
    delete all volumes that were created with the server."""
    host, id = task.host, task.document.id
    failed = bool(task.document.state.get("making"))
    surviving_volumes = {block_device["volume"] for block_device in volume_block_devices(
        task.document.state.get(REPLACEMENT, {}))
                         if block_device["source_type"] == "volume"}
    for attachment in host.documents.list("volume_attachment"):
        if attachment.want["server"] != id:
            continue
        if attachment.want.get("origin"):
            _release(host, attachment)
            continue
        with host.locks.hold("volume", attachment.want["volume"]):
            volume = host.documents.get("volume", attachment.want["volume"])
            goes = attaching.is_current(host, attachment) and (
                attachment.state.get("made_with_server") if failed else attachment.want["delete_on_termination"])
            if volume and goes and volume.id not in surviving_volumes and len(holders_of_volume(host, volume.id)) == 1:
                _remove(task, volume)
            host.documents.remove(attachment)
    if failed:
        _remove_all(task, (block_device["volume"] for block_device in volume_block_devices(task.document.want)
                           if block_device["source_type"] != "volume"
                           and block_device["volume"] not in surviving_volumes))


def _release(host: LocalHost, attachment: Document) -> None:
    """Tell the host of a remote volume that the attachment has ended. If that host does not answer now,
    ``RemoteVolumes`` repeats the message later."""
    attachment.deleting = True
    attachment.state["delete"] = attachment.want["delete_on_termination"] and attaching.is_current(host, attachment)
    host.documents.write(attachment)
    try:
        remote.release_remote_volume(host, attachment)
    except Unreachable as error:
        log.warning("the volume %s is to be given back later: %s", attachment.want["volume"], error)
    else:
        host.documents.remove(attachment)


def _remove_all(task: Task, made: Iterable[str]) -> None:
    """Remove the volumes *made* (uuids) that were created with a server and are not attached."""
    for id in made:
        with task.host.locks.hold("volume", id):
            volume = task.host.documents.get("volume", id)
            if volume and not holders_of_volume(task.host, id):
                _remove(task, volume)


def _remove(task: Task, volume: Document) -> None:
    """Remove a volume and its content. The volume's document is first marked as deleting, so that the removal is
    finished after a crash."""
    volume.deleting = True
    task.host.documents.write(volume)
    content.remove_volume_content(task.host, volume)
    task.host.documents.remove(volume)
