# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes of servers at create, delete, shelve and unshelve. For attachments on request see ``flows.volume_attach``.

The column ``servers.volumes`` is the source of truth for the volumes of a server. A build saves the uuids of volumes
and attachments there before it makes them: after a crash the same volumes are made, reserved and attached.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from magnetar_control.agents import PATIENCE
from magnetar_control.conductor.worker.work import RunningAction, WrongHost
from magnetar_control.documents import BlockDevice, NewVolume, VolumeOfServer
from magnetar_control.services.volume.attachments import id_of_new
from magnetar_control.store.hosts import host_removals
from magnetar_control.store.servers import servers
from magnetar_core.document import Document
from magnetar_core.errors import Conflict, MagnetarError, NotFound
from magnetar_core.flows import attach as agent_flow
from magnetar_core.flows.migrate import Side
from magnetar_core.kinds.volume import BUSES
from magnetar_core.local_disks import is_blank, is_swap
from magnetar_core.power import OFF

from .volume_homes import bring_volume, leave_dead_hosts

log = logging.getLogger(__name__)
#: Seconds of waiting for a volume between two checks whether the server must be deleted.
SLICE = 2.0
#: Statuses of a volume whose content is still being written.
MAKING = ("creating", "downloading")


def requested_volumes(work: RunningAction) -> list[BlockDevice]:
    """Return the volumes (``destination_type`` volume) among the block devices in the server's create request, in the
    order of the request."""
    return [block_device for block_device in work.request.get("blocks") or ()
            if block_device["destination_type"] == "volume"]


def prepare_volumes(work: RunningAction, host: str) -> tuple[list[Document], list[str]]:
    """Create and reserve the volumes of a server that is built on *host*. Return two lists: the server's block devices
    as the agent of *host* expects them, and the uuids of volumes that are stored on other hosts and must be attached
    after the build. Raises ``WrongHost`` if *host* cannot access the root volume, ``Cancelled``, and errors of the
    volume service."""
    if work.server.launched_at:
        return _prepare_again(work, host)
    agent_devices, block_devices = _local(work), requested_volumes(work)
    if not block_devices:
        return agent_devices, []
    attachments, remote_volumes, new = work.volumes, [], work.server.vm_state == "building"
    if len(attachments) != len(block_devices):  # saved before anything else
        attachments = [{"volume_id": str(requested_device["uuid"] if requested_device["source_type"] == "volume"
                                         else uuid.uuid4()),
                        "attachment_id": _attachment_id(work, requested_device), "bdm_uuid": str(uuid.uuid4()),
                        "device": None,
                        "tag": requested_device.get("tag"), "boot_index": requested_device["boot_index"],
                        "disk_bus": requested_device.get("disk_bus"),
                        "delete_on_termination": requested_device["delete_on_termination"]}
                       for requested_device in block_devices]
        work.note(volumes=servers.json_text(attachments), **({"task_state": servers.MAPPING} if new else {}))
    for block_device, attachment, order in zip(block_devices, attachments, boot_order(work.request["blocks"]),
                                               strict=True):
        volume = _make_and_reserve(work, host, block_device, attachment)
        place = bring_volume(work, attachment, host)
        if place == host:
            agent_devices.append(_agent_block_device(block_device, attachment, order, volume))
        elif order == 0:
            raise _wrong_host(attachment, place)
        elif attachment["device"] is None:
            remote_volumes.append(attachment["volume_id"])
    if work.server.task_state in (servers.NETWORKING, servers.MAPPING):
        work.note(task_state=servers.SPAWNING)
    return agent_devices, remote_volumes


def _attachment_id(work: RunningAction, block_device: BlockDevice) -> str:
    """Return the id for the attachment of the new server's volume *block_device*. For an existing volume this is the id
    with which the API reserved the volume, otherwise a new random uuid."""
    return id_of_new(work.id, block_device["uuid"]) if block_device["source_type"] == "volume" else str(uuid.uuid4())


