# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes of servers at create, delete, shelve and unshelve. ``attach_volume`` attaches and detaches others.

The column ``servers.volumes`` is the source of truth for the volumes of a server. A build draws the uuids of volumes
and attachments and saves them there first: after a crash the same volumes are made, reserved and attached.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from magnetar_control.agents import PATIENCE
from magnetar_control.conductor.worker.work import Work, WrongHost
from magnetar_control.services import Document
from magnetar_control.services.volume.attachments import id_of_new
from magnetar_control.store.hosts import host_removals
from magnetar_control.store.servers import servers
from magnetar_core.errors import Conflict, MagnetarError, NotFound
from magnetar_core.kinds.volume import BUSES
from magnetar_core.local_disks import is_blank, is_swap
from magnetar_core.power import OFF

from .volume_connections import connect

log = logging.getLogger(__name__)
#: Seconds of waiting for a volume between two checks whether the server is to be deleted.
SLICE = 2.0
#: Statuses of a volume whose content is on its way.
MAKING = ("creating", "downloading")


def requested(work: Work) -> list[Document]:
    """The block devices of the request that are volumes, in order."""
    return [one for one in work.request.get("blocks") or () if one["destination_type"] == "volume"]


def prepare(work: Work, host: str) -> tuple[list[Document], list[str]]:
    """Make and reserve the volumes of a new server. Returns its block devices in the agent's form, and the uuids of
    volumes on other hosts, to attach after the build. Raises ``WrongHost``, ``Cancelled``, and the service's errors."""
    if work.server.launched_at:
        return _prepare_again(work, host)
    items, blocks = _local(work), requested(work)
    if not blocks:
        return items, []
    kept, abroad, new = work.volumes, [], work.server.vm_state == "building"
    if len(kept) != len(blocks):  # saved before anything is done for them
        kept = [{"volume_id": one["uuid"] if one["source_type"] == "volume" else str(uuid.uuid4()),
                 "attachment_id": _attachment_id(work, one), "bdm_uuid": str(uuid.uuid4()), "device": None,
                 "tag": one.get("tag"), "boot_index": one["boot_index"], "disk_bus": one.get("disk_bus"),
                 "delete_on_termination": one["delete_on_termination"]} for one in blocks]
        work.note(volumes=servers.text(kept), **({"task_state": servers.MAPPING} if new else {}))
    for block, entry, order in zip(blocks, kept, boot_order(work.request["blocks"]), strict=True):
        volume = _make_and_reserve(work, host, block, entry)
        place = work.conductor.services.volume.where(entry["volume_id"])
        if place == host:
            items.append(_item(block, entry, order, volume))
        elif order == 0:
            raise _wrong_host(entry, place)
        elif entry["device"] is None:
            abroad.append(entry["volume_id"])
    if work.server.task_state in (servers.NETWORKING, servers.MAPPING):
        work.note(task_state=servers.SPAWNING)
    return items, abroad


def _attachment_id(work: Work, block: Mapping[str, Any]) -> str:
    """Return the id of the attachment of a new server's volume: drawn, or the one under which the API has reserved it.
    """
    return id_of_new(work.id, block["uuid"]) if block["source_type"] == "volume" else str(uuid.uuid4())


def free_reserved(work: Work) -> None:
    """Free the volumes that the API has reserved for a server which was not built."""
    for block in requested(work):
        if block["source_type"] == "volume":
            work.conductor.services.volume.detached(_attachment_id(work, block), work.confirm_lease)


def _prepare_again(work: Work, host: str) -> tuple[list[Document], list[str]]:
    """As ``prepare``, for a server that was on a host before: with the volumes that it has, named as they were."""
    items, abroad, kept = _local(work), [], work.volumes
    volumes = work.conductor.services.volume
    for entry, order in zip(kept, boot_order(kept), strict=True):
        id = entry["volume_id"]
        volume = volumes.reserve(work.context(), id, work.id, attachment_id=entry["attachment_id"])["volume"]
        place = volumes.where(id)
        if place == host:
            items.append({**_item(entry, entry, order, volume), **_named(entry)})
        elif order == 0:
            raise _wrong_host(entry, place)
        else:
            abroad.append(id)
    return items, abroad


def _named(entry: Mapping[str, Any]) -> Document:
    """The name of its disk, where that goes with the bus."""
    name, bus = (entry["device"] or "").removeprefix("/dev/"), entry.get("disk_bus")
    return {"device_name": name} if name.startswith("sd" if bus in BUSES and bus != "virtio" else "vd") else {}


