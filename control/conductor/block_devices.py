# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes of servers while they are built and when they go. Attaching and detaching later is ``attach_volume``'s.

The column ``servers.volumes`` is the one truth about what a server has. What a build needs is drawn and written there
first; so whatever dies, the same volumes are made, reserved and attached again, and none is forgotten.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson

from magnetar_control.services import Document
from magnetar_control.store import servers
from magnetar_core.errors import MagnetarError, NotFound
from magnetar_core.kinds.volume import BUSES

from .connect_volume import connect
from .work import Work, WrongHost

log = logging.getLogger(__name__)
#: Seconds of waiting for a volume between two looks at whether the server is to go.
SLICE = 2.0


def entries(work: Work) -> list[Document]:
    """What the server has, or is about to have."""
    found: list[Document] = orjson.loads(work.server.volumes)
    return found


def wanted(work: Work) -> list[Document]:
    """The block devices of the request that are volumes, in order."""
    return [one for one in work.request.get("blocks") or () if one["destination_type"] == "volume"]


# Building -------------------------------------------------------------------------------------------------------
def prepared(work: Work, host: str) -> tuple[list[Document], list[str]]:
    """The block devices of a new server in the agent's form, and the volumes that are attached afterwards, since they
    lie on other hosts. All are made and reserved then. Raises ``WrongHost`` or ``Cancelled``, and what the volume
    service raises."""
    items, blocks = _tagged(work), wanted(work)
    if not blocks:
        return items, []
    kept, abroad = _drawn(work, blocks), []
    for block, entry, turn in zip(blocks, kept, turns(work.request["blocks"]), strict=True):
        volume, place = _have(work, host, block, entry), work.conductor.services.volume.where(entry["volume_id"])
        if place == host:
            items.append(_item(block, entry, turn, volume))
        elif turn == 0:
            raise WrongHost(f"The root disk of the server, volume {entry['volume_id']}, lies on host {place}; the "
                           "server can be on that host only.")
        elif entry["device"] is None:
            abroad.append(entry["volume_id"])
    return items, abroad


def turns(blocks: Sequence[Document]) -> list[int | None]:
    """The boot indexes of those that are volumes, without gaps, as agents count them; the root disk has 0."""
    order = [0, *sorted(one["boot_index"] for one in blocks if (one["boot_index"] or 0) > 0)]
    return [order.index(one["boot_index"]) if one["boot_index"] in order else None
            for one in blocks if one["destination_type"] == "volume"]


def _tagged(work: Work) -> list[Document]:
    """Local disks that the request gives a tag; the others follow from flavor and image by themselves."""
    found = []
    for one in work.request.get("blocks") or ():
        if one["destination_type"] == "local" and one.get("tag"):
            swap = {"guest_format": "swap"} if one.get("guest_format") == "swap" else {}
            root = {"uuid": one["uuid"], "boot_index": 0} if one["source_type"] == "image" else {}
            found.append({"source_type": one["source_type"], "destination_type": "local", "tag": one["tag"],
                          **swap, **root})
    return found


def _drawn(work: Work, blocks: Sequence[Document]) -> list[Document]:
    """The entries of the request's volumes, written down before anything is done for them."""
    kept = entries(work)
    if len(kept) != len(blocks):
        kept = [{"volume_id": one["uuid"] if one["source_type"] == "volume" else str(uuid.uuid4()),
                 "attachment_id": str(uuid.uuid4()), "bdm_uuid": str(uuid.uuid4()), "device": None,
                 "tag": one.get("tag"), "boot_index": one["boot_index"],
                 "delete_on_termination": one["delete_on_termination"]} for one in blocks]
        _keep(work, kept)
    return kept


def _keep(work: Work, kept: Sequence[Document], **more: Any) -> None:
    work.note(volumes=servers.text(kept), **more)
    work.load()


def _have(work: Work, host: str, block: Mapping[str, Any], entry: Mapping[str, Any]) -> Document:
    """The volume of an entry is there, and kept for the server."""
    volumes, context, id = work.conductor.services.volume, work.context(), str(entry["volume_id"])
    if block["source_type"] != "volume":
        source = {f"{block['source_type']}_id": block["uuid"]} if block["source_type"] != "blank" else {}
        volumes.create(context, _size(work, block), id=id, host=host, name="", volume_type=block.get("volume_type"),
                       **source)
        _made(work, id)
    found: Document = volumes.reserve(context, id, work.id, attachment_id=entry["attachment_id"])["volume"]
    return found


