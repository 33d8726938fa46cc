# SPDX-License-Identifier: GPL-3.0-or-later
"""Block device mapping (Nova's v2): volumes that a server boots from, is made with, and that go with it.

The server's ``block_device_mapping`` is kept as it was given, with what was drawn: ``volume`` (the uuid) and
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
from magnetar_agent.volumes import GIB, attaching, content, finished, gib, holders, pools, remote
from magnetar_core.errors import Conflict, InvalidField, Unreachable
from magnetar_core.hardware.architectures import check_bus
from magnetar_core.hardware.machines import architecture
from magnetar_core.hardware.merge import PREFIX, root_device
from magnetar_core.kinds import Volume
from magnetar_core.kinds.server import destination, is_root_volume
from magnetar_core.kinds.volume import VolumeAttachment
from magnetar_core.reconcile import missing
from magnetar_core.server_plan import hardware, volume_items

from . import disk_layout, local_disks

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Fields
    from magnetar_agent.reconcile.task import Task

log = logging.getLogger(__name__)

FIELD = "block_device_mapping"
#: Valid pairs of source and destination (BDM-19 to BDM-25).
PAIRS = {("image", "local"), ("volume", "volume"), ("snapshot", "volume"), ("image", "volume"), ("blank", "volume"),
         ("blank", "local")}
#: Source to the kind of what it names, and to the field of a volume that is made from it.
KINDS = {"image": "image", "volume": "volume", "snapshot": "volume_snapshot"}
MADE_FROM = {"image": "image", "snapshot": "snapshot"}


# What the document says ---------------------------------------------------------------------------------------------
def tags(want: Fields) -> dict[str, str]:
    """Tags of local disks, by the name of their file."""
    return {file: one["tag"] for one, file in local_disks.files(want.get(FIELD, ())) if one.get("tag")}


# Completing ---------------------------------------------------------------------------------------------------------
def complete(host: LocalHost, found: Fields, document: Document | None) -> list[Fields]:
    """What will be kept of ``found[FIELD]``. Raises ``InvalidField`` naming the item, or ``Conflict``."""
    given = found.get(FIELD) or []
    if document is not None:
        kept: list[Fields] = document.want.get(FIELD, [])
        same = [_kept(host, one, old, f"{FIELD}[{at}].uuid")
                for at, (one, old) in enumerate(zip(given, kept, strict=False))]
        if len(given) == len(kept) and all(same):
            local_disks.check_sum(found["flavor"], kept, "flavor")
            return [one for one in same if one]
    id = document.id if document else None
    made, parts = [_item(host, found, one, f"{FIELD}[{at}]", id) for at, one in enumerate(given)], hardware(found)
    _check_whole(found, made)
    taken = _cd_names(host, found, parts)
    taken |= set() if any(map(is_root_volume, made)) else {root_device(parts)}
    taken |= local_disks.complete(found, made, FIELD, parts.get("disk_bus", "virtio"))
    for at, one in enumerate(made):
        if one["destination_type"] == "volume":
            bus = one.setdefault("disk_bus", devices.volume_bus(parts))
            check_bus(bus, architecture(found["machine"]), f"{FIELD}[{at}].disk_bus")
            _name_device(one, taken, f"{FIELD}[{at}].device_name")
    return made


def _cd_names(host: LocalHost, found: Fields, parts: Fields) -> set[str]:
    """The name of the CD that a new server boots from, and that of its config drive."""
    image = host.documents.get("image", found["image"]) if found.get("image") else None
    has_cd = image is not None and image.state.get("disk_format") == "iso"
    drive = disk_layout.drive(found, disk_layout.drive_format(host, found), has_cd)["target"]
    cd = devices.own_disk(parts, Disk(Path("base"), "sda", "raw", "cdrom", "sata", True)).target
    return {cd, drive} if has_cd else {drive}


def _alike(host: LocalHost, given: Fields, kept: Fields) -> bool:
    """Whether an item says nothing else than the one that is kept."""
    said = dict(given)
    if "uuid" in said and said.pop("uuid") not in (kept.get("uuid"), kept.get("name")):
        standing = host.documents.look_for(KINDS.get(given["source_type"], "volume"), given["uuid"])
        if standing is None or standing.id != kept.get("uuid"):
            return False
    if said.get("boot_index") == -1:
        said["boot_index"] = None
    if said.get("device_name"):
        said["device_name"] = said["device_name"].removeprefix("/dev/")
    return all(value is None or kept.get(name) == value for name, value in said.items())


def _kept(host: LocalHost, given: Fields, kept: Fields, field: str) -> Fields | None:
    """The item that is *kept* where *given* says nothing else, or no more than that the root volume is made from
    another image, for which it has room: a rebuild makes that so. ``None`` for another item."""
    if _alike(host, given, kept):
        return kept
    root = kept["source_type"] == "image" and is_root_volume(kept)
    if not root or not given.get("uuid") or not _alike(host, {**given, "uuid": kept["uuid"]}, kept):
        return None
    image, volume = host.documents.standing("image", given["uuid"]), host.documents.get("volume", kept["volume"])
    size = volume.want["size"] if volume else kept["volume_size"]
    if size * GIB < content.source_bytes("image", image, given["uuid"], field):
        return None
    return {**kept, **({"uuid": image.id, "name": image.name} if image else {"uuid": given["uuid"]})}


def _item(host: LocalHost, found: Fields, given: Fields, field: str, id: str | None) -> Fields:
    made = {name: value for name, value in given.items() if value is not None}
    source = made["source_type"]
    pair = (source, made.setdefault("destination_type", destination(made)))
    if pair not in PAIRS:
        raise InvalidField(f"{field}.destination_type", f"cannot be {pair[1]} for source_type {pair[0]}")
    if made.get("boot_index") == -1:
        del made["boot_index"]
    if ("uuid" in made) != (source != "blank"):
        raise InvalidField(f"{field}.uuid", "is for sources other than blank" if source == "blank" else "is required")
    if pair[1] == "local":
        local_disks.check_item(host, found, made, field)
    else:
        _volume(host, made, field, id)
    return made


def _volume(host: LocalHost, made: Fields, field: str, id: str | None) -> None:
    """Resolve what a volume is, or is made from, and draw its uuid."""
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
        missing(InvalidField(f"{field}.uuid", f"must name a {KINDS[source].replace('_', ' ')} of this host",
                             made["uuid"]), KINDS[source], made["uuid"])
        return
    made.update(uuid=standing.id, name=standing.name)
    if source == "volume":
        _existing(host, made, standing, field, id)
        return
    least = content.source_bytes(source, standing, made["uuid"], f"{field}.uuid")
    if made.setdefault("volume_size", gib(least)) * GIB < least:
        raise InvalidField(f"{field}.volume_size", f"must be at least {gib(least)} GiB, which its source has")


def _existing(host: LocalHost, made: Fields, volume: Document, field: str, id: str | None) -> None:
    """An item that is a volume which exists: it has its size and its pool, and must be free."""
    for name in ("volume_size", "volume_type"):
        if name in made:
            raise InvalidField(f"{field}.{name}", "is for volumes that are made; this one has its size and pool")
    if made.setdefault("volume", volume.id) != volume.id:
        raise InvalidField(f"{field}.volume", "must be that of the volume in uuid, or be left out", made["volume"])
    _free(host, volume, id)


def _draw(host: LocalHost, made: Fields, field: str, id: str | None) -> None:
    """The uuid of a volume that is made, in a pool that is there. An item of a server that exists differs from what is
    kept when it comes here, so it is another volume."""
    pools.named(host, made.get("volume_type", pools.DEFAULT), f"{field}.volume_type").check_usable()
    if id is not None:
        made.pop("volume", None)
    taken = host.documents.get("volume", made.setdefault("volume", str(uuid.uuid4())))
    if taken:
        raise InvalidField(f"{field}.volume", f"is the uuid of volume {taken.name!r}; leave it out, or make that one "
                                              "the item's source", made["volume"])


def _free(host: LocalHost, volume: Document, server: str | None) -> None:
    """Raise ``Conflict`` unless the volume can be attached to *server*."""
    others = [one for one in holders(host, volume.id) if one.want["server"] != server]
    if others and not volume.want["multiattach"]:
        raise Conflict(f"Volume {volume.name!r} is attached to another server. Detach it there first.",
                       uuids=[others[0].want["server"]])
    if not finished(volume):
        raise Conflict(f"Volume {volume.name!r} is still being made. Wait until it is available.")


def _check_whole(found: Fields, made: list[Fields]) -> None:
    """Rules about all items together."""
    turns = sorted(one["boot_index"] for one in made if one.get("boot_index") is not None)
    own = found.get("image") is not None and not any(
        one["source_type"] == "image" and one["destination_type"] == "local" for one in made)
    if own and 0 in turns:
        raise InvalidField(FIELD, "boots from a volume, so the server has no image of its own: leave image out, or "
                                  "give the volume another boot_index")
    turns = [0, *turns] if own or (0 not in turns and turns) else turns
    if turns != list(range(len(turns))):
        raise InvalidField(FIELD, f"must have each boot_index from 0 on once (got {', '.join(map(str, turns))})")
    seen = [one["volume"] for one in made if "volume" in one and one["destination_type"] == "volume"]
    if len(seen) != len(set(seen)):
        raise InvalidField(FIELD, "names a volume twice")


def _name_device(made: Fields, taken: set[str], field: str) -> None:
    bus, given = made.setdefault("disk_bus", "virtio"), made.get("device_name")
    is_root = made.get("boot_index") == 0
    name = given.removeprefix("/dev/") if given else None
    first = PREFIX[bus] + "a"
    if is_root:
        if name not in (None, first):
            raise InvalidField(field, f"must be {first} for the root disk, or be left out", given)
        name = first
    elif name is not None and (name in taken or not name.startswith(PREFIX[bus])):
        raise InvalidField(field, f"must be free, and begin with {PREFIX[bus]} on bus {bus}", given)
    made["device_name"] = name or attaching.draw(bus, taken)
    taken.add(made["device_name"])


def check_replacement(host: LocalHost, want: Fields, document: Document) -> None:
    """Raise an error where the volumes that *want* names could not be made or attached once *document* is gone."""
    for at, item in enumerate(volume_items(want)):
        source, field = item["source_type"], f"{FIELD}[{at}].uuid"
        if source != "volume":
            pools.named(host, item.get("volume_type", pools.DEFAULT)).check_usable()
        if source == "blank":
            continue
        standing = host.documents.standing(KINDS[source], item["uuid"])
        what = f"{KINDS[source].replace('_', ' ')} {item.get('name', item['uuid'])!r}"
        if standing is None:
            if item in document.want.get(FIELD, []):  # else a dry run assumes it
                raise Conflict(f"The {what} is not on this host any more, so server {document.name!r} cannot be made "
                               f"anew with it. Make it again, or ask for another {FIELD}.", field=field)
            continue
        if source == "volume":
            _free(host, standing, document.id)
        elif item["volume_size"] * GIB < (least := content.source_bytes(source, standing, standing.name, field)):
            raise InvalidField(field, f"has {gib(least)} GiB now, and volume_size is less", standing.name)
        if not _content_of(host, standing):
            raise Conflict(f"The content of {what} is gone from the host, so server {document.name!r} cannot be made "
                           "anew with it. Restore it first.", field=field)


def _content_of(host: LocalHost, source: Document) -> bool:
    if source.kind == "image":
        return importing.stored(source)
    return pools.named(host, source.state.get("pool") or source.want["pool"]).has(source.id)


# Doing --------------------------------------------------------------------------------------------------------------
def volumes(task: Task) -> None:
    """Make the volumes that the server is made with, and attach them."""
    host, document = task.host, task.document
    if not document.state.get("volumes_drawn"):
        _redraw(host, document)
        task.keep()
    for item in volume_items(document.want):
        if item["source_type"] != "volume":
            host.ensure(Volume, item["volume"], _wish(host, document, item), task.operation)
        with host.locks.hold(*CHOICES):
            _attach(host, document, item)
    document.state["volumes_made"] = True
    task.keep()


def _redraw(host: LocalHost, document: Document) -> None:
    """A server that is recreated gets new volumes; those that outlived it keep their uuids."""
    for item in volume_items(document.want):
        if item["source_type"] != "volume" and host.documents.get("volume", item["volume"]):
            item["volume"] = str(uuid.uuid4())
    document.state["volumes_drawn"] = True


def _wish(host: LocalHost, document: Document, item: Fields) -> Fields:
    there = host.documents.get("volume", item["volume"])
    name = there.name if there else f"{document.want['name'][:200]}-{item['device_name']}-{item['volume'][:8]}"
    wish = {"name": name, "size": item["volume_size"], "pool": item.get("volume_type", pools.DEFAULT)}
    if item["source_type"] in MADE_FROM:
        wish[MADE_FROM[item["source_type"]]] = item["uuid"]
    return wish


def _attach(host: LocalHost, document: Document, item: Fields) -> None:
    volume = host.documents.standing("volume", item["volume"])
    if volume is None:
        raise Conflict(f"The volume {item['volume']} was removed while the server was made.")
    _free(host, volume, document.id)
    id = attaching.identity(document.id, volume.id)
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
    """Detach the volumes of a server that is deleted. Those with delete_on_termination are deleted, except those that
    its replacement uses. Of a server that was never made in full, the volumes that were made for it are deleted."""
    host, id = task.host, task.document.id
    failed = bool(task.document.state.get("making"))
    kept = {one["volume"] for one in volume_items(task.document.state.get(REPLACEMENT, {}))
            if one["source_type"] == "volume"}
    for one in host.documents.list("volume_attachment"):
        if one.want["server"] != id:
            continue
        if one.want.get("origin"):
            _release(host, one)
            continue
        with host.locks.hold("volume", one.want["volume"]):
            volume = host.documents.get("volume", one.want["volume"])
            goes = attaching.is_current(host, one) and (
                one.state.get("made_with_server") if failed else one.want["delete_on_termination"])
            if volume and goes and volume.id not in kept and len(holders(host, volume.id)) == 1:
                _remove(task, volume)
            host.documents.remove(one)
    if failed:
        _remove_all(task, (one["volume"] for one in volume_items(task.document.want)
                           if one["source_type"] != "volume" and one["volume"] not in kept))


def _release(host: LocalHost, attachment: Document) -> None:
    """Tell the volume's host that the attachment has ended, now or as soon as that host answers (``RemoteVolumes``)."""
    attachment.deleting = True
    attachment.state["delete"] = attachment.want["delete_on_termination"] and attaching.is_current(host, attachment)
    host.documents.write(attachment)
    try:
        remote.release(host, attachment)
    except Unreachable as error:
        log.warning("the volume %s is to be given back later: %s", attachment.want["volume"], error)
    else:
        host.documents.remove(attachment)


def _remove_all(task: Task, made: Iterable[str]) -> None:
    """Volumes that were made for a server and not attached to it yet."""
    for id in made:
        with task.host.locks.hold("volume", id):
            volume = task.host.documents.get("volume", id)
            if volume and not holders(task.host, id):
                _remove(task, volume)


def _remove(task: Task, volume: Document) -> None:
    """A volume and its content; the document is marked first, so that a crash cannot leave half of it."""
    volume.deleting = True
    task.host.documents.write(volume)
    content.remove(task.host, volume)
    task.host.documents.remove(volume)