def free_reserved_volumes(work: RunningAction) -> None:
    """Release the existing volumes that the API has reserved for the server. Called for a server that was not built."""
    for block_device in requested_volumes(work):
        if block_device["source_type"] == "volume":
            work.conductor.services.volume.detached(_attachment_id(work, block_device), work.confirm_lease)


def _prepare_again(work: RunningAction, host: str) -> tuple[list[Document], list[str]]:
    """Reserve the volumes of a shelved or evacuated server for its build on *host*. Return two lists: the server's
    block devices as the agent of *host* expects them, with their previous device names, and the uuids of volumes that
    are stored on other hosts and must be attached after the build."""
    agent_devices, remote_volumes, attachments = _local(work), [], work.volumes
    volumes = work.conductor.services.volume
    for attachment, order in zip(attachments, boot_order(attachments), strict=True):
        id = attachment["volume_id"]
        volume = volumes.reserve(work.context(), id, work.id, attachment_id=attachment["attachment_id"])["volume"]
        place = bring_volume(work, attachment, host)
        if place == host:
            agent_devices.append({**_agent_block_device(attachment, attachment, order, volume),
                                  **_device_name(attachment)})
        elif order == 0:
            raise _wrong_host(attachment, place)
        else:
            remote_volumes.append(id)
    return agent_devices, remote_volumes


def _device_name(attachment: VolumeOfServer) -> Document:
    """Return {"device_name": name} for the agent, with the volume's present device name, such as ``vdb``. Return an
    empty mapping if the volume has no device name, or a name that does not fit its disk bus."""
    name, bus = (attachment["device"] or "").removeprefix("/dev/"), attachment.get("disk_bus")
    return {"device_name": name} if name.startswith("sd" if bus in BUSES and bus != "virtio" else "vd") else {}


def _wrong_host(attachment: VolumeOfServer, volume_host: str) -> WrongHost:
    return WrongHost(
        f"The root disk of the server, volume {attachment['volume_id']}, lies on host {volume_host}; the server can "
                     "be on that host only.")


def boot_order(block_devices: Sequence[BlockDevice] | Sequence[VolumeOfServer]) -> list[int | None]:
    """Return a boot index for each volume in *block_devices*, renumbered for agents: 0 for the root disk, then 1, 2 …
    without gaps; ``None`` for a volume from which the server does not boot."""
    order = [0, *sorted(index for index in (block_device["boot_index"] for block_device in block_devices)
                        if index and index > 0)]
    return [order.index(block_device["boot_index"]) if block_device["boot_index"] in order else None
            for block_device in block_devices if block_device.get("destination_type", "volume") == "volume"]


def _local(work: RunningAction) -> list[Document]:
    """Return the requested local disks as the agent expects them: ephemeral disks, swap disks, and a root disk that has
    a tag. The agent derives other local disks from flavor and image."""
    shelved = work.server.shelved_image_id
    return [{"source_type": block_device["source_type"], "destination_type": "local",
             **({"tag": block_device["tag"]} if block_device.get("tag") else {}),
             **({"guest_format": "swap"} if is_swap(block_device) else {}),
             **({"volume_size": block_device["volume_size"]} if is_blank(block_device)
                and block_device.get("volume_size") else {}),
             **({"uuid": shelved or block_device["uuid"], "boot_index": 0} if block_device["source_type"] == "image"
                else {})}
            for block_device in work.request.get("blocks") or ()
            if block_device["destination_type"] == "local" and (block_device.get("tag") or is_blank(block_device))]


