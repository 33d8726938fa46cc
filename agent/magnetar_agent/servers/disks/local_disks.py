# SPDX-License-Identifier: GPL-3.0-or-later
"""Items of a block device mapping that are local disks: the root disk of the server's image, ephemeral disks, and the
swap disk. Flavor and image set the limits; an item sets a tag, and the size of an ephemeral or swap disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from magnetar_core.errors import InvalidField
from magnetar_core.hardware.merge import PREFIX
from magnetar_core.local_disks import MOST, REFUSED, SWAP, blank_disk_files, flavor_local_disks, is_blank, is_swap

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Fields

#: Name of the root disk on a virtio bus.
ROOT = "vda"


def local_disk_files(mapping: Iterable[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], str]]:
    """Return the local disks in the block device mapping *mapping*, each as a pair (block device, name of its disk
    file), such as ``disk`` for the root disk."""
    local_block_devices = [block_device for block_device in mapping if block_device["destination_type"] == "local"]
    return [*((block_device, "disk") for block_device in local_block_devices if block_device["source_type"] == "image"),
            *blank_disk_files(local_block_devices)]


def check_item(host: LocalHost, desired: Fields, made: Fields, field: str) -> None:
    """Validate *made*, one local disk in the block device mapping of the requested server *desired*, independently of
    the other disks. Replace its image name by the image's uuid. Raises ``InvalidField`` with *field*, the disk's path
    in the request."""
    for name, allowed, why in REFUSED:
        if name in made and made[name] not in allowed:
            raise InvalidField(f"{field}.{name}", why, made[name])
    if made["source_type"] == "image":
        image = host.documents.peek_by_key("image", made["uuid"])
        made["uuid"] = image.id if image else made["uuid"]
        if made["uuid"] != desired.get("image") or made.get("boot_index") != 0:
            raise InvalidField(field, "an image as a local disk is the server's own image, with boot_index 0 (BDM-19)")
        if "guest_format" in made:
            raise InvalidField(f"{field}.guest_format", "is for blank local disks only (BDM-13)")
        if made.get("volume_size", desired["flavor"]["disk"]) != desired["flavor"]["disk"]:
            raise InvalidField(f"{field}.volume_size",
                               f"must be the flavor's disk, {desired['flavor']['disk']} GiB, or "
                               "be left out", made["volume_size"])
        _name(made, ROOT, field)
    elif made.get("boot_index") is not None:
        raise InvalidField(f"{field}.boot_index", "is for disks that hold something to boot from")


def complete_local_disks(desired: Fields, made: list[Fields], field: str, bus: str) -> set[str]:
    """Set the device names of the ephemeral and swap disks in *made*, the block device mapping of the new server
    *desired*. Return the device names of all local disks of the server. *bus*: the bus of these disks, such as virtio.
    Raises ``InvalidField`` naming *field* if the combination of disks is not possible."""
    blank, flavor = [block_device for block_device in made if is_blank(block_device)], desired["flavor"]
    if sum(map(is_swap, blank)) > 1:
        raise InvalidField(field, "has more than one swap disk")
    if len(blank) > MOST:
        raise InvalidField(field, f"has {len(blank)} ephemeral and swap disks, and there are names for {MOST}")
    for block_device in blank:
        disk_type = "swap" if is_swap(block_device) else "ephemeral"
        if not flavor[disk_type]:
            raise InvalidField(f"{field}[{made.index(block_device)}]",
                               f"the flavor has no {disk_type} disk, which a blank local "
                               "disk is")
        if disk_type == "swap" and block_device.get("volume_size", 0) > flavor["swap"]:
            raise InvalidField(f"{field}[{made.index(block_device)}].volume_size",
                               "must be no more than the flavor's swap, "
                               f"{flavor['swap']} MiB", block_device["volume_size"])
    check_sum(flavor, made, field)
    disks = {disk.file: disk.device for disk in flavor_local_disks(flavor, made)}
    last = max((name[-1] for name in disks.values()), default="a")
    if bus != "virtio" and last > "c":  # the next names are the config drive's and the CD's
        raise InvalidField(field, f"has more ephemeral disks than one, and the server's disks are on bus {bus}, which "
                           "has a place for one and a swap disk. Use volumes, or disk_bus virtio")
    for (_item, file), block_device in zip(blank_disk_files(made), blank, strict=True):
        _name(block_device, disks[file], f"{field}[{made.index(block_device)}]")
    return {PREFIX[bus] + name[-1] for name in disks.values()}


def check_sum(flavor: Fields, mapping: Iterable[Mapping[str, Any]], field: str) -> None:
    """Raise ``InvalidField`` naming *field* if the ephemeral disks in the block device mapping *mapping* are together
    larger than *flavor* allows. As in Nova, an ephemeral disk without a size has the full size from the flavor."""
    sizes = [block_device.get("volume_size") or flavor["ephemeral"] for block_device, file in local_disk_files(mapping)
             if file not in ("disk", SWAP)]
    if sum(sizes) > flavor["ephemeral"]:
        raise InvalidField(field, f"ephemeral disks have {sum(sizes)} GiB together, and the flavor has "
                           f"{flavor['ephemeral']}. One without volume_size has all of the flavor's")


def _name(made: Fields, device: str, field: str) -> None:
    if made.setdefault("device_name", device).removeprefix("/dev/") != device:
        raise InvalidField(f"{field}.device_name", f"must be {device} for this disk, or be left out",
                           made["device_name"])
    made["device_name"] = device
