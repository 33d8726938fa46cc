# SPDX-License-Identifier: GPL-3.0-or-later
"""Block device mappings of new servers (BDM rows): Nova's form checked, and made the agents' form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID, uuid5

import orjson

from magnetar_control.api.nova.operation import Call
from magnetar_control.api.nova.values import TRUTH, device_tag
from magnetar_control.api.values import Anything, Id, Number, record, since
from magnetar_core.errors import InvalidField, InvalidRequest, MagnetarError
from magnetar_core.fields import Field
from magnetar_core.values import Choices, ListOf, Nullable, Text, Value

SIZE = Number(0, 2**20)
DEVICE = Text(0, 255, r"[a-zA-Z0-9._\-/]*", "must be a device name")
SOURCES = ("image", "volume", "snapshot", "blank")
#: Gate.
MULTIATTACH = 60


class BootIndex(Value):
    """A number, or text of one, or null."""

    def check(self, value: Any, path: str, version: Any = None) -> Any:
        """An int or None."""
        if value is None or value == "":
            return None
        return Number(-1, 1000).check(value, path, version)


_FIELDS: dict[str, Field | Value] = {
    "uuid": Nullable(Id()), "image_id": Id(), "source_type": Choices(*SOURCES),
    "destination_type": Choices("local", "volume"), "boot_index": BootIndex(), "volume_size": Nullable(SIZE),
    "delete_on_termination": TRUTH, "guest_format": Nullable(Text(0, 255)), "device_name": Nullable(DEVICE),
    "device_type": Nullable(Text(0, 255)), "disk_bus": Nullable(Text(0, 255)), "no_device": Anything(),
    "volume_id": Id(), "snapshot_id": Id(), "virtual_name": Text(0, 255), "connection_info": Anything(),
    "tag": device_tag("2.32"), "volume_type": since("2.67", Nullable(Text(0, 255)))}
_OLD = ("volume_id", "snapshot_id", "volume_size", "device_name", "delete_on_termination", "no_device", "virtual_name",
        "connection_info")
BLOCK_DEVICES = ListOf(record(_FIELDS), 255)
OLD_BLOCK_DEVICES = ListOf(record({name: _FIELDS[name] for name in _OLD}), 255)


def checked_blocks(call: Call, want: Mapping[str, Any], image: Mapping[str, Any] | None,
                   flavor: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The mappings in the form that the conductor works with, those of the image first. Raises ``InvalidRequest``."""
    if want.get("block_device_mapping") and want.get("block_device_mapping_v2"):
        raise InvalidRequest("Using different block_device_mapping syntaxes is not allowed in the same request.")
    given = [_modern(one) for one in want.get("block_device_mapping") or ()]
    given += list(want.get("block_device_mapping_v2") or ())
    found = [_item(call, one, f"server.block_device_mapping_v2[{at}]") for at, one in enumerate(given)
             if not one.get("no_device")]
    _own_root(image, found)
    own = [_item(call, one, _property_of(image)) for one in _of_image(image)] if image else []
    if any(one["boot_index"] == 0 for one in own):  # what stands for the image's own content is that root disk
        found = [one for one in found if not (one["source_type"] == "image" and one["boot_index"] == 0)]
    indexes = {one["boot_index"] for one in found} - {None}
    found = [*(one for one in own if one["boot_index"] not in indexes), *found]
    _check_roots(call, image, found, flavor)
    _check_local(found, flavor)
    if max(want.get("min_count", 1), want.get("max_count", 1)) > 1:
        _check_shared(call, found)
    return found


