# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes in servers: the disk of an attachment, its hot-plug, and its unplug, which needs the guest's consent.

Locks are always taken in this order: attachment, server, volume.
"""

from __future__ import annotations

import time
import uuid
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from magnetar_agent.host.networks import Nic
from magnetar_agent.host.storage import Disk, DiskKey
from magnetar_core.errors import Conflict
from magnetar_core.hardware.device_names import device_names
from magnetar_core.hardware.merge import PREFIX
from magnetar_core.power import LIVE

from . import by_device, content, keys, remote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document
    from magnetar_core.operations import Operation

#: Namespace of the uuids of attachments: one for each pair of server and volume.
NAMESPACE = uuid.UUID("6f1c6a0e-3a2c-5b77-9a51-6d0c0de7a11a")
#: Seconds between two requests to unplug a device, and between two checks whether it is gone.
ASK, POLL_INTERVAL = 5.0, 0.5
SATA = "A sata disk cannot be plugged into a running server. Use bus virtio or scsi, or stop the server first."
SATA_WRITES = "cannot be true on bus sata, whose disks QEMU lets write always; use virtio or scsi"
#: Notes of an attachment that replaces another one (``swapping``): QEMU is about to switch to its volume; QEMU has
#: switched. Notes of the replaced one: the id of the attachment that replaces it; it is replaced.
PIVOTING, SWAPPED, GIVES_WAY, REPLACED = "pivoting", "swapped", "gives_way", "replaced"


def attachment_id(server: str, volume: str) -> str:
    """Return the uuid of a volume attachment, which is computed from the uuids *server* and *volume*."""
    return str(uuid.uuid5(NAMESPACE, f"{server}:{volume}"))


def server_attachments(host: LocalHost, id: str, include_detaching: bool = False) -> list[Document]:
    """Return the volume attachments of the server *id*, sorted by device name. *include_detaching*: include attachments
    that are being detached or swapped."""
    attachments = [attachment.copy() for attachment in host.documents.peek("volume_attachment")
                   if attachment.want["server"] == id and (include_detaching or (not attachment.deleting
                                                                                 and is_current(host, attachment)))]
    return sorted(attachments, key=by_device)


def is_current(host: LocalHost, attachment: Document) -> bool:
    """Return whether the guest uses the volume of *attachment*. During a volume swap, this is true for the old volume
    until the guest switches to the new one."""
    if attachment.want.get("replaces"):
        return is_swapped(host, attachment)
    if attachment.state.get(REPLACED):
        return False
    id = attachment.state.get(GIVES_WAY)
    other = host.documents.get("volume_attachment", id) if id else None
    return not (other and other.want.get("replaces") == attachment.want["volume"] and is_swapped(host, other))


def is_swapped(host: LocalHost, attachment: Document) -> bool:
    """Return whether the guest already uses the volume of *attachment*, which replaces another volume in a swap. While
    QEMU is switching to this volume, and after a crash, the libvirt domain shows which volume the guest uses."""
    if attachment.state.get(SWAPPED):
        return True
    place = attached_disk(host, attachment) if attachment.state.get(PIVOTING) else None
    domain = host.hypervisor.domain(attachment.want["server"]) if place else None
    return bool(place and domain and any(
        (disk.target, disk.path) == (place.target, place.path) for disk in domain.disks))


def disk_serial(attachment: Document) -> str:
    """Return the serial number of the attachment's disk in the guest: the volume's uuid, or, after a volume swap, the
    uuid of the original volume."""
    return str(attachment.want.get("serial") or attachment.want["volume"])


def refuse_while_swapped(host: LocalHost, volume: str) -> None:
    """Raise ``Conflict`` if the volume with the uuid *volume* takes part in a volume swap, or its content is being
    moved to another storage pool."""
    document = host.documents.get("volume", volume)
    if document:
        content.refuse_while_moving(document)
    for attachment in host.documents.list("volume_attachment"):
        if attachment.want.get("replaces") and volume in (attachment.want["volume"], attachment.want["replaces"]):
            raise Conflict(f"The volume {volume} is being swapped in server {server_name(host, attachment)!r} "
                           f"(attachment {attachment.name}). Wait until that has ended, or cancel its operation.")


def server_name(host: LocalHost, holder: Document) -> str:
    """Return the name of the server of *holder*, a volume attachment or a volume export. A volume export makes a volume
    of this host available to the server's host."""
    server = host.documents.get("server", holder.want["server"])
    return server.name if server else str(holder.want.get("server_name") or holder.want["server"])


