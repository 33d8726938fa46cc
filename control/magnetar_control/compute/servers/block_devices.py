# SPDX-License-Identifier: GPL-3.0-or-later
"""Block device mappings of new servers: checked, and given all their keys. One item is a mapping of the keys of
``FIELDS``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID, uuid5

import orjson

from magnetar_control.compute.attachments.volume_attachments import check_disks
from magnetar_control.compute.caller import Caller
from magnetar_control.compute.flavors.flavors import check_memory
from magnetar_control.services.volume.embedded import TYPE as VOLUME_TYPE
from magnetar_control.store.servers.servers import Found
from magnetar_core.errors import InvalidField, InvalidRequest, MagnetarError
from magnetar_core.fields import Field, Record
from magnetar_core.hardware import architectures
from magnetar_core.hardware.merge import asked_of
from magnetar_core.hardware.rows import BY_PROPERTY, said
from magnetar_core.kinds.server import is_root_volume
from magnetar_core.kinds.volume import BUSES
from magnetar_core.local_disks import REFUSED, is_blank, is_swap
from magnetar_core.values import Boolean, Choices, Integer, ListOf, Text, Uuid, Value

from .tags import TAG

DEVICE = Text(0, 255, r"[a-zA-Z0-9._\-/]*", "must be a device name")
SOURCES, DESTINATIONS = ("image", "volume", "snapshot", "blank"), ("local", "volume")
_WORD = Text(0, 255)
#: The keys of an item, and what an image may say in its own mapping. A request's body has rules of its own.
FIELDS: Mapping[str, Value] = {
    "uuid": Uuid(), "image_id": Uuid(), "volume_id": Uuid(), "snapshot_id": Uuid(), "source_type": Choices(*SOURCES),
    "destination_type": Choices(*DESTINATIONS), "boot_index": Integer(-1, 1000), "volume_size": Integer(0, 2**20),
    "delete_on_termination": Boolean(), "guest_format": _WORD, "device_name": DEVICE, "device_type": _WORD,
    "disk_bus": _WORD, "no_device": Value(), "tag": TAG, "volume_type": _WORD}
#: What clients say of every item, also where it says nothing: gophercloud, and so Terraform, sends it always.
_DEFAULTS: Mapping[str, tuple[bool]] = {"delete_on_termination": (False,)}
_IDS = ("image_id", "volume_id", "snapshot_id")
NUMBERS = ("boot_index", "volume_size")
TRUTH = {**dict.fromkeys(("true", "1", "on", "yes"), True), **dict.fromkeys(("false", "0", "off", "no"), False)}
OF_IMAGE = ListOf(Record(**{name: Field(value, name) for name, value in FIELDS.items()}), 255)


class BlockDeviceRequest(NamedTuple):
    """The part of a request for new servers that says which disks they get. *image*, *flavor*: as
    ``server_create.find_image`` and ``find_flavor`` return them. *field*: what errors call the mapping. *several*:
    whether more than one server is asked for. *multiattach*: whether volumes for several servers may be named.
    *instead_of*: the uuid of the server that goes before; volumes that only it has are free."""

    mapping: Sequence[Mapping[str, Any]]
    image: Mapping[str, Any] | None
    flavor: Mapping[str, Any]
    field: str
    several: bool
    multiattach: bool
    instead_of: str | None


def complete(caller: Caller, request: BlockDeviceRequest) -> list[dict[str, Any]]:
    """The mappings in the form that the conductor works with, those of the image first. Raises ``InvalidRequest``."""
    image, flavor = request.image, request.flavor
    found = [_item(caller, request, one, f"{request.field}[{at}]") for at, one in enumerate(request.mapping)
             if not one.get("no_device")]
    _check_local_image(image, found)
    own = [_item(caller, request, one, _property_of(image)) for one in _of_image(image)] if image else []
    if any(one["boot_index"] == 0 for one in own):  # what stands for the image's own content is that root disk
        found = [one for one in found if not (one["source_type"] == "image" and one["boot_index"] == 0)]
    indexes = {one["boot_index"] for one in found} - {None}
    found = [*(one for one in own if one["boot_index"] not in indexes), *found]
    _check_boot_order(image, found)
    _check_root_size(caller, found, request.flavor)
    _check_local(caller, request, found)
    check_disks(caller, flavor, [one for one in found if one["destination_type"] == "volume"], found)
    if request.several:
        _check_shared(caller, found)
    return found


def root_properties(caller: Caller, image: Mapping[str, Any] | None,
                    blocks: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The properties of the image that the root disk is made from, also where a volume has it. *blocks*: as
    ``complete`` returns them."""
    root = next((one for one in blocks if one["boot_index"] == 0), None) if image is None else None
    found: Mapping[str, Any] | None = (image or {}).get("properties")
    if root and root["source_type"] == "image":
        found = (caller.cloud.services.image.show(caller.context, root["uuid"]) or {}).get("properties")
    elif root and root["source_type"] == "volume":
        found = (caller.cloud.services.volume.show(caller.context, root["uuid"]) or {}).get("volume_image_metadata")
    elif root and root["source_type"] == "snapshot":
        volume = (caller.cloud.services.volume.snapshot(caller.context, root["uuid"]) or {}).get("volume_id")
        found = ((volume and caller.cloud.services.volume.show(caller.context, volume)) or {}).get(
            "volume_image_metadata")
    return found or {}