def _size(work: Work, block: Mapping[str, Any]) -> int:
    """GiB of a volume that is made: that of its snapshot, where none is said."""
    if block["volume_size"]:
        return int(block["volume_size"])
    found = work.conductor.services.volume.snapshot(work.context(), block["uuid"])
    if found is None:
        raise NotFound(f"Snapshot {block['uuid']} could not be found.")
    return int(found["size"])


def _made(work: Work, id: str) -> None:
    """Wait until the volume is made. Raises when it cannot be, ``Cancelled`` when the server is to go."""
    volumes, deadline = work.conductor.services.volume, time.monotonic() + work.conductor.settings.action_timeout
    while True:
        work.progress(None)
        try:
            volumes.wait(id, SLICE)
        except MagnetarError:
            found = volumes.show(work.context(), id)
            if found is None or found["status"] != "creating" or time.monotonic() >= deadline:
                raise
        else:
            return


def _item(block: Mapping[str, Any], entry: Mapping[str, Any], turn: int | None, volume: Mapping[str, Any]) -> Document:
    """The volume as the agent's server takes it. It is the volume service that deletes volumes, never the agent; and
    device names are the host's to choose (BDM-08)."""
    known = {"source_type": "volume", "destination_type": "volume", "uuid": entry["volume_id"], "boot_index": turn,
             "tag": entry["tag"], "readonly": True if volume.get("readonly") else None,
             "disk_bus": block["disk_bus"] if block.get("disk_bus") in BUSES else None}
    return {name: value for name, value in known.items() if value is not None}


def built(work: Work, host: str, resource: Document, abroad: Collection[str]) -> Document:
    """The server is on its host: give it the volumes of other hosts, start it if it waited for them, and note what it
    has, here and at the volume service. Returns the agent's resource as it is then."""
    kept = entries(work)
    if not kept:
        return resource
    devices = {one["id"]: one["device"] for one in resource.get("volumes_attached") or ()}
    for entry in kept:
        id = entry["volume_id"]
        device = connect(work, host, entry) if id in abroad else devices.get(id)
        if device:
            work.conductor.services.volume.attached(entry["attachment_id"], host, f"/dev/{device}")
            entry["device"] = f"/dev/{device}"
    root = next((one["device"] for one in kept if one["boot_index"] == 0 and one["device"]), None)
    _keep(work, kept, **({"root_device_name": root} if root else {}))
    if not abroad:
        return resource
    with work.client(host) as client:
        found: Document = client.ensure("server", work.id, {"power": "running"},
                                        timeout=work.conductor.settings.action_timeout)["resource"]
    return found


# Giving back ----------------------------------------------------------------------------------------------------
def give_back(work: Work, *, everything: bool) -> None:
    """A build has failed: what was made for it goes. *everything*: the server will not be built at all, so volumes that
    were there before are free again; else they stay reserved for the next host."""
    work.load()
    kept = entries(work)
    for block, entry in zip(wanted(work), kept, strict=False):
        made = block["source_type"] != "volume"
        entry["device"] = None
        if made or everything:
            _free(work, entry, delete=made)
        if made:
            entry["volume_id"], entry["attachment_id"] = str(uuid.uuid4()), str(uuid.uuid4())
    if kept:
        _keep(work, [] if everything else kept)


def let_go(work: Work) -> None:
    """The server goes: its volumes are free, or go with it."""
    for entry in entries(work):
        _close(work, entry)
        _free(work, entry, delete=entry["delete_on_termination"])


def _free(work: Work, entry: Mapping[str, Any], *, delete: bool) -> None:
    volumes = work.conductor.services.volume
    volumes.detached(entry["attachment_id"])
    if delete:
        try:
            volumes.delete(work.context(), entry["volume_id"])
        except MagnetarError as error:  # it has snapshots, or another server has it too
            log.warning("server %s: its volume %s stays: %s", work.id, entry["volume_id"], error.message,
                        extra={"server": work.id})


def _close(work: Work, entry: Mapping[str, Any]) -> None:
    """Have the volume's host serve it no more; needed when the server's own host cannot tell it."""
    try:
        place = work.conductor.services.volume.where(entry["volume_id"])
        if place != work.server.host:
            with work.client(place) as client:
                client.delete("volume_export", f"{work.id}:{entry['volume_id']}")
    except MagnetarError as error:
        log.info("server %s: volume %s: %s", work.id, entry["volume_id"], error.message)