def _make_and_reserve(work: RunningAction, host: str, block_device: BlockDevice,
                      attachment: VolumeOfServer) -> Document:
    """Return the volume of *block_device*, reserved for the server. If the request asks for a new volume, first create
    the volume on *host*, and wait until it has its content."""
    volumes, context, id = work.conductor.services.volume, work.context(), str(attachment["volume_id"])
    if block_device["source_type"] != "volume":
        source = {
            f"{block_device['source_type']}_id": block_device["uuid"]} if block_device["source_type"] != "blank" else {}
        volumes.create(context, _size(work, block_device), id=id, host=host, name="",
                       volume_type=block_device.get("volume_type"),
                       image_names_type=False, **source)  # the API has checked that, as the caller
        with work.asking(volumes.where(id)):  # a snapshot is copied on its own host
            _wait_until_made(work, id)
    reserved_volume: Document = volumes.reserve(context, id, work.id,
                                                attachment_id=attachment["attachment_id"])["volume"]
    return reserved_volume


def _size(work: RunningAction, block_device: BlockDevice) -> int:
    """Return the size of a new volume in GiB: the requested size, otherwise the size of the snapshot from which the
    volume is created."""
    if block_device["volume_size"]:
        return int(block_device["volume_size"])
    snapshot = work.conductor.services.volume.snapshot(work.context(), block_device["uuid"])
    if snapshot is None:
        raise NotFound(f"Snapshot {block_device['uuid']} could not be found.")
    return int(snapshot["size"])


def _wait_until_made(work: RunningAction, id: str) -> None:
    """Wait until the new volume *id* has its content. Raises the volume service's error if the creation failed or took
    longer than ``action_timeout``, and ``Cancelled`` if the action was cancelled, for example by a deletion of the
    server."""
    volumes, deadline = work.conductor.services.volume, time.monotonic() + work.conductor.settings.action_timeout
    while True:
        work.progress(None)
        try:
            volumes.wait(id, SLICE)
        except MagnetarError:
            volume = volumes.show(work.context(), id)
            if volume is None or volume["status"] not in MAKING or time.monotonic() >= deadline:
                raise
        else:
            return


def root_volume_of(work: RunningAction) -> VolumeOfServer | None:
    """Return the volume that is the server's root disk; ``None`` if the root disk is local."""
    return next((volume for volume in work.volumes if volume["boot_index"] == 0), None)


def reimage_root_volume(work: RunningAction, attachment: VolumeOfServer, image: str) -> None:
    """Replace the content of the root volume of a powered-off server with the image *image* (a uuid), once per action.
    *attachment*: the root volume. If this fails, the volume still belongs to the server."""
    volumes, id, request = work.conductor.services.volume, attachment["volume_id"], work.idempotency_key
    if not volumes.reimaged(id, request):
        volumes.disconnected(attachment["attachment_id"], work.confirm_lease)
        volumes.reimage(work.context(), id, image, request)
        with work.asking(volumes.where(id)):
            _wait_until_made(work, id)
        if not volumes.reimaged(id, request):
            raise Conflict(f"The root disk of the server, volume {id}, was not recreated: it was in use, or somebody "
                           "set its status meanwhile.")
    volumes.attached(attachment["attachment_id"], work.server.host, attachment["device"], work.confirm_lease)


def _agent_block_device(block_device: BlockDevice | VolumeOfServer, attachment: VolumeOfServer, order: int | None,
                        volume: Mapping[str, Any]) -> Document:
    """Return a volume as the agent expects it in ``block_device_mapping``. ``delete_on_termination`` is left out, since
    the volume service deletes volumes. The device name is left out, since the host chooses it. *attachment*: the
    volume. *block_device*: the object with the disk bus: the requested block device of a new server, otherwise
    *attachment* itself. *order*: the boot index, or ``None``. *volume*: the volume as the volume service shows it."""
    fields = {"source_type": "volume", "destination_type": "volume", "uuid": attachment["volume_id"],
              "boot_index": order, "tag": attachment["tag"], "readonly": True if volume.get("readonly") else None,
              "disk_bus": block_device["disk_bus"] if block_device.get("disk_bus") in BUSES else None}
    return {name: value for name, value in fields.items() if value is not None}


