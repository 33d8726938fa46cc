# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes in servers: the disk of an attachment, plugging it in, and unplugging it, which the guest has to allow.

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
from magnetar_core.device_names import device_names
from magnetar_core.errors import Conflict
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
#: Seconds between two requests to unplug a device, and between two looks whether it is gone.
ASK, LOOK = 5.0, 0.5
SATA = "A sata disk cannot be plugged into a running server. Use bus virtio or scsi, or stop the server first."
SATA_WRITES = "cannot be true on bus sata, whose disks QEMU lets write always; use virtio or scsi"
#: Notes of an attachment that takes the place of another one (``swapping``): its volume is about to be the guest's; it
#: is. And of that other one: the attachment that takes its place; it has.
PIVOTING, SWAPPED, GIVES_WAY, REPLACED = "pivoting", "swapped", "gives_way", "replaced"


def identity(server: str, volume: str) -> str:
    """The uuid of the attachment of this pair of uuids."""
    return str(uuid.uuid5(NAMESPACE, f"{server}:{volume}"))


def of_server(host: LocalHost, id: str, leaving: bool = False) -> list[Document]:
    """The attachments of a server, by device; *leaving* includes those that are being detached or swapped."""
    found = [one.copy() for one in host.documents.peek("volume_attachment")
             if one.want["server"] == id and (leaving or (not one.deleting and is_current(host, one)))]
    return sorted(found, key=by_device)


def is_current(host: LocalHost, attachment: Document) -> bool:
    """Whether the server has the volume: it neither gets it yet, in the place of another one, nor has given it up."""
    if attachment.want.get("replaces"):
        return is_swapped(host, attachment)
    if attachment.state.get(REPLACED):
        return False
    id = attachment.state.get(GIVES_WAY)
    other = host.documents.get("volume_attachment", id) if id else None
    return not (other and other.want.get("replaces") == attachment.want["volume"] and is_swapped(host, other))


def is_swapped(host: LocalHost, attachment: Document) -> bool:
    """Whether the guest is on the volume that replaces another one. From ``PIVOTING`` on libvirt's definition says so.
    """
    if attachment.state.get(SWAPPED):
        return True
    place = disk(host, attachment) if attachment.state.get(PIVOTING) else None
    domain = host.hypervisor.domain(attachment.want["server"]) if place else None
    return bool(place and domain and any(
        (one.target, one.path) == (place.target, place.path) for one in domain.disks))


def serial(attachment: Document) -> str:
    """The serial number of the disk: the volume's uuid, or that of the volume whose place it took."""
    return str(attachment.want.get("serial") or attachment.want["volume"])


def refuse_while_swapped(host: LocalHost, volume: str) -> None:
    """Raise ``Conflict`` for a volume that takes the place of another one just now, or gives it up."""
    for one in host.documents.list("volume_attachment"):
        if one.want.get("replaces") and volume in (one.want["volume"], one.want["replaces"]):
            raise Conflict(f"The volume {volume} is being swapped in server {server_name(host, one)!r} "
                           f"(attachment {one.name}). Wait until that has ended, or cancel its operation.")


def server_name(host: LocalHost, holder: Document) -> str:
    """Name of the server of an attachment or export."""
    found = host.documents.get("server", holder.want["server"])
    return found.name if found else str(holder.want.get("server_name") or holder.want["server"])


def disks(host: LocalHost, id: str) -> list[Disk]:
    """The disks that a server has by its attachments."""
    return [found for one in of_server(host, id) if (found := disk(host, one))]


def keys_of(host: LocalHost, id: str) -> list[DiskKey]:
    """The keys that QEMU needs to start a server. Volumes that come through a socket are decrypted before."""
    volumes = [host.documents.get("volume", one.want["volume"]) for one in of_server(host, id)
               if not one.want.get("origin")]
    return [key for volume in volumes if volume and (key := keys.of(host, volume))]


def disk(host: LocalHost, attachment: Document) -> Disk | None:
    """The attachment as QEMU has it; ``None`` when its volume has gone."""
    want = attachment.want
    volume, origin = host.documents.get("volume", want["volume"]), want.get("origin")
    if origin:
        place, several = remote.disk(host, attachment), origin["multiattach"]
    elif volume:
        place = content.disk(host, volume)
        several = volume.want["multiattach"]
    else:
        return None
    index = want["boot_index"]
    return replace(place, target=want["device"], bus=want["bus"], readonly=want["readonly"], tag=want["tag"],
                   serial=serial(attachment), shareable=several,
                   boot=index + 1 if index is not None and index >= 0 else None)


def device(host: LocalHost, attachment: Document) -> str | None:
    """As which device the server has the volume of an attachment now; ``None`` when it does not run or is rescued: then
    another disk may have the volume's device name, and its root disk has another one."""
    runs = host.hypervisor.running(attachment.want["server"])
    if runs is None or not is_current(host, attachment):
        return None
    found = next((one.target for one in runs.disks if one.serial == serial(attachment)), None)
    if found is None and (place := disk(host, attachment)):  # the root disk of a rescued server has no serial number
        found = next((one.target for one in runs.disks if one.serial is None and one.path == place.path), None)
    return found


def draw(bus: str, taken: set[str]) -> str:
    """The first free device name. Raises ``Conflict`` when there is none."""
    for name in device_names(PREFIX[bus]):
        if name not in taken:
            return name
    raise Conflict(f"The server has no room for another {bus} disk. Detach one, or use another bus.")


@contextmanager
def still(host: LocalHost, server: str, volume: str) -> Iterator[None]:
    """Hold the locks of the server and the volume, so that neither changes."""
    with host.locks.hold("server", server), host.locks.hold("volume", volume):
        yield


def plug(host: LocalHost, server: str, device: Disk | Nic) -> bool:
    """Plug the device into the server if it runs. Returns whether there is a domain, whose definition needs it too."""
    domain = host.hypervisor.domain(server)
    if domain and domain.owned and domain.state in LIVE:
        if isinstance(device, Disk) and device.bus == "sata":
            raise Conflict(SATA)
        host.hypervisor.attach(server, device)
    return domain is not None


def unplug(host: LocalHost, server: str, device: Disk | Nic, what: str, operation: Operation) -> None:
    """Unplug the device and wait until the guest has released it; ask again every ``ASK`` seconds.

    Raises ``Conflict`` when it has not within the setting ``detach_timeout``; it then has the device as before."""
    deadline, again = time.monotonic() + host.settings.detach_timeout, 0.0
    while _has(host, server, device):
        now = time.monotonic()
        if now >= deadline:
            raise Conflict(
                f"{what} is still there: the guest did not let go of it within {host.settings.detach_timeout:g} s. "
                "Unmount it and whatever uses it in the guest (one that is booting, hangs or has no hot-plug driver "
                "cannot), or stop the server; then repeat the call.")
        if now >= again:
            host.hypervisor.detach(server, device)
            again = time.monotonic() + ASK
            continue
        operation.raise_if_cancelled()
        host.changes.wait(server, LOOK)


def _has(host: LocalHost, server: str, device: Disk | Nic) -> bool:
    seen = host.hypervisor.running(server)
    if seen is None:
        return False
    if isinstance(device, Nic):
        return any(nic.mac == device.mac for nic in seen.nics)
    return any((one.target, one.serial) == (device.target, device.serial) for one in seen.disks)