def check_buses(blocks: Sequence[Mapping[str, Any]], properties: Mapping[str, Any]) -> None:
    """Raises ``InvalidRequest`` for *blocks* behind a bus that guests of the architecture have not which the root
    disk's image asks for by its *properties*."""
    architecture = said(properties, BY_PROPERTY).get(architectures.FIELD, "") if blocks else ""
    for one in blocks:
        try:
            architectures.check_bus(one["disk_bus"], architecture, "disk_bus")
        except InvalidField as error:
            raise _invalid(error.message) from None


def disk_config(properties: Mapping[str, Any]) -> str:
    """What is meant when a request does not say it: the *properties* of the root disk's image say whether its root
    partition grows."""
    return "AUTO" if str(properties.get("auto_disk_config")).lower() in ("true", "1", "yes") else "MANUAL"


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
    given = [{name: _from_text(name, value) for name, value in one.items() if name in FIELDS and value is not None}
             for one in found]
    return [one for one in OF_IMAGE.check(given, _property_of(image)) if not one.get("no_device")]


def _from_text(name: str, value: Any) -> Any:
    """A number or truth value that is written as text, as clients of Nova may; else *value* as it is."""
    if name in NUMBERS and isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,9}", value):
        return int(value)
    return TRUTH.get(str(value).lower(), value) if name == "delete_on_termination" else value


def _property_of(image: Mapping[str, Any]) -> str:
    """The property that has an image's mapping, as refusals name it."""
    return f"image {image['id']}: block_device_mapping"


def _check_local_image(image: Mapping[str, Any] | None, found: Sequence[Mapping[str, Any]]) -> None:
    """Raise ``InvalidRequest`` for a local image that is not the root disk of the request's image (BDM-19).

    A volume with boot_index 0 is the root disk also beside an image, as in Nova. The image then gives its properties.
    """
    for one in found:
        if (one["source_type"], one["destination_type"]) == ("image", "local") and (
                one["boot_index"] != 0 or image is None or one["uuid"] != image["id"]):
            raise _invalid("an image with destination_type local must be the image of imageRef, with boot_index 0.")


def _check_boot_order(image: Mapping[str, Any] | None, found: Sequence[Mapping[str, Any]]) -> None:
    """There is something to boot from, and boot indexes count from 0 without gaps; no volume is named twice."""
    turns = sorted(one["boot_index"] for one in found if one["boot_index"] is not None and one["boot_index"] >= 0)
    rooted = 0 in turns
    if not image and not rooted:
        raise InvalidRequest("Block Device Mapping is Invalid: no image was given (imageRef), and no disk has "
                             "boot_index 0." if found else
                             "Invalid imageRef provided: give an image, or a volume with boot_index 0.")
    if (turns if rooted else [0, *turns]) != list(range(len(turns) + (not rooted))):
        raise _invalid("Boot sequence for the instance and image/block device mapping combination is not valid.")
    volumes = [one["uuid"] for one in found if one["source_type"] == "volume"]
    if len(volumes) != len(set(volumes)):
        raise _invalid("a volume is named twice.")


def _check_root_size(caller: Caller, found: Sequence[Mapping[str, Any]], flavor: Mapping[str, Any]) -> None:
    """A flavor without a disk is for servers whose root disk is a volume, unless policy allows more."""
    if not flavor["disk"] and not any(map(is_root_volume, found)):
        caller.check_policy("os_compute_api:servers:create:zero_disk_flavor")


