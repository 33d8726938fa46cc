# SPDX-License-Identifier: GPL-3.0-or-later
"""Block device mappings of new servers: checked, and completed with all keys. An item is a mapping of the keys of
``FIELDS``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID, uuid5

import orjson

from magnetar_control.compute.attachments.volume_attachments import check_disk_count
from magnetar_control.compute.caller import Caller
from magnetar_control.compute.flavors.flavors import check_flavor_memory
from magnetar_control.documents import BlockDevice, FlavorOfServer
from magnetar_control.services.volume.embedded import TYPE as VOLUME_TYPE
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.document import Document
from magnetar_core.errors import InvalidField, InvalidRequest, MagnetarError
from magnetar_core.fields import Field, Record
from magnetar_core.hardware import architectures
from magnetar_core.hardware.merge import requested_hardware
from magnetar_core.hardware.rows import BY_PROPERTY, parse_hardware_specs
from magnetar_core.kinds.server import is_root_volume
from magnetar_core.kinds.volume import BUSES
from magnetar_core.local_disks import REFUSED, is_blank, is_swap
from magnetar_core.values import Boolean, Choices, Integer, ListOf, Text, Uuid, Value

from .tags import TAG

DEVICE = Text(0, 255, r"[a-zA-Z0-9._\-/]*", "must be a device name")
SOURCES, DESTINATIONS = ("image", "volume", "snapshot", "blank"), ("local", "volume")
_WORD = Text(0, 255)
#: The keys of an item, and the values that an image may have in its own mapping. A request's body has its own rules.
FIELDS: Mapping[str, Value] = {
    "uuid": Uuid(), "image_id": Uuid(), "volume_id": Uuid(), "snapshot_id": Uuid(), "source_type": Choices(*SOURCES),
    "destination_type": Choices(*DESTINATIONS), "boot_index": Integer(-1, 1000), "volume_size": Integer(0, 2**20),
    "delete_on_termination": Boolean(), "guest_format": _WORD, "device_name": DEVICE, "device_type": _WORD,
    "disk_bus": _WORD, "no_device": Value(), "tag": TAG, "volume_type": _WORD}
#: Values that have no effect and that clients send with every item: gophercloud, and so Terraform, always does.
_DEFAULTS: Mapping[str, tuple[bool]] = {"delete_on_termination": (False,)}
_IDS = ("image_id", "volume_id", "snapshot_id")
NUMBERS = ("boot_index", "volume_size")
TRUTH = {**dict.fromkeys(("true", "1", "on", "yes"), True), **dict.fromkeys(("false", "0", "off", "no"), False)}
OF_IMAGE = ListOf(Record(**{name: Field(value, name) for name, value in FIELDS.items()}), 255)


class BlockDeviceRequest(NamedTuple):
    """The disks in a request for new servers. *mapping*: the block device mapping. *image*, *flavor*: results of
    ``server_create.find_image`` and ``find_flavor``. *field*: the name of the mapping in error messages. *several*: the
    request is for more than one server. *multiattach*: multiattach volumes are allowed. *instead_of*: the uuid of an
    old server that the new server replaces; volumes that only the old server uses count as free."""

    mapping: Sequence[Mapping[str, Any]]
    image: Mapping[str, Any] | None
    flavor: FlavorOfServer
    field: str
    several: bool
    multiattach: bool
    instead_of: str | None


def complete_block_device_mapping(caller: Caller, request: BlockDeviceRequest) -> list[BlockDevice]:
    """Return all block devices of *request* with default values filled in, as the conductor needs them. Block devices
    from the properties of the image come first. Raises ``InvalidRequest``."""
    image, flavor = request.image, request.flavor
    block_devices = [_complete_block_device(caller, request, block_device, f"{request.field}[{at}]") for at,
                     block_device in enumerate(request.mapping)
                     if not block_device.get("no_device")]
    _check_local_image(image, block_devices)
    image_block_devices = [_complete_block_device(caller, request, block_device, _property_of(image))
                           for block_device in _block_devices_of_image(image)] if image else []
    # the item for the image's own content is that root disk
    if any(block_device["boot_index"] == 0 for block_device in image_block_devices):
        block_devices = [block_device for block_device in block_devices
                         if not (block_device["source_type"] == "image" and block_device["boot_index"] == 0)]
    indexes = {block_device["boot_index"] for block_device in block_devices} - {None}
    block_devices = [*(block_device for block_device in image_block_devices
                       if block_device["boot_index"] not in indexes), *block_devices]
    _check_boot_order(image, block_devices)
    _check_root_size(caller, block_devices, request.flavor)
    _check_local(caller, request, block_devices)
    check_disk_count(caller, flavor, [block_device for block_device in block_devices
                                      if block_device["destination_type"] == "volume"], block_devices)
    if request.several:
        _check_shared(caller, block_devices)
    return block_devices


def root_image_properties(caller: Caller, image: Mapping[str, Any] | None,
                          block_devices: Sequence[BlockDevice]) -> Mapping[str, Any]:
    """Return the properties of the image from which the root disk is made; {} if there is no such image. If the root
    disk is a volume, or is created from a volume or snapshot, this is the image from which that volume was created.
    *block_devices*: the result of ``complete_block_device_mapping``."""
    root = next((block_device for block_device in block_devices if block_device["boot_index"] == 0),
                None) if image is None else None
    properties: Mapping[str, Any] | None = (image or {}).get("properties")
    if root and root["source_type"] == "image":
        properties = (caller.cloud.services.image.show(caller.context, root["uuid"]) or {}).get("properties")
    elif root and root["source_type"] == "volume":
        properties = (caller.cloud.services.volume.show(caller.context, root["uuid"])
                      or {}).get("volume_image_metadata")
    elif root and root["source_type"] == "snapshot":
        volume = (caller.cloud.services.volume.snapshot(caller.context, root["uuid"]) or {}).get("volume_id")
        properties = ((volume and caller.cloud.services.volume.show(caller.context, volume)) or {}).get(
            "volume_image_metadata")
    return properties or {}


def check_disk_buses(block_devices: Sequence[BlockDevice], properties: Mapping[str, Any]) -> None:
    """Raise ``InvalidRequest`` if one of *block_devices* requests a disk bus that the guest's architecture does not
    support. *properties*: the properties of the root disk's image, which may name an architecture."""
    architecture = parse_hardware_specs(properties, BY_PROPERTY).get(architectures.FIELD, "") if block_devices else ""
    for block_device in block_devices:
        try:
            architectures.check_bus(block_device["disk_bus"], architecture, "disk_bus")
        except InvalidField as error:
            raise _invalid_mapping(error.message) from None


