# SPDX-License-Identifier: GPL-3.0-or-later
"""Block device mappings of new servers (BDM rows): Nova's form checked, and made the agents' form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from magnetar_control.api.operation import Call
from magnetar_control.api.values import Anything, Id, Number, Truth, record, since
from magnetar_control.web import Fault
from magnetar_core.errors import InvalidField
from magnetar_core.fields import Field
from magnetar_core.values import Choices, ListOf, Nullable, Text, Value

SIZE = Number(0, 2**20)
DEVICE = Text(0, 255, r"[a-zA-Z0-9._\-/]*", "must be a device name")
SOURCES = ("image", "volume", "snapshot", "blank")


class BootIndex(Value):
    """A number, or text of one, or null."""

    def check(self, value: Any, path: str, version: Any = None) -> Any:
        """An int or None."""
        if value is None or value == "":
            return None
        return Number(-1, 1000).check(value, path, version)


def _fields() -> dict[str, Field | Value]:
    from .server_create import ByVersionField

    return {
        "uuid": Nullable(Id()), "image_id": Id(), "source_type": Choices(*SOURCES),
        "destination_type": Choices("local", "volume"), "boot_index": BootIndex(), "volume_size": Nullable(SIZE),
        "delete_on_termination": Truth(), "guest_format": Nullable(Text(0, 255)), "device_name": Nullable(DEVICE),
        "device_type": Nullable(Text(0, 255)), "disk_bus": Nullable(Text(0, 255)), "no_device": Anything(),
        "volume_id": Id(), "snapshot_id": Id(), "virtual_name": Text(0, 255), "connection_info": Anything(),
        "tag": ByVersionField("2.32", "2.32", "2.42"), "volume_type": since("2.67", Nullable(Text(0, 255)))}


class _Later(Value):
    """The list of mappings; its declaration is read when it is first used."""

    def __init__(self, old: bool = False) -> None:
        self.old = old
        self._value: Value | None = None

    def value(self) -> Value:
        """The list."""
        if self._value is None:
            fields = _fields()
            if self.old:
                fields = {name: fields[name] for name in ("volume_id", "snapshot_id", "volume_size", "device_name",
                                                          "delete_on_termination", "no_device", "virtual_name",
                                                          "connection_info")}
            self._value = ListOf(record(fields), 255)
        return self._value

    def check(self, value: Any, path: str, version: Any = None) -> Any:
        """The list."""
        return self.value().check(value, path, version)

    def schema(self, version: Any = None) -> dict[str, Any]:
        """The list."""
        return self.value().schema(version)


BLOCK_DEVICES, OLD_BLOCK_DEVICES = _Later(), _Later(old=True)


def checked_blocks(call: Call, want: Mapping[str, Any], image: Mapping[str, Any] | None,
                   flavor: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The mappings in the form that the conductor works with. Raises ``Fault`` 400."""
    if want.get("block_device_mapping") and want.get("block_device_mapping_v2"):
        raise Fault(400, "Using different block_device_mapping syntaxes is not allowed in the same request.")
    given = [_modern(one) for one in want.get("block_device_mapping") or ()]
    given += list(want.get("block_device_mapping_v2") or ())
    found = [_item(call, one, at) for at, one in enumerate(given) if not one.get("no_device")]
    roots = [one for one in found if one["boot_index"] == 0]
    if len(roots) > 1:
        raise Fault(400, "Block Device Mapping is Invalid: Boot sequence for the instance and image/block device mapping "
                         "combination is not valid.")
    if image and roots and roots[0]["source_type"] != "image":
        raise Fault(400, "Block Device Mapping is Invalid: the server has an image and another root disk.")
    if not image and not roots:
        raise Fault(400, "Block Device Mapping is Invalid: no image was given (imageRef), and no disk has boot_index 0."
                    if found else "Invalid imageRef provided: give an image, or a volume with boot_index 0.")
    if image and not roots and not flavor["disk"]:
        call.check("os_compute_api:servers:create:zero_disk_flavor")
    return found


def _modern(old: Mapping[str, Any]) -> dict[str, Any]:
    """An item of the first form as one of the second."""
    found = {name: old[name] for name in ("device_name", "delete_on_termination", "volume_size", "no_device")
             if name in old}
    source = "snapshot" if old.get("snapshot_id") else "volume"
    root = str(old.get("device_name") or "").rpartition("/")[2] == "vda"
    return {**found, "source_type": source, "destination_type": "volume", "boot_index": 0 if root else None,
            "uuid": old.get("snapshot_id") or old.get("volume_id")}


def _item(call: Call, one: Mapping[str, Any], at: int) -> dict[str, Any]:
    where = f"server.block_device_mapping_v2[{at}]"
    source = one.get("source_type") or "volume"
    uuid = one.get("uuid") or one.get(f"{source}_id")
    target = one.get("destination_type") or ("local" if source in ("image", "blank") else "volume")
    if source != "blank" and not uuid:
        raise InvalidField(f"{where}.uuid", f"is required with source_type {source}")
    if source in ("volume", "snapshot") and target == "local":
        raise InvalidField(f"{where}.destination_type", f"must be volume with source_type {source}")
    size = one.get("volume_size")
    if target == "volume" and source in ("image", "blank") and not size:
        raise InvalidField(f"{where}.volume_size", f"is required to make a volume from {source}")
    _exists(call, source, uuid)
    return {"source_type": source, "destination_type": target, "uuid": uuid, "boot_index": one.get("boot_index"),
            "volume_size": size, "delete_on_termination": bool(one.get("delete_on_termination", target == "local")),
            "guest_format": one.get("guest_format"), "device_name": one.get("device_name") or None,
            "disk_bus": one.get("disk_bus"), "tag": one.get("tag"), "volume_type": one.get("volume_type")}


def _exists(call: Call, source: str, uuid: str | None) -> None:
    services, context = call.cloud.services, call.context
    if source == "volume" and uuid:
        volume = services.volume.show(context, uuid)
        if volume is None:
            raise Fault(400, f"Block Device Mapping is Invalid: failed to get volume {uuid}.")
        if volume["status"] != "available" and not volume.get("multiattach"):
            raise Fault(400, f"Block Device Mapping is Invalid: volume {uuid} is {volume['status']}, and must be "
                             "available.")
    elif source == "snapshot" and uuid and services.volume.snapshot(context, uuid) is None:
        raise Fault(400, f"Block Device Mapping is Invalid: failed to get snapshot {uuid}.")
    elif source == "image" and uuid and services.image.show(context, uuid) is None:
        raise Fault(400, f"Block Device Mapping is Invalid: failed to get image {uuid}.")


def of_volumes(blocks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those whose disk is a volume."""
    return [one for one in blocks if one["destination_type"] == "volume"]