def _of_image(image: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The mapping that an image of a server on volumes has among its properties. Users can write anything there, so it
    is checked as that of a request is."""
    properties = image.get("properties") or {}
    if "block_device_mapping" not in properties:
        return []
    try:
        found = orjson.loads(properties["block_device_mapping"])
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise InvalidRequest(f"The property block_device_mapping of image {image['id']} is not a list in JSON.")
    # Nova writes all keys, and newer ones than are known here.
    given = [{name: value for name, value in one.items() if name in _FIELDS and value is not None} for one in found]
    return [one for one in BLOCK_DEVICES.check(given, _property_of(image)) if not one.get("no_device")]


def _property_of(image: Mapping[str, Any]) -> str:
    """The property that has an image's mapping, as refusals name it."""
    return f"image {image['id']}: block_device_mapping"


def _own_root(image: Mapping[str, Any] | None, found: Sequence[Mapping[str, Any]]) -> None:
    """A request with an image has no other root disk than that of the image (BDM-19)."""
    for one in found:
        if (one["source_type"], one["destination_type"]) == ("image", "local") and (
                one["boot_index"] != 0 or image is None or one["uuid"] != image["id"]):
            raise _invalid("an image with destination_type local must be the image of imageRef, with boot_index 0.")
        if image and one["boot_index"] == 0 and one["source_type"] != "image":
            raise _invalid("the server has an image and another root disk.")


def _check_roots(call: Call, image: Mapping[str, Any] | None, found: Sequence[Mapping[str, Any]],
                 flavor: Mapping[str, Any]) -> None:
    turns = sorted(one["boot_index"] for one in found if one["boot_index"] is not None and one["boot_index"] >= 0)
    rooted = 0 in turns
    if not image and not rooted:
        raise InvalidRequest("Block Device Mapping is Invalid: no image was given (imageRef), and no disk has "
                             "boot_index 0."
                    if found else "Invalid imageRef provided: give an image, or a volume with boot_index 0.")
    if (turns if rooted else [0, *turns]) != list(range(len(turns) + (not rooted))):
        raise _invalid("Boot sequence for the instance and image/block device mapping combination is not valid.")
    volume = any(one["boot_index"] == 0 and one["destination_type"] == "volume" for one in found)
    if not volume and not flavor["disk"]:
        call.check("os_compute_api:servers:create:zero_disk_flavor")
    volumes = [one["uuid"] for one in found if one["source_type"] == "volume"]
    if len(volumes) != len(set(volumes)):
        raise _invalid("a volume is named twice.")


def snapshots(call: Call, image_id: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """For an image of a server whose root disk is a volume: the mapping that the image will have, and the snapshots to
    be taken, whose uuids follow from the image's. Both are empty for other servers."""
    kept = orjson.loads(call.server.volumes)
    if not any(one["boot_index"] == 0 for one in kept):
        return [], []
    mapping, taken = [], []
    for one in kept:
        volume = call.cloud.services.volume.show(call.context, one["volume_id"])
        if volume is None:
            raise InvalidRequest(f"Volume {one['volume_id']} of the server could not be found.")
        id = str(uuid5(UUID(image_id), one["volume_id"]))
        taken.append({"id": id, "volume_id": one["volume_id"]})
        mapping.append({
            "source_type": "snapshot", "destination_type": "volume", "snapshot_id": id, "volume_size": volume["size"],
            "boot_index": one["boot_index"], "device_name": one["device"], "tag": one["tag"],
            "delete_on_termination": one["delete_on_termination"], "volume_type": volume.get("volume_type"),
            **dict.fromkeys(("disk_bus", "device_type", "guest_format", "image_id", "volume_id", "no_device"))})
    return mapping, taken


def _check_local(found: Sequence[Mapping[str, Any]], flavor: Mapping[str, Any]) -> None:
    """Local disks are those of the flavor, which a mapping can name, and give a tag."""
    blank = [one for one in found if (one["source_type"], one["destination_type"]) == ("blank", "local")]
    swaps = [one for one in blank if one["guest_format"] == "swap"]
    others = [one for one in blank if one["guest_format"] != "swap"]
    if len(swaps) > 1:
        raise InvalidRequest("More than one swap drive requested.")
    if swaps and (not flavor["swap"] or (swaps[0]["volume_size"] or 0) > flavor["swap"]):
        raise InvalidRequest("Swap drive requested is larger than instance type allows.")
    if sum(one["volume_size"] or 0 for one in others) > flavor["ephemeral"] or (others and not flavor["ephemeral"]):
        raise InvalidRequest("Ephemeral disks requested are larger than the instance type allows. If no size is "
                             "given in "
                             "one block device mapping, flavor ephemeral size will be used.")
    if len(others) > 1:
        raise InvalidRequest("More than one ephemeral disk requested: a server has one, of the flavor's size. Use "
                             "volumes "
                             "(destination_type volume) for more disks.")


def _check_shared(call: Call, found: Sequence[Mapping[str, Any]]) -> None:
    """Several servers of one request can have a volume together only if it is made for that."""
    for one in found:
        if one["source_type"] == "volume":
            volume = call.cloud.services.volume.show(call.context, one["uuid"])
            if volume is None or not volume["multiattach"]:
                raise InvalidRequest("Cannot attach one or more volumes to multiple instances")


def _invalid(why: str) -> MagnetarError:
    return InvalidRequest(f"Block Device Mapping is Invalid: {why}")


def _modern(old: Mapping[str, Any]) -> dict[str, Any]:
    """An item of the first form as one of the second."""
    found = {name: old[name] for name in ("device_name", "delete_on_termination", "volume_size", "no_device")
             if name in old}
    source = "snapshot" if old.get("snapshot_id") else "volume"
    root = str(old.get("device_name") or "").rpartition("/")[2] == "vda"
    return {**found, "source_type": source, "destination_type": "volume", "boot_index": 0 if root else None,
            "uuid": old.get("snapshot_id") or old.get("volume_id")}


def _item(call: Call, one: Mapping[str, Any], where: str) -> dict[str, Any]:
    """One mapping with all its keys. Raises ``InvalidRequest`` for what does not go together (BDM-19 to BDM-25)."""
    source = one.get("source_type") or "volume"
    uuid = one.get("uuid") or one.get(f"{source}_id")
    target = one.get("destination_type") or ("local" if source in ("image", "blank") else "volume")
    if (source == "blank") == bool(uuid):
        raise InvalidField(f"{where}.uuid", f"is required with source_type {source}" if source != "blank" else
                           "is for other sources than blank")
    if source in ("volume", "snapshot") and target == "local":
        raise InvalidField(f"{where}.destination_type", f"must be volume with source_type {source}")
    size = one.get("volume_size")
    if target == "volume" and source in ("image", "blank") and not size:
        raise InvalidField(f"{where}.volume_size", f"is required to make a volume from {source}")
    if source == "blank" and one.get("boot_index") == 0:
        raise InvalidField(f"{where}.boot_index", "must not be 0 for a blank disk, which holds nothing to boot from")
    if one.get("volume_type") and not call.cloud.services.volume.has_type(call.context, one["volume_type"]):
        raise _invalid(f"volume type {one['volume_type']} could not be found.")
    if uuid:
        CHECKS[source](call, uuid, size if target == "volume" else None)
    return {"source_type": source, "destination_type": target, "uuid": uuid, "boot_index": one.get("boot_index"),
            "volume_size": size, "delete_on_termination": bool(one.get("delete_on_termination", target == "local")),
            "guest_format": one.get("guest_format"), "device_name": one.get("device_name") or None,
            "disk_bus": one.get("disk_bus"), "tag": one.get("tag"), "volume_type": one.get("volume_type")}


def _volume(call: Call, uuid: str, size: int | None) -> None:
    del size  # it has its own
    volume = call.cloud.services.volume.show(call.context, uuid)
    if volume is None:
        raise _invalid(f"failed to get volume {uuid}.")
    if volume["multiattach"] and call.version < MULTIATTACH:
        raise InvalidRequest("Multiattach volumes are only supported starting with compute API version 2.60.")
    if volume["status"] not in (("available", "in-use") if volume["multiattach"] else ("available",)):
        raise _invalid(f"volume {uuid} is {volume['status']}, and must be available.")


def _snapshot(call: Call, uuid: str, size: int | None) -> None:
    found = call.cloud.services.volume.snapshot(call.context, uuid)
    if found is None:
        raise _invalid(f"failed to get snapshot {uuid}.")
    if found["status"] != "available":
        raise _invalid(f"snapshot {uuid} is {found['status']}, and must be available.")
    if size and size < found["size"]:
        raise _invalid(f"snapshot {uuid} has {found['size']} GiB, and the volume is to have {size}.")


def _image(call: Call, uuid: str, size: int | None) -> None:
    image = call.cloud.services.image.show(call.context, uuid)
    if image is None:
        raise _invalid(f"failed to get image {uuid}.")
    if image["status"] != "active":
        raise InvalidRequest(f"Image {uuid} is not active.")
    if size is None:
        return
    if size < int(image.get("min_disk") or 0):
        raise InvalidRequest(f"Volume is smaller than the minimum size specified in image metadata. Volume size is "
                             f"{size << 30} bytes, minimum size is {int(image['min_disk']) << 30} bytes.")
    need = max(int(image.get("size") or 0), int(image.get("virtual_size") or 0))
    if need > size << 30:
        raise InvalidRequest(f"Volume is too small for image {uuid}: it has {size << 30} bytes, and the image {need}.")


CHECKS: Mapping[str, Callable[[Call, str, int | None], None]] = {"volume": _volume, "snapshot": _snapshot,
                                                                 "image": _image}