def default_disk_config(properties: Mapping[str, Any]) -> str:
    """Return the default of ``OS-DCF:diskConfig``, ``AUTO`` or ``MANUAL``, for a server whose root disk is made from an
    image with *properties*."""
    return "AUTO" if str(properties.get("auto_disk_config")).lower() in ("true", "1", "yes") else "MANUAL"


def _block_devices_of_image(image: Mapping[str, Any]) -> list[Document]:
    """Return the block device mapping in the properties of *image*; [] if it has none. Nova writes this property to
    images of servers that boot from a volume. The mapping is checked as strictly as the mapping in a request, because
    users can change the properties of images."""
    properties = image.get("properties") or {}
    if "block_device_mapping" not in properties:
        return []
    try:
        mapping = orjson.loads(properties["block_device_mapping"])
    except orjson.JSONDecodeError:
        mapping = None
    if not isinstance(mapping, list) or not all(isinstance(block_device, dict) for block_device in mapping):
        raise InvalidRequest(f"The property block_device_mapping of image {image['id']} is not a list in JSON.")
    # Nova writes all keys, also newer ones that are unknown here.
    block_devices = [{name: _from_text(name, value) for name, value in block_device.items() if name in FIELDS
                      and value is not None}
                     for block_device in mapping]
    return [block_device for block_device in OF_IMAGE.check(block_devices, _property_of(image))
            if not block_device.get("no_device")]


