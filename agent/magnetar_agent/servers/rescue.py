# SPDX-License-Identifier: GPL-3.0-or-later
"""Rescue: the server boots from another disk, with its own root disk as the second one (Nova's rescue).

``want["rescue"]`` is null or ``{"image": uuid}``; ``document.state["rescue"]`` has the image of ``disk.rescue``, how it
boots, and whether it has its own config drive, with another password. Ephemeral disk, swap and volumes are detached
meanwhile, as in Nova's default mode. With ``device`` and ``bus`` (stable devices) all disks stay as they are, and the
rescue disk is the last one, booted first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from magnetar_agent.host.hypervisor import Domain
from magnetar_agent.host.storage import Backing, Disk, DiskKey
from magnetar_agent.images import importing
from magnetar_agent.servers.disks import encryption, image_links
from magnetar_agent.volumes import attaching
from magnetar_core.errors import Conflict, InvalidField, NoSpace
from magnetar_core.hardware import rescue as core_rescue
from magnetar_core.hardware.device_names import device_names, device_order
from magnetar_core.server_plan import server_hardware

from . import GIB, admin_password, server_folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task

DISK, PREFIX = "disk.rescue", "rescue."
#: The config drive of a rescue with its own password.
DRIVE = PREFIX + "config.iso"


def complete_rescue(host: LocalHost, want: Fields, document: Document | None) -> Fields | None:
    """Return the requested rescue as ``{"image": uuid, …}``, by default with the server's own image; ``None`` if no
    rescue is requested. *document*: the existing server; ``None`` for a new one. A request for the rescue that the
    server already has is valid even if the rescue image has been removed meanwhile."""
    requested: Fields | None = want.get("rescue")
    recorded: Fields | None = document.want.get("rescue") if document else None
    if requested is None or requested == recorded:
        return requested
    requested_device = core_rescue.rescue_device_of_image(requested, want["machine"], "device", "bus")
    reference = requested.get("image") or want["image"]
    if reference is None:
        raise InvalidField("rescue.image", "is required: the server was made without an image, which would be taken")
    if document and recorded and reference in (recorded["image"], _rescue_image_name(document, recorded)) and (
            host.documents.standing("image", reference) is None) and requested_device in (None,
                                                                                          rescue_device_bus(recorded)):
        return recorded
    image = image_links.bootable_image(host, reference, "rescue.image")
    importing.check_not_encrypted(image)
    if image.state["disk_format"] == "aki":
        raise InvalidField("rescue.image", f"must have a disk, and {image.name!r} is only a kernel")
    try:
        stable_device = requested_device or core_rescue.rescue_device_of_image(image.want["properties"],
                                                                               want["machine"]) or {}
    except InvalidField as error:
        raise InvalidField("rescue.image", f"cannot be {image.name!r}: {error.message}") from None
    if stable_device.get("device") == "floppy":
        _check_floppy(image, want)
    _check_size(host, image, want, document)
    return {"image": image.id, **stable_device}


def _check_size(host: LocalHost, image: Document, want: Fields, document: Document | None) -> None:
    """Check the size of the rescue disk of *image*. Raises ``InvalidField`` if it is larger than both the server's root
    disk and the setting ``rescue_max_virtual_bytes``, and ``NoSpace`` if it is larger than the free space on this host.
    """
    size = _disk_bytes(image)
    root = max(want["flavor"]["disk"] * GIB, int((document.state if document else {}).get("root_bytes") or 0))
    limit = max(root, host.settings.rescue_max_virtual_bytes)
    if size > limit:
        raise InvalidField("rescue.image", f"cannot be {image.name!r}, which has a disk of {size} bytes: a rescue disk "
                                           f"of this server has no more than {limit}. Use a smaller image, or raise "
                                           "rescue_max_virtual_bytes in the agent's settings")
    free = host.disk_space()[1]
    if size > free:
        raise NoSpace(f"The rescue disk of image {image.name!r} may grow to {size} bytes, and the host has {free} free "
                      f"under {host.settings.servers_folder}. Free some, or use a smaller image.")


def _disk_bytes(image: Document) -> int:
    """Return the maximum size in bytes of a rescue disk with this *image*; 0 for a CD, which is never written to."""
    return 0 if image.state["disk_format"] == "iso" else int(image.state.get("virtual_size") or 0)


def _check_floppy(image: Document, want: Fields) -> None:
    size = image.state.get("virtual_size") or 0
    if size > core_rescue.FLOPPY_MAX:
        raise InvalidField("rescue.image", f"cannot be {image.name!r}, which has {size} bytes: a floppy has no more "
                                           f"than {core_rescue.FLOPPY_MAX}")
    if server_hardware(want).get("firmware") == "uefi":
        raise InvalidField("rescue.image", f"cannot be {image.name!r} as a floppy: the server boots by UEFI, whose "
                                           "firmware reads none. Use a disk or a CD")


def rescue_device_bus(rescue_: Fields) -> Fields | None:
    """Return ``{device, bus}`` of a rescue in Nova's stable device mode; ``None`` for a rescue in the default mode."""
    return {name: rescue_[name] for name in ("device", "bus")} if rescue_.get("device") else None


