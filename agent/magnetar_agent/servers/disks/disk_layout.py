# SPDX-License-Identifier: GPL-3.0-or-later
"""The layout of a server's own disks: where the config drive is attached. The guest's device names of the other disks
can be predicted, because the config drive takes no name from them.

``document.state["disk_layout"]`` has it: ``{"drive": {device, bus, target, format}}``. It is drawn once, before the
first disk is made, and goes with the server. Servers of earlier agents have none and keep their layout: a config drive
that is the last virtio disk, which the guest numbers before each volume that is plugged in later, and a swap disk that
is vdc also without an ephemeral disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar_agent.hardware import devices
from magnetar_agent.host.storage import Disk
from magnetar_agent.metadata import configdrive
from magnetar_core.hardware.merge import PREFIX
from magnetar_core.local_disks import SWAP
from magnetar_core.server_plan import server_hardware

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_core.local_disks import LocalDisk

FIELD = "disk_layout"
#: Name of the config drive on virtio, the last one of one letter.
LAST = "vdz"
#: Name of a CD by its bus: on virtio-scsi a place of the first controller that no disk has (``devices.xml.j2``); on
#: SATA and IDE the one after the server's own disks.
CD_NAMES = {"scsi": "sdo", "sata": "sdf", "ide": "hdd"}


def draw_disk_layout(host: LocalHost, document: Document) -> None:
    """Choose bus and device name of the config drive of a new server, and store them in the document. Do nothing if the
    server already has disks."""
    if any(document.state.get(name) for name in (FIELD, "made", "rebuild")):
        return
    format = drive_format(host, document.want)
    document.state[FIELD] = {"drive": config_drive_layout(document.want, format, bool(document.state.get("iso")))}


def drive_format(host: LocalHost, want: Fields) -> str:
    """Return the file system for a new config drive, iso9660 or vfat: from the server's fields *want*, or else from the
    settings."""
    return str((want.get("guest_data") or {}).get("drive_format") or host.settings.config_drive_format)


def config_drive_layout(want: Fields, format: str, has_cd: bool) -> dict[str, Any]:
    """Return the layout ``{device, bus, target, format}`` of a config drive with the file system *format*. *want*: the
    server's fields. *has_cd*: whether the server boots from a CD.

    By default the drive is a CD on SCSI: kernels of cloud images support virtio and SCSI, but often no AHCI. With vfat,
    for guests that cannot read CDs, the drive is a disk on a bus without other disks of the server.
    """
    parts, flavor = server_hardware(want), want["flavor"]
    bus = parts.get("disk_bus", "virtio")
    if format == "vfat":
        bus = "scsi" if bus == "virtio" else "virtio"
        return {"device": "disk", "bus": bus, "target": LAST if bus == "virtio" else CD_NAMES["scsi"], "format": format}
    usual = bus if bus in ("sata", "ide") else "scsi"
    bus = parts.get("cdrom_bus", usual)
    if bus == "ide" and (has_cd or (flavor["ephemeral"] and flavor["swap"])):  # one place is for a rescue
        bus = "sata"
    target = CD_NAMES[bus]
    if bus == "scsi" and parts.get("scsi_model", "virtio-scsi") != "virtio-scsi":
        target = "sdg"  # other controllers have seven places
    return {"device": "cdrom", "bus": bus, "target": target, "format": format}


def config_drive_disk(document: Document, path: Path, other_disks: Sequence[Disk]) -> Disk:
    """Return the config drive in the file *path* as a disk of the domain. If one of *other_disks* has the same device
    name, because a rebuild has added a CD, the drive is moved to the SATA bus."""
    layout = _layout(document).get("drive")
    if layout is None:
        return devices.place_config_drive(server_hardware(document.want), Disk(path, LAST, "raw", readonly=True))
    clash = any(disk.target == layout["target"] for disk in other_disks)
    bus, target = ("sata", CD_NAMES["sata"]) if clash else (layout["bus"], layout["target"])
    return Disk(path, target, "raw", layout["device"], bus, True)


def config_drive_filesystem(host: LocalHost, document: Document) -> str:
    """Return the file system of the server's config drive: from its stored layout, so that an existing drive stays as
    it is; otherwise as for a new drive."""
    layout = _layout(document).get("drive")
    return str(layout["format"]) if layout else drive_format(host, document.want)


def is_drive(disk: Disk) -> bool:
    """Return whether *disk* is a config drive that is a CD."""
    return disk.device == "cdrom" and disk.path.name.endswith(configdrive.FILE)


def adjust_disk_names(document: Document, disks: Sequence[LocalDisk]) -> list[LocalDisk]:
    """Return *disks*, the ephemeral and swap disks of a server, with corrected device names. A server from an earlier
    release of the agent has no stored layout; its swap disk is vdc if it has no ephemeral disk. In all other cases,
    *disks* are returned unchanged."""
    alone = len(disks) == 1 and disks[0].file == SWAP
    return [disk._replace(device=PREFIX["virtio"] + "c") for disk in disks] if alone and not _layout(
        document) else list(
        disks)


def _layout(document: Document) -> dict[str, Any]:
    layout: dict[str, Any] = document.state.get(FIELD) or {}
    return layout