def _from_text(name: str, value: Any) -> Any:
    """Return *value*, the value of the key *name* in an image's block device mapping, converted from text if the key's
    type is integer or boolean."""
    if name in NUMBERS and isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,9}", value):
        return int(value)
    return TRUTH.get(str(value).lower(), value) if name == "delete_on_termination" else value


def _property_of(image: Mapping[str, Any]) -> str:
    """Return the name that error messages use for the block device mapping in the properties of *image*."""
    return f"image {image['id']}: block_device_mapping"


def _check_local_image(image: Mapping[str, Any] | None, block_devices: Sequence[BlockDevice]) -> None:
    """Raise ``InvalidRequest`` if one of *block_devices* is a local copy of an image, unless it is the root disk and
    made from *image* (the image of the request).

    As in Nova, a volume with boot_index 0 is the root disk even when the request also names an image. Then only the
    properties of the image in the request are used.
    """
    for block_device in block_devices:
        if (block_device["source_type"], block_device["destination_type"]) == ("image", "local") and (
                block_device["boot_index"] != 0 or image is None or block_device["uuid"] != image["id"]):
            raise _invalid_mapping(
                "an image with destination_type local must be the image of imageRef, with boot_index 0.")


def _check_boot_order(image: Mapping[str, Any] | None, block_devices: Sequence[BlockDevice]) -> None:
    """Raise ``InvalidRequest`` if a server with *image* and *block_devices* has no disk to boot from, if the boot
    indexes are not 0, 1, 2 and so on, or if a volume occurs twice."""
    turns = sorted(block_device["boot_index"] for block_device in block_devices
                   if block_device["boot_index"] is not None and block_device["boot_index"] >= 0)
    rooted = 0 in turns
    if not image and not rooted:
        raise InvalidRequest("Block Device Mapping is Invalid: no image was given (imageRef), and no disk has "
                             "boot_index 0." if block_devices else
                             "Invalid imageRef provided: give an image, or a volume with boot_index 0.")
    if (turns if rooted else [0, *turns]) != list(range(len(turns) + (not rooted))):
        raise _invalid_mapping(
            "Boot sequence for the instance and image/block device mapping combination is not valid.")
    volumes = [block_device["uuid"] for block_device in block_devices if block_device["source_type"] == "volume"]
    if len(volumes) != len(set(volumes)):
        raise _invalid_mapping("a volume is named twice.")


def _check_root_size(caller: Caller, block_devices: Sequence[BlockDevice], flavor: FlavorOfServer) -> None:
    """Raise ``Forbidden`` when the root disk in *block_devices* is local and the flavor has a disk size of 0, unless
    the policy allows this."""
    if not flavor["disk"] and not any(map(is_root_volume, block_devices)):
        caller.check_policy("os_compute_api:servers:create:zero_disk_flavor")


def snapshot_block_devices(caller: Caller, server: ServerRow, image_id: str) -> tuple[list[dict[str, Any]],
                                                                                  list[dict[str, Any]]]:
    """Return two lists for an image of a server that boots from a volume: the block device mapping, which refers to
    snapshots of the server's volumes, and the snapshots to create, as {id, volume_id}. Both lists are empty if the
    server does not boot from a volume. The ids of the snapshots are derived from *image_id*, so a repeated call returns
    the same ids."""
    attachments = server.volumes
    if not any(attachment["boot_index"] == 0 for attachment in attachments):
        return [], []
    mapping, taken = [], []
    for attachment in attachments:
        volume = caller.cloud.services.volume.show(caller.context, attachment["volume_id"])
        if volume is None:
            raise InvalidRequest(f"Volume {attachment['volume_id']} of the server could not be found.")
        id = str(uuid5(UUID(image_id), attachment["volume_id"]))
        taken.append({"id": id, "volume_id": attachment["volume_id"]})
        mapping.append({
            "source_type": "snapshot", "destination_type": "volume", "snapshot_id": id, "volume_size": volume["size"],
            "boot_index": attachment["boot_index"], "device_name": attachment["device"], "tag": attachment["tag"],
            "delete_on_termination": attachment["delete_on_termination"], "volume_type": volume.get("volume_type"),
            **dict.fromkeys(("disk_bus", "device_type", "guest_format", "image_id", "volume_id", "no_device"))})
    return mapping, taken