def _wrong_host(entry: Mapping[str, Any], place: str) -> WrongHost:
    return WrongHost(f"The root disk of the server, volume {entry['volume_id']}, lies on host {place}; the server can "
                     "be on that host only.")


def boot_order(blocks: Sequence[Document]) -> list[int | None]:
    """The boot index of each volume as agents count them: without gaps, the root disk has 0."""
    order = [0, *sorted(one["boot_index"] for one in blocks if (one["boot_index"] or 0) > 0)]
    return [order.index(one["boot_index"]) if one["boot_index"] in order else None
            for one in blocks if one.get("destination_type", "volume") == "volume"]


def _local(work: Work) -> list[Document]:
    """Ephemeral and swap disks that were asked for, and a root disk with a tag. What else there is of local disks
    follows from flavor and image."""
    shelved = work.server.shelved_image_id
    return [{"source_type": one["source_type"], "destination_type": "local",
             **({"tag": one["tag"]} if one.get("tag") else {}),
             **({"guest_format": "swap"} if is_swap(one) else {}),
             **({"volume_size": one["volume_size"]} if is_blank(one) and one.get("volume_size") else {}),
             **({"uuid": shelved or one["uuid"], "boot_index": 0} if one["source_type"] == "image" else {})}
            for one in work.request.get("blocks") or ()
            if one["destination_type"] == "local" and (one.get("tag") or is_blank(one))]


def _make_and_reserve(work: Work, host: str, block: Mapping[str, Any], entry: Mapping[str, Any]) -> Document:
    """Make the volume of an entry if the request says so, and reserve it for the server."""
    volumes, context, id = work.conductor.services.volume, work.context(), str(entry["volume_id"])
    if block["source_type"] != "volume":
        source = {f"{block['source_type']}_id": block["uuid"]} if block["source_type"] != "blank" else {}
        volumes.create(context, _size(work, block), id=id, host=host, name="", volume_type=block.get("volume_type"),
                       image_names_type=False, **source)  # the API has looked, as the caller
        with work.asking(volumes.where(id)):  # content of a snapshot is copied on the snapshot's host
            _wait_until_made(work, id)
    found: Document = volumes.reserve(context, id, work.id, attachment_id=entry["attachment_id"])["volume"]
    return found


def _size(work: Work, block: Mapping[str, Any]) -> int:
    """GiB of a new volume: as requested, else the size of its snapshot."""
    if block["volume_size"]:
        return int(block["volume_size"])
    found = work.conductor.services.volume.snapshot(work.context(), block["uuid"])
    if found is None:
        raise NotFound(f"Snapshot {block['uuid']} could not be found.")
    return int(found["size"])


def _wait_until_made(work: Work, id: str) -> None:
    """Wait until the volume is made. Raises when that fails, ``Cancelled`` when the server is to be deleted."""
    volumes, deadline = work.conductor.services.volume, time.monotonic() + work.conductor.settings.action_timeout
    while True:
        work.progress(None)
        try:
            volumes.wait(id, SLICE)
        except MagnetarError:
            found = volumes.show(work.context(), id)
            if found is None or found["status"] not in MAKING or time.monotonic() >= deadline:
                raise
        else:
            return


def root_of(work: Work) -> Document | None:
    """The volume that is the server's root disk, if it is one."""
    return next((one for one in work.volumes if one["boot_index"] == 0), None)


def reimage(work: Work, entry: Mapping[str, Any], image: str) -> None:
    """Have the content of a volume of the server, which is off, made anew from an image, once for the action. The
    volume stays the server's whatever becomes of it."""
    volumes, id, request = work.conductor.services.volume, entry["volume_id"], work.idempotency_key
    if not volumes.reimaged(id, request):
        volumes.disconnected(entry["attachment_id"], work.confirm_lease)
        volumes.reimage(work.context(), id, image, request)
        with work.asking(volumes.where(id)):
            _wait_until_made(work, id)
        if not volumes.reimaged(id, request):
            raise Conflict(f"The root disk of the server, volume {id}, was not made anew: it was in use, or somebody "
                           "set its status meanwhile.")
    volumes.attached(entry["attachment_id"], work.server.host, entry["device"], work.confirm_lease)


def _item(block: Mapping[str, Any], entry: Mapping[str, Any], order: int | None, volume: Mapping[str, Any]) -> Document:
    """The volume in the form of the agent's block_device_mapping. The volume service deletes volumes, never the agent;
    the host chooses device names (BDM-08)."""
    known = {"source_type": "volume", "destination_type": "volume", "uuid": entry["volume_id"], "boot_index": order,
             "tag": entry["tag"], "readonly": True if volume.get("readonly") else None,
             "disk_bus": block["disk_bus"] if block.get("disk_bus") in BUSES else None}
    return {name: value for name, value in known.items() if value is not None}


