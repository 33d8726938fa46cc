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
ASK, LOOK = 5.0, 0.5
SATA = "A sata disk cannot be plugged into a running server. Use bus virtio or scsi, or stop the server first."
SATA_WRITES = "cannot be true on bus sata, whose disks QEMU lets write always; use virtio or scsi"
#: Notes of an attachment that replaces another one (``swapping``): QEMU is about to switch to its volume; QEMU has
#: switched. Notes of the replaced one: the id of the attachment that replaces it; it is replaced.
PIVOTING, SWAPPED, GIVES_WAY, REPLACED = "pivoting", "swapped", "gives_way", "replaced"


def attachment_id(server: str, volume: str) -> str:
    """Return the uuid of the attachment of a volume to a server, derived from their uuids."""
    return str(uuid.uuid5(NAMESPACE, f"{server}:{volume}"))


def server_attachments(host: LocalHost, id: str, leaving: bool = False) -> list[Document]:
    """Return the attachments of the volumes that a server has now, sorted by device. With *leaving*, include those that
    are being detached or swapped."""
    attachments = [attachment.copy() for attachment in host.documents.peek("volume_attachment")
                   if attachment.want["server"] == id and (leaving or (not attachment.deleting
                                                                       and is_current(host, attachment)))]
    return sorted(attachments, key=by_device)


def is_current(host: LocalHost, attachment: Document) -> bool:
    """Return whether the server has the volume of the *attachment* now. In a swap, the server has the old volume until
    it is replaced, and then the new one."""
    if attachment.want.get("replaces"):
        return is_swapped(host, attachment)
    if attachment.state.get(REPLACED):
        return False
    id = attachment.state.get(GIVES_WAY)
    other = host.documents.get("volume_attachment", id) if id else None
    return not (other and other.want.get("replaces") == attachment.want["volume"] and is_swapped(host, other))


def is_swapped(host: LocalHost, attachment: Document) -> bool:
    """Return whether the guest already uses the volume of an *attachment* that replaces another one. While QEMU
    switches to this volume (state field ``PIVOTING``), libvirt's definition of the domain tells which one the guest
    uses."""
    if attachment.state.get(SWAPPED):
        return True
    place = attached_disk(host, attachment) if attachment.state.get(PIVOTING) else None
    domain = host.hypervisor.domain(attachment.want["server"]) if place else None
    return bool(place and domain and any(
        (disk.target, disk.path) == (place.target, place.path) for disk in domain.disks))


def disk_serial(attachment: Document) -> str:
    """Return the serial number of an attachment's disk: the uuid of its volume, or, if its volume has replaced another
    one in a swap, the uuid of the replaced volume."""
    return str(attachment.want.get("serial") or attachment.want["volume"])


def refuse_while_swapped(host: LocalHost, volume: str) -> None:
    """Raise ``Conflict`` for a volume that is currently replacing another one or being replaced, and for a volume whose
    content is moving to another pool."""
    document = host.documents.get("volume", volume)
    if document:
        content.refuse_while_moving(document)
    for attachment in host.documents.list("volume_attachment"):
        if attachment.want.get("replaces") and volume in (attachment.want["volume"], attachment.want["replaces"]):
            raise Conflict(f"The volume {volume} is being swapped in server {server_name(host, attachment)!r} "
                           f"(attachment {attachment.name}). Wait until that has ended, or cancel its operation.")


def server_name(host: LocalHost, holder: Document) -> str:
    """Return the name of the server that an attachment or export (*holder*) belongs to."""
    server = host.documents.get("server", holder.want["server"])
    return server.name if server else str(holder.want.get("server_name") or holder.want["server"])


def attached_disks(host: LocalHost, id: str) -> list[Disk]:
    """Return the disks of a server's attachments, for QEMU."""
    return [disk for attachment in server_attachments(host, id) if (disk := attached_disk(host, attachment))]


def keys_of(host: LocalHost, id: str) -> list[DiskKey]:
    """Return the keys of the encrypted volumes of server *id*, which QEMU needs at the start. Volumes at a socket need
    none: the other side of the socket decrypts them."""
    volumes = [host.documents.get("volume", attachment.want["volume"]) for attachment in server_attachments(host, id)
               if not attachment.want.get("origin")]
    return [key for volume in volumes if volume and (key := keys.document_key(host, volume))]


def attached_disk(host: LocalHost, attachment: Document) -> Disk | None:
    """Return the disk of an attachment for QEMU; ``None`` if its volume was on this host and does not exist any more.
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
    """Return the device name that an attachment's volume has in the running server. Return ``None`` if the server does
    not run, is rescued without the volume, or does not have the volume because of a swap. The name may differ from the
    attachment's ``device``: a rescue moves the root disk."""
    runs = host.hypervisor.running(attachment.want["server"])
    if runs is None or not is_current(host, attachment):
        return None
    target = next((disk.target for disk in runs.disks if disk.serial == disk_serial(attachment)), None)
    # the root disk of a rescued server has no serial number
    if target is None and (place := attached_disk(host, attachment)):
        target = next((disk.target for disk in runs.disks if disk.serial is None and disk.path == place.path), None)
    return target


def draw_device_name(bus: str, taken: set[str]) -> str:
    """Return the first device name of the *bus* that is not *taken*. Raises ``Conflict`` if there is none."""
    for name in device_names(PREFIX[bus]):
        if name not in taken:
            return name
    raise Conflict(f"The server has no room for another {bus} disk. Detach one, or use another bus.")


@contextmanager
def hold_server_volume(host: LocalHost, server: str, volume: str) -> Iterator[None]:
    """Hold the locks of *server* and *volume* (uuids) inside the context, so that neither changes."""
    with host.locks.hold("server", server), host.locks.hold("volume", volume):
        yield


def plug_device(host: LocalHost, server: str, device: Disk | Nic) -> bool:
    """Plug the device into the server's domain if it runs. Return whether the server has a domain; then the caller must
    add the device to the persistent definition too. Raises ``Conflict`` for a SATA disk, which has no hot-plug."""
    domain = host.hypervisor.domain(server)
    if domain and domain.owned and domain.state in LIVE:
        if isinstance(device, Disk) and device.bus == "sata":
            raise Conflict(SATA)
        host.hypervisor.attach(server, device)
    return domain is not None


def unplug_device(host: LocalHost, server: str, device: Disk | Nic, label: str, operation: Operation) -> None:
    """Unplug the device and wait until the guest has released it. The request is repeated every ``ASK`` seconds.
    *label*: the device in errors. *operation*: ends the wait when it is cancelled.

    Raises ``Conflict`` if the guest has not released the device within the setting ``detach_timeout``; the guest keeps
    it."""
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
        host.changes.wait(server, LOOK)


def _has(host: LocalHost, server: str, device: Disk | Nic) -> bool:
    running = host.hypervisor.running(server)
    if running is None:
        return False
    if isinstance(device, Nic):
        return any(nic.mac == device.mac for nic in running.nics)
    return any((disk.target, disk.serial) == (device.target, device.serial) for disk in running.disks)