def _check_local(caller: Caller, request: BlockDeviceRequest, block_devices: Sequence[BlockDevice]) -> None:
    """Raise ``InvalidRequest`` when *block_devices* request more swap or more ephemeral disk in total than the flavor
    has, a second swap disk, a guest_format other than ext4, or more local disks (including a local root disk) than the
    setting ``max_local_block_devices``."""
    flavor, blank = request.flavor, [block_device for block_device in block_devices if is_blank(block_device)]
    swaps, ephemerals = list(filter(is_swap, blank)), [block_device for block_device in blank
                                                       if not is_swap(block_device)]
    rooted = request.image is not None and not any(map(is_root_volume, block_devices))
    most = caller.cloud.settings.max_local_block_devices
    if -1 < most < len(blank) + rooted:
        raise _invalid_mapping("You specified more local devices than the limit allows "
                               f"(setting max_local_block_devices: {most}, with the root disk of an image).")
    if len(swaps) > 1:
        raise InvalidRequest("More than one swap drive requested.")
    if swaps and (not flavor["swap"] or (swaps[0]["volume_size"] or 0) > flavor["swap"]):
        raise InvalidRequest("Swap drive requested is larger than instance type allows.")
    sizes = [ephemeral["volume_size"] or flavor["ephemeral"] for ephemeral in ephemerals]
    if sum(sizes) > flavor["ephemeral"] or (ephemerals and not flavor["ephemeral"]):
        raise InvalidRequest("Ephemeral disks requested are larger than the instance type allows. If no size is "
                             "given in one block device mapping, flavor ephemeral size will be used.")
    for ephemeral in ephemerals:
        if ephemeral["guest_format"] not in (None, "", "ext4"):
            raise _invalid_mapping(
                f"ephemeral disks are made with ext4, and guest_format is {ephemeral['guest_format'][:80]}. Leave "
                                   "it out, and make the file system in the guest.")


def _check_shared(caller: Caller, block_devices: Sequence[BlockDevice]) -> None:
    """Raise ``InvalidRequest`` if one of *block_devices* is an existing volume that is not multiattach. Called for
    requests that create several servers."""
    for block_device in block_devices:
        if block_device["source_type"] == "volume":
            volume = caller.cloud.services.volume.show(caller.context, block_device["uuid"])
            if volume is None or not volume["multiattach"]:
                raise InvalidRequest("Cannot attach one or more volumes to multiple instances")


def _invalid_mapping(why: str) -> MagnetarError:
    return InvalidRequest(f"Block Device Mapping is Invalid: {why}")


