# SPDX-License-Identifier: GPL-3.0-or-later
"""Rescue: the server boots from another disk, and its own root disk is the second one (Nova's rescue).

``want["rescue"]`` is null or ``{"image": uuid}``; ``document.state["rescue"]`` says of which image ``disk.rescue`` is
made, how it boots, and whether it has a config drive of its own, which tells another password. Ephemeral disk, swap and
volumes stay away meanwhile, as in Nova's default mode. With ``device`` and ``bus`` besides (stable devices) all disks
stay as they are, and the rescue disk is the last one, booted first.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from magnetar_agent.host.hypervisor import Domain
from magnetar_agent.host.storage import Backing, Disk, DiskKey
from magnetar_agent.images import importing
from magnetar_agent.servers.disks import encryption, image_links
from magnetar_agent.volumes import attaching
from magnetar_core.device_names import device_names, device_order
from magnetar_core.errors import Conflict, InvalidField, NoSpace
from magnetar_core.hardware import rescue as core_rescue
from magnetar_core.server_plan import hardware

from . import GIB, admin_password, folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Document, Fields
    from magnetar_agent.reconcile.task import Task

DISK, PREFIX = "disk.rescue", "rescue."
#: The config drive of a rescue with a password of its own.
DRIVE = PREFIX + "config.iso"


def complete(host: LocalHost, want: Fields, document: Document | None) -> Fields | None:
    """The rescue that is wanted, with the uuid of its image; none given is the server's own. The server holds what it
    is rescued with, so that image may have been removed."""
    given: Fields | None = want.get("rescue")
    kept: Fields | None = document.want.get("rescue") if document else None
    if given is None or given == kept:
        return given
    asked = core_rescue.stable(given, want["machine"], "device", "bus")
    reference = given.get("image") or want["image"]
    if reference is None:
        raise InvalidField("rescue.image", "is required: the server was made without an image, which would be taken")
    if document and kept and reference in (kept["image"], _name(document, kept)) and (
            host.documents.standing("image", reference) is None) and asked in (None, stable(kept)):
        return kept
    image = image_links.bootable_image(host, reference, "rescue.image")
    importing.check_clear(image)
    if image.state["disk_format"] == "aki":
        raise InvalidField("rescue.image", f"must have a disk, and {image.name!r} is only a kernel")
    try:
        own = asked or core_rescue.stable(image.want["properties"], want["machine"]) or {}
    except InvalidField as error:
        raise InvalidField("rescue.image", f"cannot be {image.name!r}: {error.message}") from None
    if own.get("device") == "floppy":
        _check_floppy(image, want)
    _check_size(host, image, want, document)
    return {"image": image.id, **own}


def _check_size(host: LocalHost, image: Document, want: Fields, document: Document | None) -> None:
    """Refuse an image whose rescue disk would take more of the host than the server's own root disk and the setting
    allow, or more than is free: nothing has claimed that room. Raises ``InvalidField`` or ``NoSpace``."""
    size = _disk_bytes(image)
    root = max(want["flavor"]["disk"] * GIB, int((document.state if document else {}).get("root_bytes") or 0))
    limit = max(root, host.settings.rescue_max_virtual_bytes)
    if size > limit:
        raise InvalidField("rescue.image", f"cannot be {image.name!r}, which has a disk of {size} bytes: a rescue disk "
                                           f"of this server has no more than {limit}. Use a smaller image, or raise "
                                           "rescue_max_virtual_bytes in the agent's settings")
    free = shutil.disk_usage(host.settings.state_dir).free
    if size > free:
        raise NoSpace(f"The rescue disk of image {image.name!r} may grow to {size} bytes, and the host has {free} free "
                      f"under {host.settings.state_dir}. Free some, or use a smaller image.")


def _disk_bytes(image: Document) -> int:
    """Bytes to which the rescue disk of an *image* may grow. A CD is only read."""
    return 0 if image.state["disk_format"] == "iso" else int(image.state.get("virtual_size") or 0)


def _check_floppy(image: Document, want: Fields) -> None:
    size = image.state.get("virtual_size") or 0
    if size > core_rescue.FLOPPY_MAX:
        raise InvalidField("rescue.image", f"cannot be {image.name!r}, which has {size} bytes: a floppy has no more "
                                           f"than {core_rescue.FLOPPY_MAX}")
    if hardware(want).get("firmware") == "uefi":
        raise InvalidField("rescue.image", f"cannot be {image.name!r} as a floppy: the server boots by UEFI, whose "
                                           "firmware reads none. Use a disk or a CD")


def stable(rescue_: Fields) -> Fields | None:
    """``{device, bus}`` of a rescue with stable devices, wanted or made; ``None`` of another."""
    return {name: rescue_[name] for name in ("device", "bus")} if rescue_.get("device") else None


def holds(document: Document) -> bool:
    """Whether the server boots from its rescue disk. One that is wanted may not be made yet, where a crash or a full
    disk came between: the server is defined with its own disks until then."""
    return bool(document.want.get("rescue") and document.state.get("rescue"))


def keeps_disks(document: Document) -> bool:
    """Whether the server is rescued with stable devices, so that it has all of its disks."""
    return bool(document.want.get("rescue") and stable(document.want["rescue"]))


def _name(document: Document, kept: Fields) -> str | None:
    """What the image of the rescue was called when the rescue disk was made."""
    made = document.state.get("rescue")
    return made.get("name") if made and made["image"] == kept["image"] else None


def seen(host: LocalHost, document: Document, domain: Domain | None) -> Fields:
    """What ``observe`` tells: *rescue*, the disk that is made; *rescue_drive*, whether its config drive is still to be
    written; *rescued*, whether the domain boots from it, which one
    that is missing will when it is made again."""
    made = document.state.get("rescue")
    whole = made is not None and (folder(host, document.id) / (PREFIX + "base" if made["iso"] else DISK)).exists()
    drive = made is not None and whole and made.get("drive") and not (folder(host, document.id) / DRIVE).exists()
    return {"rescue": {"image": made["image"], **(stable(made) or {})} if made and whole else None,
            "rescue_left": made is not None, "rescue_drive": bool(drive),
            "rescued": whole if domain is None else any(disk.path.name.endswith((DISK, PREFIX + "base"))
                                                        for disk in domain.disks)}


def rescue(task: Task) -> None:
    """Make the rescue disk, an overlay on the image's content."""
    host, document = task.host, task.document
    _drop(task)
    encryption.draw(task)
    place = folder(host, document.id)
    held = image_links.link_image(host, document.want["rescue"]["image"], place, PREFIX)
    if own := stable(document.want["rescue"]):
        held.update(own, iso=own["device"] == "cdrom", target=_target(host, document, own["bus"]))
    if not held["iso"]:
        size = held["virtual_size"] or (place / (PREFIX + "base")).stat().st_size
        host.hypervisor.make_disk(place / DISK, "qcow2", size, _backing(held, place),
                                  key=encryption.of(host, document))
    drive = document.want["config_drive"] and document.want.get("admin_pass") is not None
    document.state["rescue"] = {**held, "drive": drive}
    task.note(place)
    task.keep()