def snapshots(caller: Caller, server: Found, image_id: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """For an image of a server whose root disk is a volume: the mapping that the image will have, and the snapshots to
    be taken, whose uuids follow from the image's. Both are empty for other servers."""
    kept = orjson.loads(server.volumes)
    if not any(one["boot_index"] == 0 for one in kept):
        return [], []
    mapping, taken = [], []
    for one in kept:
        volume = caller.cloud.services.volume.show(caller.context, one["volume_id"])
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


def _check_local(caller: Caller, request: BlockDeviceRequest, found: Sequence[Mapping[str, Any]]) -> None:
    """Ephemeral disks are no larger together than the flavor says, and the swap disk is not either (LCH-46). How many
    local disks a request may ask for, with the root disk of its image, a setting says (BDM-27)."""
    flavor, blank = request.flavor, [one for one in found if is_blank(one)]
    swaps, others = list(filter(is_swap, blank)), [one for one in blank if not is_swap(one)]
    rooted = request.image is not None and not any(map(is_root_volume, found))
    most = caller.cloud.settings.max_local_block_devices
    if -1 < most < len(blank) + rooted:
        raise _invalid("You specified more local devices than the limit allows "
                       f"(setting max_local_block_devices: {most}, with the root disk of an image).")
    if len(swaps) > 1:
        raise InvalidRequest("More than one swap drive requested.")
    if swaps and (not flavor["swap"] or (swaps[0]["volume_size"] or 0) > flavor["swap"]):
        raise InvalidRequest("Swap drive requested is larger than instance type allows.")
    sizes = [one["volume_size"] or flavor["ephemeral"] for one in others]
    if sum(sizes) > flavor["ephemeral"] or (others and not flavor["ephemeral"]):
        raise InvalidRequest("Ephemeral disks requested are larger than the instance type allows. If no size is "
                             "given in one block device mapping, flavor ephemeral size will be used.")
    for one in others:
        if one["guest_format"] not in (None, "", "ext4"):
            raise _invalid(f"ephemeral disks are made with ext4, and guest_format is {one['guest_format'][:80]}. Leave "
                           "it out, and make the file system in the guest.")


def _check_shared(caller: Caller, found: Sequence[Mapping[str, Any]]) -> None:
    """Several servers of one request can have a volume together only if it is made for that."""
    for one in found:
        if one["source_type"] == "volume":
            volume = caller.cloud.services.volume.show(caller.context, one["uuid"])
            if volume is None or not volume["multiattach"]:
                raise InvalidRequest("Cannot attach one or more volumes to multiple instances")


def _invalid(why: str) -> MagnetarError:
    return InvalidRequest(f"Block Device Mapping is Invalid: {why}")


def _item(caller: Caller, request: BlockDeviceRequest, one: Mapping[str, Any], where: str) -> dict[str, Any]:
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
    if (source, target) == ("blank", "local") and one.get("boot_index") == 0:
        raise InvalidField(f"{where}.boot_index", "must not be 0 for an ephemeral or swap disk: the root disk is an "
                                                  "image or a volume, which may be blank")
    _check_words(one, source, target, request, where)
    if one.get("volume_type") and not caller.cloud.services.volume.has_type(caller.context, one["volume_type"]):
        raise _invalid(f"volume type {one['volume_type']} could not be found.")
    volume_type = one.get("volume_type")
    if uuid:
        found = _CHECK_SOURCE[source](caller, request, uuid, size if target == "volume" else None)
        if one.get("boot_index") == 0 and not found.get("bootable", True):
            raise _invalid(f"Block Device {uuid} is not bootable.")
        named = (found.get("properties") or {}).get(VOLUME_TYPE) if (source, target) == ("image", "volume") else None
        if named and not volume_type and not caller.cloud.services.volume.has_type(caller.context, named):
            raise _invalid(f"volume type {named[:80]}, which image {uuid} names in its property {VOLUME_TYPE}, could "
                           "not be found.")
        volume_type = volume_type or named
        if one.get("boot_index") == 0:
            image = found.get("volume_image_metadata", found)
            check_memory(request.flavor, image.get("image_id") or uuid, image.get("min_ram"))
    return {"source_type": source, "destination_type": target, "uuid": uuid, "boot_index": one.get("boot_index"),
            "volume_size": size, "delete_on_termination": target == "local" or bool(one.get("delete_on_termination")),
            "guest_format": one.get("guest_format"), "device_name": one.get("device_name") or None,
            "disk_bus": one.get("disk_bus"), "tag": one.get("tag"), "volume_type": volume_type}


def _check_words(one: Mapping[str, Any], source: str, target: str, request: BlockDeviceRequest, where: str) -> None:
    """Raise ``InvalidField`` for words of an item that could do nothing to a disk from *source* as *target*."""
    given = {name: value for name, value in one.items() if value not in (None, "")}
    if given.get("device_type", "disk") != "disk":
        raise InvalidField(f"{where}.device_type", "must be disk, or be left out: block devices are nothing else to "
                           "guests here", given["device_type"])
    if other := next((name for name in _IDS if name in given and name != f"{source}_id"), None):
        raise InvalidField(f"{where}.{other}", f"is not for source_type {source}; what that is made from is uuid")
    if "guest_format" in given and (source, target) != ("blank", "local"):
        raise InvalidField(f"{where}.guest_format", "is for blank local disks only", given["guest_format"])
    if target == "local":
        _check_local_words(given, source, request, where)
        return
    if given.get("disk_bus", "virtio") not in BUSES:
        raise InvalidField(f"{where}.disk_bus", f"must be one of {', '.join(BUSES)}", given["disk_bus"])
    if source == "volume" and "volume_type" in given:
        raise InvalidField(f"{where}.volume_type", "is for volumes that are made; this one has its type",
                           given["volume_type"])


def _check_local_words(given: Mapping[str, Any], source: str, request: BlockDeviceRequest, where: str) -> None:
    """The same for a local disk. The bus of all of them may be said: Nova's images of servers do."""
    flavor = request.flavor
    for name, allowed, why in REFUSED:
        if name in given and given[name] not in (*allowed, *_DEFAULTS.get(name, ())) and not (
                name == "disk_bus" and given[name] == _own_bus(request)):
            raise InvalidField(f"{where}.{name}", why, given[name])
    if source == "image" and given.get("volume_size", 0) not in (0, flavor["disk"]):
        raise InvalidField(f"{where}.volume_size", f"must be the flavor's disk, {flavor['disk']} GiB, or be left "
                           "out: a local root disk is as large as that", given["volume_size"])


def _own_bus(request: BlockDeviceRequest) -> Any:
    """The bus of a server's local disks, where its flavor or image says one."""
    return asked_of(request.flavor, request.image or {}).get("hardware", {}).get("disk_bus")


def _check_volume(caller: Caller, request: BlockDeviceRequest, uuid: str, _size: int | None) -> Mapping[str, Any]:
    """Its size is what it is: Horizon sends that of its form along, and Nova reads none here either."""
    volume = caller.cloud.services.volume.show(caller.context, uuid)
    if volume is None:
        raise _invalid(f"failed to get volume {uuid}.")
    if volume["multiattach"] and not request.multiattach:
        raise InvalidRequest("Multiattach volumes are only supported starting with compute API version 2.60.")
    users = {one["server_id"] for one in volume["attachments"]} if request.instead_of else set()
    if volume["status"] == "in-use" and users == {request.instead_of}:
        return volume
    if volume["status"] not in (("available", "in-use") if volume["multiattach"] else ("available",)):
        raise _invalid(f"volume {uuid} is {volume['status']}, and must be available.")
    return volume


def _check_snapshot(caller: Caller, _request: BlockDeviceRequest, uuid: str, size: int | None) -> Mapping[str, Any]:
    found = caller.cloud.services.volume.snapshot(caller.context, uuid)
    if found is None:
        raise _invalid(f"failed to get snapshot {uuid}.")
    if found["status"] != "available":
        raise _invalid(f"snapshot {uuid} is {found['status']}, and must be available.")
    if size and size < found["size"]:
        raise _invalid(f"snapshot {uuid} has {found['size']} GiB, and the volume is to have {size}.")
    return found


def _check_image(caller: Caller, _request: BlockDeviceRequest, uuid: str, size: int | None) -> Mapping[str, Any]:
    image = caller.cloud.services.image.show(caller.context, uuid)
    if image is None:
        raise _invalid(f"failed to get image {uuid}.")
    if image["status"] != "active":
        raise InvalidRequest(f"Image {uuid} is not active.")
    if size is not None:
        check_room(image, size)
    return image


def check_room(image: Mapping[str, Any], size: int) -> None:
    """Raise ``InvalidRequest`` where a volume of *size* GiB has no room for the image."""
    if size < int(image.get("min_disk") or 0):
        raise InvalidRequest(f"Volume is smaller than the minimum size specified in image metadata. Volume size is "
                             f"{size << 30} bytes, minimum size is {int(image['min_disk']) << 30} bytes.")
    need = max(int(image.get("size") or 0), int(image.get("virtual_size") or 0))
    if need > size << 30:
        raise InvalidRequest(f"Volume is too small for image {image['id']}: it has {size << 30} bytes, and the image "
                             f"{need}.")


#: Each returns the volume or snapshot, which says whether it is bootable, or the image.
_CHECK_SOURCE: Mapping[str, Callable[[Caller, BlockDeviceRequest, str, int | None], Mapping[str, Any]]] = {
    "volume": _check_volume, "snapshot": _check_snapshot, "image": _check_image}