def _complete_block_device(caller: Caller, request: BlockDeviceRequest, block_device: Mapping[str, Any],
                           where: str) -> BlockDevice:
    """Return *block_device* with default values filled in. Raises ``InvalidRequest`` for contradictory keys."""
    source = block_device.get("source_type") or "volume"
    uuid = block_device.get("uuid") or block_device.get(f"{source}_id")
    target = block_device.get("destination_type") or ("local" if source in ("image", "blank") else "volume")
    if (source == "blank") == bool(uuid):
        raise InvalidField(f"{where}.uuid", f"is required with source_type {source}" if source != "blank" else
                           "is for other sources than blank")
    if source in ("volume", "snapshot") and target == "local":
        raise InvalidField(f"{where}.destination_type", f"must be volume with source_type {source}")
    size = block_device.get("volume_size")
    if target == "volume" and source in ("image", "blank") and not size:
        raise InvalidField(f"{where}.volume_size", f"is required to make a volume from {source}")
    if (source, target) == ("blank", "local") and block_device.get("boot_index") == 0:
        raise InvalidField(f"{where}.boot_index", "must not be 0 for an ephemeral or swap disk: the root disk is an "
                                                  "image or a volume, which may be blank")
    _check_words(block_device, source, target, request, where)
    if block_device.get("volume_type") and not caller.cloud.services.volume.has_type(caller.context,
                                                                                     block_device["volume_type"]):
        raise _invalid_mapping(f"volume type {block_device['volume_type']} could not be found.")
    volume_type = block_device.get("volume_type")
    if uuid:
        source_document = _CHECK_SOURCE[source](caller, request, uuid, size if target == "volume" else None)
        if block_device.get("boot_index") == 0 and not source_document.get("bootable", True):
            raise _invalid_mapping(f"Block Device {uuid} is not bootable.")
        named = (source_document.get("properties") or {}).get(VOLUME_TYPE) if (source, target) == ("image",
                                                                                                   "volume") else None
        if named and not volume_type and not caller.cloud.services.volume.has_type(caller.context, named):
            raise _invalid_mapping(f"volume type {named[:80]}, which image {uuid} names in its property {VOLUME_TYPE}, "
                                   "could not be found.")
        volume_type = volume_type or named
        if block_device.get("boot_index") == 0:
            image = source_document.get("volume_image_metadata", source_document)
            check_flavor_memory(request.flavor, image.get("image_id") or uuid, image.get("min_ram"))
    return {"source_type": source, "destination_type": target, "uuid": uuid, "volume_size": size,
            "boot_index": block_device.get("boot_index"),
            "delete_on_termination": target == "local" or bool(block_device.get("delete_on_termination")),
            "guest_format": block_device.get("guest_format"), "device_name": block_device.get("device_name") or None,
            "disk_bus": block_device.get("disk_bus"), "tag": block_device.get("tag"), "volume_type": volume_type}


def _check_words(block_device: Mapping[str, Any], source: str, target: str, request: BlockDeviceRequest,
                 where: str) -> None:
    """Raise ``InvalidField`` if *block_device* has a key without effect, or an unsupported value. *source*, *target*:
    the device's source_type and destination_type, which determine the allowed keys and values. *where*: the device's
    name in error messages."""
    fields = {name: value for name, value in block_device.items() if value not in (None, "")}
    if fields.get("device_type", "disk") != "disk":
        raise InvalidField(f"{where}.device_type", "must be disk, or be left out: block devices are nothing else to "
                           "guests here", fields["device_type"])
    if other := next((name for name in _IDS if name in fields and name != f"{source}_id"), None):
        raise InvalidField(f"{where}.{other}", f"is not for source_type {source}; what that is made from is uuid")
    if "guest_format" in fields and (source, target) != ("blank", "local"):
        raise InvalidField(f"{where}.guest_format", "is for blank local disks only", fields["guest_format"])
    if target == "local":
        _check_local_words(fields, source, request, where)
        return
    if fields.get("disk_bus", "virtio") not in BUSES:
        raise InvalidField(f"{where}.disk_bus", f"must be one of {', '.join(BUSES)}", fields["disk_bus"])
    if source == "volume" and "volume_type" in fields:
        raise InvalidField(f"{where}.volume_type", "is for volumes that are made; this one has its type",
                           fields["volume_type"])