def unrescue(task: Task) -> None:
    """Remove the rescue disk; the domain does not know it any more."""
    _drop(task)


def _drop(task: Task) -> None:
    password = admin_password.forget(task.document)  # it was meant for another system
    if task.document.state.pop("rescue", None) or password:
        task.keep()
    place = folder(task.host, task.document.id)
    (place / DISK).unlink(missing_ok=True)
    (place / DRIVE).unlink(missing_ok=True)
    image_links.unlink(place, PREFIX)


def disks(state: Fields, place: Path, root: Disk, key: DiskKey | None = None) -> list[Disk]:
    """First the rescue disk, which is encrypted with the *key*, then *root*."""
    made = state["rescue"]
    if made["iso"]:
        return [root, Disk(place / (PREFIX + "base"), "sda", "raw", "cdrom", "sata", True)]
    return [Disk(place / DISK, "vda", backing=_backing(made, place), key=key),
            replace(root, target="vdb", bus="virtio")]


def drive(state: Fields, usual: str) -> str:
    """Name of the config drive that the rescue has, which may be the *usual* one."""
    return DRIVE if state["rescue"].get("drive") else usual


def disk(state: Fields, place: Path, key: DiskKey | None) -> Disk:
    """The rescue disk beside all others, booted first; encrypted with the *key*."""
    made = state["rescue"]
    if made["iso"]:
        return Disk(place / (PREFIX + "base"), made["target"], _format(made), "cdrom", made["bus"], True, boot=1)
    device = "floppy" if made["device"] == "floppy" else "disk"
    return Disk(place / DISK, made["target"], device=device, bus=made["bus"], backing=_backing(made, place), boot=1,
                key=key)


def _target(host: LocalHost, document: Document, bus: str) -> str:
    """A name after those of all disks on its bus: libvirt sorts them by that, and guests count them so. Raises
    ``Conflict`` where IDE has no place left."""
    if bus == "fdc":
        return "fda"
    if bus == "ide":
        return _ide_target(host, document)
    prefix = "vd" if bus == "virtio" else "sd"
    defined = _defined(host, document)
    disks = {one.want["device"] for one in attaching.of_server(host, document.id)}
    disks |= {one.target for one in defined if one.device == "disk"}
    disks |= {"sdf"} if document.want.get("hardware") else {"sda"}  # up to there it may have disks of its own
    last = max((name for name in disks if name.startswith(prefix)), key=device_order, default=f"{prefix}a")
    taken = {one.target for one in defined}
    return next(name for name in device_names(prefix)
                if device_order(name) > device_order(last) and name not in taken)


def _defined(host: LocalHost, document: Document) -> Sequence[Disk]:
    """The disks that the server is defined with."""
    domain = host.hypervisor.domain(document.id)
    return domain.disks if domain else ()


def _ide_target(host: LocalHost, document: Document) -> str:
    taken = {one.target for one in _defined(host, document)}
    free = [name for name in ("hdd", "hdc", "hdb", "hda") if name not in taken]
    if not free:
        raise Conflict(f"Server {document.name!r} has four disks on IDE, where there is no place for a fifth. Use a "
                       "rescue image with another hw_rescue_bus.")
    return free[0]


def _format(made: Fields) -> str:
    return "qcow2" if made["format"] == "qcow2" else "raw"


def _backing(made: Fields, place: Path) -> Backing:
    return Backing(place / (PREFIX + "base"), _format(made))


def boot(state: Fields) -> tuple[str, dict[str, Any]]:
    """The prefix of kernel and ramdisk, and what the rescue boots with."""
    return PREFIX, state["rescue"]["boot"] or {}