def finish_build(work: RunningAction, host: str, resource: Document, remote_volumes: Collection[str], want: Document, *,
                 ports_pending: bool) -> Document:
    """Finish the build of a server on *host*: attach the volumes *remote_volumes*, and save the device names of all
    volumes. A server with *remote_volumes* or *ports_pending* was created powered off; also apply *want* to such a
    server, unless ``power`` in *want* is off. Return the server as its agent reports it.

    *resource*: the created server as its agent reports it. *remote_volumes*: uuids of volumes that are stored on other
    hosts. *ports_pending*: whether the server's ports were not ready when the server was created. *want*: fields for
    the server's start: ``power`` and the secret of its TPM.
    """
    device_names = {volume["id"]: volume["device"] for volume in resource.get("volumes_attached") or ()}
    devices: dict[str, str] = {}
    for attachment in work.volumes:
        id = attachment["volume_id"]
        device = connect_volume(work, host, attachment) if id in remote_volumes else device_names.get(id)
        if device:
            devices[attachment["attachment_id"]] = f"/dev/{device}"
            work.conductor.services.volume.attached(attachment["attachment_id"], host, f"/dev/{device}",
                                                    work.confirm_lease)
    if devices:
        _save(work, devices)
    if not (remote_volumes or ports_pending) or want["power"] == OFF:
        return resource
    with work.client(host) as client:
        started_server: Document = client.ensure("server", work.id, want, progress=work.progress)["resource"]
    return started_server


def _save(work: RunningAction, devices: Mapping[str, str]) -> None:
    """Save *devices*, device names by attachment id, in the column ``volumes`` of the server's row. Volumes that are
    missing in *devices* keep their device names."""
    def named(attachments: list[Document]) -> list[Document]:
        return [{**attachment, "device": devices.get(attachment["attachment_id"], attachment["device"])}
                for attachment in attachments]

    def root(attachments: list[Document]) -> Document:
        device = next((attachment["device"] for attachment in attachments if attachment["boot_index"] == 0
                       and attachment["device"]), None)
        return {"root_device_name": device} if device else {}

    work.confirm_lease()
    work.revise("volumes", named, root)
    work.load()


def give_back_volumes(work: RunningAction, *, everything: bool) -> None:
    """Delete the volumes that a failed build has created, and choose new volume and attachment ids for the next build.
    *everything*: no other host is tried, so also release the existing volumes; if false, these stay reserved for the
    build on the next host."""
    work.load()
    attachments = list(work.volumes)
    for at, (block_device, attachment) in enumerate(zip(requested_volumes(work), work.volumes, strict=False)):
        made = block_device["source_type"] != "volume"
        if made or everything:
            _free(work, attachment, delete=made)
        drawn: Any = {"volume_id": str(uuid.uuid4()), "attachment_id": str(uuid.uuid4())} if made else {}
        attachments[at] = {**attachment, "device": None, **drawn}
    if everything:
        free_reserved_volumes(work)
    if attachments:
        work.note(volumes=servers.json_text([] if everything else attachments))


def disconnect_volumes(work: RunningAction) -> None:
    """For a server that is no longer on any host, remove the exports of its volumes (the access by network from another
    host), and reset the volumes' attachments to reserved. The volumes still belong to the server."""
    for attachment in work.volumes:
        _unexport(work, attachment)
        work.conductor.services.volume.disconnected(attachment["attachment_id"], work.confirm_lease)


def release_volumes(work: RunningAction) -> None:
    """Detach all volumes from a deleted server, and delete the volumes with ``delete_on_termination``. If a volume swap
    was in progress, detach the new volume too."""
    if not work.server.launched_at:
        free_reserved_volumes(work)
    for attachment in work.volumes:
        if attachment.get("swap"):
            _unexport(work, attachment["swap"], for_good=True)
            _free(work, attachment["swap"], delete=False)
        _unexport(work, attachment, for_good=True)
        _free(work, attachment, delete=attachment["delete_on_termination"])