def attached_disks(host: LocalHost, id: str) -> list[Disk]:
    """Return the disks of all volumes attached to the server *id*, for its libvirt domain."""
    return [disk for attachment in server_attachments(host, id) if (disk := attached_disk(host, attachment))]


def keys_of(host: LocalHost, id: str) -> list[DiskKey]:
    """Return the encryption keys of the volumes on this host that are attached to the server *id*. Volumes on other
    hosts are decrypted there."""
    volumes = [host.documents.get("volume", attachment.want["volume"]) for attachment in server_attachments(host, id)
               if not attachment.want.get("origin")]
    return [key for volume in volumes if volume and (key := keys.document_key(host, volume))]


def attached_disk(host: LocalHost, attachment: Document) -> Disk | None:
    """Return the disk of *attachment*'s volume for the libvirt domain; ``None`` if the volume does not exist any more.
    """
    want = attachment.want
    volume, origin = host.documents.get("volume", want["volume"]), want.get("origin")
    if origin:
        place, several = remote.remote_disk(host, attachment), origin["multiattach"]
    elif volume:
        place = content.content_disk(host, volume)
        several = volume.want["multiattach"]
    else:
        return None
    index = want["boot_index"]
    return replace(place, target=want["device"], bus=want["bus"], readonly=want["readonly"], tag=want["tag"],
                   serial=disk_serial(attachment), shareable=several,
                   boot=index + 1 if index is not None and index >= 0 else None)


def attached_device(host: LocalHost, attachment: Document) -> str | None:
    """Return the device name, such as vdb, of *attachment*'s volume in the running guest. Return ``None`` if the guest
    is not running or currently does not use the volume, because of a rescue or swap."""
    runs = host.hypervisor.running(attachment.want["server"])
    if runs is None or not is_current(host, attachment):
        return None
    target = next((disk.target for disk in runs.disks if disk.serial == disk_serial(attachment)), None)
    # the root disk of a rescued server has no serial number
    if target is None and (place := attached_disk(host, attachment)):
        target = next((disk.target for disk in runs.disks if disk.serial is None and disk.path == place.path), None)
    return target


def draw_device_name(bus: str, taken: set[str]) -> str:
    """Return the first device name on *bus*, such as vdb on virtio, that is not in *taken*. Raises ``Conflict`` if
    there is none."""
    for name in device_names(PREFIX[bus]):
        if name not in taken:
            return name
    raise Conflict(f"The server has no room for another {bus} disk. Detach one, or use another bus.")


@contextmanager
def hold_server_volume(host: LocalHost, server: str, volume: str) -> Iterator[None]:
    """Hold the locks of *server* and *volume* (both uuids) during the ``with`` block."""
    with host.locks.hold("server", server), host.locks.hold("volume", volume):
        yield


def plug_device(host: LocalHost, server: str, device: Disk | Nic) -> bool:
    """Attach *device* to the domain of *server* (a uuid) if the domain is running and has Magnetar's metadata. Return
    whether the domain exists: the caller must then also define the domain with the device. Raises ``Conflict`` for a
    SATA disk, which cannot be hot-plugged."""
    domain = host.hypervisor.domain(server)
    if domain and domain.owned and domain.state in LIVE:
        if isinstance(device, Disk) and device.bus == "sata":
            raise Conflict(SATA)
        host.hypervisor.attach(server, device)
    return domain is not None


def unplug_device(host: LocalHost, server: str, device: Disk | Nic, label: str, operation: Operation) -> None:
    """Detach *device* from the running domain of *server* (a uuid), and wait until the guest has released it. The
    request is repeated every ``ASK`` seconds. *label*: the device in error messages. *operation*: its cancellation ends
    the wait.

    Raises ``Conflict`` if the guest does not release the device within the setting ``detach_timeout``."""
    deadline, again = time.monotonic() + host.settings.detach_timeout, 0.0
    while _has(host, server, device):
        now = time.monotonic()
        if now >= deadline:
            raise Conflict(
                f"{label} is still there: the guest did not let go of it within {host.settings.detach_timeout:g} s. "
                "Unmount it and whatever uses it in the guest (one that is booting, hangs or has no hot-plug driver "
                "cannot), or stop the server; then repeat the call.")
        if now >= again:
            host.hypervisor.detach(server, device)
            again = time.monotonic() + ASK
            continue
        operation.raise_if_cancelled()
        host.changes.wait(server, POLL_INTERVAL)


def _has(host: LocalHost, server: str, device: Disk | Nic) -> bool:
    running = host.hypervisor.running(server)
    if running is None:
        return False
    if isinstance(device, Nic):
        return any(nic.mac == device.mac for nic in running.nics)
    return any((disk.target, disk.serial) == (device.target, device.serial) for disk in running.disks)