def _check_local_words(fields: Mapping[str, Any], source: str, request: BlockDeviceRequest, where: str) -> None:
    """Raise ``InvalidField`` if a local disk has a key without effect. *fields*: the keys and values of the disk. A
    disk_bus is accepted if it equals the bus that the flavor or image specifies, because Nova writes disk_bus to images
    of servers."""
    flavor = request.flavor
    for name, allowed, why in REFUSED:
        if name in fields and fields[name] not in (*allowed, *_DEFAULTS.get(name, ())) and not (
                name == "disk_bus" and fields[name] == _requested_disk_bus(request)):
            raise InvalidField(f"{where}.{name}", why, fields[name])
    if source == "image" and fields.get("volume_size", 0) not in (0, flavor["disk"]):
        raise InvalidField(f"{where}.volume_size", f"must be the flavor's disk, {flavor['disk']} GiB, or be left "
                           "out: a local root disk is as large as that", fields["volume_size"])


def _requested_disk_bus(request: BlockDeviceRequest) -> Any:
    """Return the disk bus for local disks that the flavor or image of *request* specifies; ``None`` if neither does."""
    return requested_hardware(request.flavor, request.image or {}).get("hardware", {}).get("disk_bus")


def _check_volume(caller: Caller, request: BlockDeviceRequest, uuid: str, _size: int | None) -> Mapping[str, Any]:
    """Return the volume *uuid* after checking that the server in *request* may attach it. *_size*, the requested size,
    is ignored as in Nova, because Horizon always sends a size. Raises ``InvalidRequest``."""
    volume = caller.cloud.services.volume.show(caller.context, uuid)
    if volume is None:
        raise _invalid_mapping(f"failed to get volume {uuid}.")
    if volume["multiattach"] and not request.multiattach:
        raise InvalidRequest("Multiattach volumes are only supported starting with compute API version 2.60.")
    users = {attachment["server_id"] for attachment in volume["attachments"]} if request.instead_of else set()
    if volume["status"] == "in-use" and users == {request.instead_of}:
        return volume
    if volume["status"] not in (("available", "in-use") if volume["multiattach"] else ("available",)):
        raise _invalid_mapping(f"volume {uuid} is {volume['status']}, and must be available.")
    return volume


def _check_snapshot(caller: Caller, _request: BlockDeviceRequest, uuid: str, size: int | None) -> Mapping[str, Any]:
    snapshot = caller.cloud.services.volume.snapshot(caller.context, uuid)
    if snapshot is None:
        raise _invalid_mapping(f"failed to get snapshot {uuid}.")
    if snapshot["status"] != "available":
        raise _invalid_mapping(f"snapshot {uuid} is {snapshot['status']}, and must be available.")
    if size and size < snapshot["size"]:
        raise _invalid_mapping(f"snapshot {uuid} has {snapshot['size']} GiB, and the volume is to have {size}.")
    return snapshot


def _check_image(caller: Caller, _request: BlockDeviceRequest, uuid: str, size: int | None) -> Mapping[str, Any]:
    image = caller.cloud.services.image.show(caller.context, uuid)
    if image is None:
        raise _invalid_mapping(f"failed to get image {uuid}.")
    if image["status"] != "active":
        raise InvalidRequest(f"Image {uuid} is not active.")
    if size is not None:
        check_volume_room(image, size)
    return image


def check_volume_room(image: Mapping[str, Any], size: int) -> None:
    """Raise ``InvalidRequest`` when a volume of *size* GiB is too small for *image*."""
    if size < int(image.get("min_disk") or 0):
        raise InvalidRequest(f"Volume is smaller than the minimum size specified in image metadata. Volume size is "
                             f"{size << 30} bytes, minimum size is {int(image['min_disk']) << 30} bytes.")
    need = max(int(image.get("size") or 0), int(image.get("virtual_size") or 0))
    if need > size << 30:
        raise InvalidRequest(f"Volume is too small for image {image['id']}: it has {size << 30} bytes, and the image "
                             f"{need}.")


#: The check of each source_type. It returns the image, volume or snapshot, which says whether it is bootable.
_CHECK_SOURCE: Mapping[str, Callable[[Caller, BlockDeviceRequest, str, int | None], Mapping[str, Any]]] = {
    "volume": _check_volume, "snapshot": _check_snapshot, "image": _check_image}