def boots_rescue_disk(document: Document) -> bool:
    """Return whether the server boots from its rescue disk: a rescue is requested and the rescue disk exists. Until it
    exists, the server is defined with its usual disks."""
    return bool(document.want.get("rescue") and document.state.get("rescue"))


def keeps_disks(document: Document) -> bool:
    """Return whether the server is rescued in stable device mode, in which it has all of its usual disks."""
    return bool(document.want.get("rescue") and rescue_device_bus(document.want["rescue"]))


def _rescue_image_name(document: Document, recorded: Fields) -> str | None:
    """Return the name of the image from which the existing rescue disk was created; ``None`` if there is no rescue disk
    or it was not created from the image in *recorded*, the previously requested rescue."""
    made = document.state.get("rescue")
    return made.get("name") if made and made["image"] == recorded["image"] else None


def observe_rescue(host: LocalHost, document: Document, domain: Domain | None) -> Fields:
    """Return the observed state of the server's rescue as a dict. ``rescue``: image and device of the existing rescue
    disk, or ``None``. ``rescue_left``: whether the document still lists a rescue disk. ``rescue_drive``: whether the
    rescue's config drive must still be written. ``rescued``: whether the *domain* has the rescue disk; without a
    domain, whether this disk exists."""
    made = document.state.get("rescue")
    whole = made is not None and (server_folder(host, document.id) / (PREFIX + "base" if made["iso"]
                                                                      else DISK)).exists()
    drive = made is not None and whole and made.get("drive") and not (server_folder(host, document.id) / DRIVE).exists()
    return {"rescue": {"image": made["image"], **(rescue_device_bus(made) or {})} if made and whole else None,
            "rescue_left": made is not None, "rescue_drive": bool(drive),
            "rescued": whole if domain is None else any(disk.path.name.endswith((DISK, PREFIX + "base"))
                                                        for disk in domain.disks)}


def rescue(task: Task) -> None:
    """Create the rescue disk: an overlay on the content of the rescue image, or only a hard link to this content if the
    image is a CD."""
    host, document = task.host, task.document
    _drop(task)
    encryption.draw_disk_key(task)
    place = server_folder(host, document.id)
    linked_image = image_links.link_image(host, document.want["rescue"]["image"], place, PREFIX)
    if stable_device := rescue_device_bus(document.want["rescue"]):
        linked_image.update(stable_device, iso=stable_device["device"] == "cdrom",
                            target=_target(host, document, stable_device["bus"]))
    if not linked_image["iso"]:
        size = linked_image["virtual_size"] or (place / (PREFIX + "base")).stat().st_size
        host.hypervisor.make_disk(place / DISK, "qcow2", size, _backing(linked_image, place),
                                  key=encryption.open_disk_key(host, document))
    drive = document.want["config_drive"] and document.want.get("admin_pass") is not None
    document.state["rescue"] = {**linked_image, "drive": drive}
    task.note(place)
    task.keep()


def unrescue(task: Task) -> None:
    """Remove the rescue disk, which the domain no longer uses."""
    _drop(task)