def finish_build(work: Work, host: str, resource: Document, abroad: Collection[str], want: Document, *,
                 held: bool) -> Document:
    """After the build: attach the volumes *abroad*, save devices here and at the volume service, and start the server
    if it waited for these volumes, or for something else (*held*). Returns the agent's resource. *want*: what the
    server is to be, ``power`` and what that takes."""
    seen = {one["id"]: one["device"] for one in resource.get("volumes_attached") or ()}
    devices: dict[str, str] = {}
    for entry in work.volumes:
        id = entry["volume_id"]
        device = connect(work, host, entry) if id in abroad else seen.get(id)
        if device:
            devices[entry["attachment_id"]] = f"/dev/{device}"
            work.conductor.services.volume.attached(entry["attachment_id"], host, f"/dev/{device}", work.confirm_lease)
    if devices:
        _save(work, devices)
    if not (abroad or held) or want["power"] == OFF:
        return resource
    with work.client(host) as client:
        found: Document = client.ensure("server", work.id, want, progress=work.progress)["resource"]
    return found


def _save(work: Work, devices: Mapping[str, str]) -> None:
    """Save the devices by their attachments. A server that was on a host before may be given more volumes meanwhile."""
    def named(kept: list[Document]) -> list[Document]:
        return [{**one, "device": devices.get(one["attachment_id"], one["device"])} for one in kept]

    def root(kept: list[Document]) -> Document:
        found = next((one["device"] for one in kept if one["boot_index"] == 0 and one["device"]), None)
        return {"root_device_name": found} if found else {}

    work.confirm_lease()
    work.revise("volumes", named, root)
    work.load()


def give_back(work: Work, *, everything: bool) -> None:
    """A build has failed: delete the volumes that were made for it. *everything*: no other host is tried, so existing
    volumes are free again; otherwise they stay reserved for the next host."""
    work.load()
    kept = work.volumes
    for block, entry in zip(requested(work), kept, strict=False):
        made = block["source_type"] != "volume"
        entry["device"] = None
        if made or everything:
            _free(work, entry, delete=made)
        if made:
            entry["volume_id"], entry["attachment_id"] = str(uuid.uuid4()), str(uuid.uuid4())
    if everything:
        free_reserved(work)
    if kept:
        work.note(volumes=servers.text([] if everything else kept))


def disconnect(work: Work) -> None:
    """The server is on no host: its volumes stay reserved for it."""
    for entry in work.volumes:
        _unexport(work, entry)
        work.conductor.services.volume.disconnected(entry["attachment_id"], work.confirm_lease)


def release(work: Work) -> None:
    """The server is deleted: free its volumes, or delete them with it; and those that it was to get in their place."""
    if not work.server.launched_at:
        free_reserved(work)
    for entry in work.volumes:
        if entry.get("swap"):
            _unexport(work, entry["swap"], for_good=True)
            _free(work, entry["swap"], delete=False)
        _unexport(work, entry, for_good=True)
        _free(work, entry, delete=entry["delete_on_termination"])


def _free(work: Work, entry: Mapping[str, Any], *, delete: bool) -> None:
    volumes = work.conductor.services.volume
    volumes.detached(entry["attachment_id"], work.confirm_lease)
    if delete:
        try:
            volumes.delete(work.context(), entry["volume_id"])
        except MagnetarError as error:  # it has snapshots, or another server has it too
            log.warning("server %s: its volume %s stays: %s", work.id, entry["volume_id"], error.message,
                        extra={"server": work.id})


def _unexport(work: Work, entry: Mapping[str, Any], *, for_good: bool = False) -> None:
    """Delete the volume's export on its own host; the server's host may be down. *for_good*: the server is deleted, so
    that a host which does not answer deletes the export later."""
    try:
        place = work.conductor.services.volume.where(entry["volume_id"])
    except MagnetarError as error:  # it was force-deleted
        log.info("server %s: volume %s: %s", work.id, entry["volume_id"], error.message)
        return
    if place == work.server.host:
        return
    key = f"{work.id}:{entry['volume_id']}"
    try:
        with work.client(place, PATIENCE) as client:
            client.delete("volume_export", key)
    except NotFound:
        pass
    except MagnetarError as error:
        log.info("server %s: volume %s: %s", work.id, entry["volume_id"], error.message)
        if for_good:  # an export that stays would keep the volume from being deleted
            with work.conductor.store.api.write() as connection:
                host_removals.note(connection, place, "volume_export", key, due=True)
