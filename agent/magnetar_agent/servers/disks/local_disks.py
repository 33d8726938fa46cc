# SPDX-License-Identifier: GPL-3.0-or-later
"""Items of a block device mapping that are local disks: the root disk of the server's image, ephemeral disks, and the
swap disk. Flavor and image say what there may be; an item gives a tag, and an ephemeral or swap disk its size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from magnetar_core.errors import InvalidField
from magnetar_core.hardware.merge import PREFIX
from magnetar_core.local_disks import MOST, REFUSED, SWAP, is_blank, is_swap, local_disks, named

if TYPE_CHECKING:
    from magnetar_agent.host.host import LocalHost
    from magnetar_agent.reconcile.documents import Fields

#: Name of the root disk on a virtio bus.
ROOT = "vda"


def files(mapping: Iterable[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], str]]:
    """The items of a kept *mapping* that are local disks, each with the name of its file."""
    kept = [one for one in mapping if one["destination_type"] == "local"]
    return [*((one, "disk") for one in kept if one["source_type"] == "image"), *named(kept)]


def check_item(host: LocalHost, found: Fields, made: Fields, field: str) -> None:
    """Raise ``InvalidField`` for what one item cannot be, whatever the others are. Resolves its image."""
    for name, allowed, why in REFUSED:
        if name in made and made[name] not in allowed:
            raise InvalidField(f"{field}.{name}", why, made[name])
    if made["source_type"] == "image":
        image = host.documents.look_for("image", made["uuid"])
        made["uuid"] = image.id if image else made["uuid"]
        if made["uuid"] != found.get("image") or made.get("boot_index") != 0:
            raise InvalidField(field, "an image as a local disk is the server's own image, with boot_index 0 (BDM-19)")
        if "guest_format" in made:
            raise InvalidField(f"{field}.guest_format", "is for blank local disks only (BDM-13)")
        if made.get("volume_size", found["flavor"]["disk"]) != found["flavor"]["disk"]:
            raise InvalidField(f"{field}.volume_size", f"must be the flavor's disk, {found['flavor']['disk']} GiB, or "
                               "be left out", made["volume_size"])
        _name(made, ROOT, field)
    elif made.get("boot_index") is not None:
        raise InvalidField(f"{field}.boot_index", "is for disks that hold something to boot from")


def complete(found: Fields, made: list[Fields], field: str, bus: str) -> set[str]:
    """Check the local items of a new server together, and name their devices. *bus*: that of the server's own disks.
    Returns the names that its ephemeral and swap disks take there. Raises ``InvalidField``."""
    blank, flavor = [one for one in made if is_blank(one)], found["flavor"]
    if sum(map(is_swap, blank)) > 1:
        raise InvalidField(field, "has more than one swap disk")
    if len(blank) > MOST:
        raise InvalidField(field, f"has {len(blank)} ephemeral and swap disks, and there are names for {MOST}")
    for one in blank:
        word = "swap" if is_swap(one) else "ephemeral"
        if not flavor[word]:
            raise InvalidField(f"{field}[{made.index(one)}]", f"the flavor has no {word} disk, which a blank local "
                               "disk is")
        if word == "swap" and one.get("volume_size", 0) > flavor["swap"]:
            raise InvalidField(f"{field}[{made.index(one)}].volume_size", "must be no more than the flavor's swap, "
                               f"{flavor['swap']} MiB", one["volume_size"])
    check_sum(flavor, made, field)
    disks = {one.file: one.device for one in local_disks(flavor, made)}
    last = max((name[-1] for name in disks.values()), default="a")
    if bus != "virtio" and last > "c":  # the names after that are the config drive's and the CD's
        raise InvalidField(field, f"has more ephemeral disks than one, and the server's disks are on bus {bus}, which "
                           "has a place for one and a swap disk. Use volumes, or disk_bus virtio")
    for (_item, file), one in zip(named(made), blank, strict=True):
        _name(one, disks[file], f"{field}[{made.index(one)}]")
    return {PREFIX[bus] + name[-1] for name in disks.values()}


def check_sum(flavor: Fields, mapping: Iterable[Mapping[str, Any]], field: str) -> None:
    """Raise ``InvalidField`` naming *field* where ephemeral disks are larger together than *flavor* says. One without a
    size has all that the flavor has (LCH-46)."""
    sizes = [one.get("volume_size") or flavor["ephemeral"] for one, file in files(mapping)
             if file not in ("disk", SWAP)]
    if sum(sizes) > flavor["ephemeral"]:
        raise InvalidField(field, f"ephemeral disks have {sum(sizes)} GiB together, and the flavor has "
                           f"{flavor['ephemeral']}. One without volume_size has all of the flavor's")


def _name(made: Fields, device: str, field: str) -> None:
    if made.setdefault("device_name", device).removeprefix("/dev/") != device:
        raise InvalidField(f"{field}.device_name", f"must be {device} for this disk, or be left out",
                           made["device_name"])
    made["device_name"] = device