def _free(work: RunningAction, attachment: VolumeOfServer | NewVolume, *, delete: bool) -> None:
    volumes = work.conductor.services.volume
    volumes.detached(attachment["attachment_id"], work.confirm_lease)
    if delete:
        try:
            volumes.delete(work.context(), attachment["volume_id"])
        except MagnetarError as error:  # it has snapshots, or another server uses it too
            log.warning("server %s: its volume %s stays: %s", work.id, attachment["volume_id"], error.message,
                        extra={"server": work.id})


def _unexport(work: RunningAction, attachment: VolumeOfServer | NewVolume, *, for_good: bool = False) -> None:
    """Delete the volume's export (the access by network from the server's host) on the host that stores the volume. Do
    nothing if the server is on the same host. Errors of the storing host are only logged. *for_good*: the server is
    being deleted; after an error, queue the deletion of the export, because a remaining export would prevent the
    deletion of the volume."""
    try:
        place = work.conductor.services.volume.where(attachment["volume_id"])
    except MagnetarError as error:  # it was force-deleted
        log.info("server %s: volume %s: %s", work.id, attachment["volume_id"], error.message)
        return
    if place == work.server.host:
        return
    key = f"{work.id}:{attachment['volume_id']}"
    try:
        with work.client(place, PATIENCE) as client:
            client.delete("volume_export", key)
    except NotFound:
        pass
    except MagnetarError as error:
        log.info("server %s: volume %s: %s", work.id, attachment["volume_id"], error.message)
        if for_good:  # a leftover export would prevent the deletion of the volume
            with work.conductor.store.api.write() as connection:
                host_removals.insert_removal_row(connection, place, "volume_export", key, due=True)


def connect_volume(work: RunningAction, host: str, attachment: VolumeOfServer) -> str:
    """Attach the volume to the server on *host*, also if another host stores the volume. Return the device name, such
    as ``vdb``."""
    volumes, id = work.conductor.services.volume, attachment["volume_id"]
    volume = volumes.show(work.context(), id)
    if volume is None:
        raise NotFound(f"Volume {id} could not be found.")
    bus = attachment.get("disk_bus")
    want: Document = {"tag": attachment["tag"], "readonly": bool(volume.get("readonly")),
                      **({"bus": bus} if bus in BUSES else {})}
    device = (attachment["device"] or "").removeprefix("/dev/")
    with agents_of_volume(work, host, bring_volume(work, attachment, host)) as (server_agent, volume_agent):
        def asked(**more: str) -> str:
            answer = agent_flow.attach_remote_volume(server_agent, volume_agent, work.id, id, {**want, **more},
                                                     work.confirm_old_lease, progress=work.progress)
            return str(answer["resource"]["device"])

        if not device:
            return asked()
        try:
            return asked(device=device)
        except Conflict as error:
            if error.details.get("field") != "device":
                raise
            return asked()  # the host has another disk of that name, and chooses one


def disconnect_volume(work: RunningAction, host: str | None, id: str) -> None:
    """Detach the volume *id* from the server on *host*. Do nothing if *host* is ``None``: then the server is on no
    host."""
    if not host:
        return
    leave_dead_hosts(work, host, [id])
    try:
        place = work.conductor.services.volume.where(id)
    except MagnetarError:  # it was force-deleted: only the server knows it
        place = host
    with agents_of_volume(work, host, place) as (server_agent, volume_agent):
        agent_flow.detach_remote_volume(server_agent, volume_agent, work.id, id, work.confirm_old_lease,
                                        progress=work.progress)


def agents_of_volume(work: RunningAction, host: str, volume_host: str) -> AbstractContextManager[tuple[Side, Side]]:
    """Return a context manager that yields two agents: first the agent of *host*, which has the server, then the agent
    of *volume_host*, which stores the volume. Raises ``HostDown`` if an agent does not answer."""
    return work.sides(host, volume_host, f"host {host} or of {volume_host}, which has the volume,")