def _drop(task: Task) -> None:
    password = admin_password.forget_admin_password(task.document)  # the password was for another system
    if task.document.state.pop("rescue", None) or password:
        task.keep()
    place = server_folder(task.host, task.document.id)
    (place / DISK).unlink(missing_ok=True)
    (place / DRIVE).unlink(missing_ok=True)
    image_links.unlink_image(place, PREFIX)


def rescue_disks(state: Fields, folder: Path, root: Disk, key: DiskKey | None = None) -> list[Disk]:
    """Return the boot disks of a server that is rescued in the default mode: the rescue disk, then *root*, its root
    disk. If the rescue image is a CD, *root* comes first. *state*: the server's state fields. *folder*: the server's
    folder. *key*: the key to encrypt the rescue disk with; ``None`` for no encryption."""
    made = state["rescue"]
    if made["iso"]:
        return [root, Disk(folder / (PREFIX + "base"), "sda", "raw", "cdrom", "sata", True)]
    return [Disk(folder / DISK, "vda", backing=_backing(made, folder), key=key),
            replace(root, target="vdb", bus="virtio")]


def rescue_drive_name(state: Fields, usual: str) -> str:
    """Return the file name of the config drive of a rescued server: the rescue's own config drive if there is one,
    otherwise *usual*, the server's config drive. *state*: the server's state fields."""
    return DRIVE if state["rescue"].get("drive") else usual


def stable_rescue_disk(state: Fields, folder: Path, key: DiskKey | None) -> Disk:
    """Return the rescue disk of a server that is rescued in stable device mode: an additional disk that boots first.
    *state*: the server's state fields. *folder*: the server's folder. *key*: the key of an encrypted disk."""
    made = state["rescue"]
    if made["iso"]:
        return Disk(folder / (PREFIX + "base"), made["target"], _format(made), "cdrom", made["bus"], True, boot=1)
    device = "floppy" if made["device"] == "floppy" else "disk"
    return Disk(folder / DISK, made["target"], device=device, bus=made["bus"], backing=_backing(made, folder), boot=1,
                key=key)


def _target(host: LocalHost, document: Document, bus: str) -> str:
    """Return a device name on the *bus* for an additional rescue disk. libvirt sorts disks by name. On buses other than
    IDE, the name sorts after the names of all other disks, so the guest's other disks keep their positions. On IDE, it
    is the last free name; raises ``Conflict`` if there is none."""
    if bus == "fdc":
        return "fda"
    if bus == "ide":
        return _ide_target(host, document)
    prefix = "vd" if bus == "virtio" else "sd"
    defined = _defined(host, document)
    disks = {attachment.want["device"] for attachment in attaching.server_attachments(host, document.id)}
    disks |= {disk.target for disk in defined if disk.device == "disk"}
    disks |= {"sdf"} if document.want.get("hardware") else {"sda"}  # it may have its own disks up to there
    last = max((name for name in disks if name.startswith(prefix)), key=device_order, default=f"{prefix}a")
    taken = {disk.target for disk in defined}
    return next(name for name in device_names(prefix)
                if device_order(name) > device_order(last) and name not in taken)


def _defined(host: LocalHost, document: Document) -> Sequence[Disk]:
    """Return the disks of the server's domain in libvirt; empty if there is no domain."""
    domain = host.hypervisor.domain(document.id)
    return domain.disks if domain else ()


def _ide_target(host: LocalHost, document: Document) -> str:
    taken = {disk.target for disk in _defined(host, document)}
    free = [name for name in ("hdd", "hdc", "hdb", "hda") if name not in taken]
    if not free:
        raise Conflict(f"Server {document.name!r} has four disks on IDE, where there is no place for a fifth. Use a "
                       "rescue image with another hw_rescue_bus.")
    return free[0]


def _format(made: Fields) -> str:
    return "qcow2" if made["format"] == "qcow2" else "raw"


def _backing(made: Fields, folder: Path) -> Backing:
    return Backing(folder / (PREFIX + "base"), _format(made))


def rescue_boot(state: Fields) -> tuple[str, dict[str, Any]]:
    """Return how the rescued server boots: the prefix of its kernel and ramdisk file names, and ``{ramdisk, cmdline}``,
    empty if the rescue image has no separate kernel. *state*: the server's state fields."""
    return PREFIX, state["rescue"]["boot"] or {}
