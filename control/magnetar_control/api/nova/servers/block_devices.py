# SPDX-License-Identifier: GPL-3.0-or-later
"""Block device mappings in the bodies of new servers, in both of Nova's forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.api.nova.values import TRUTH, body_object, device_tag, field_since
from magnetar_control.api.values import Anything, Id, Number
from magnetar_control.compute.servers.block_devices import DESTINATIONS, DEVICE, SOURCES
from magnetar_core.errors import InvalidField, InvalidRequest
from magnetar_core.values import Choices, ListOf, Nullable, Text, Value

SIZE = Number(0, 2**20)


class BootIndex(Value):
    """A validator of ``boot_index``: a number, a number as text, or null."""

    def check(self, value: Any, path: str, version: Any = None) -> Any:
        """Return the boot index *value* as an int; ``None`` for null and the empty text. Raises ``InvalidField``."""
        if value is None or value == "":
            return None
        return Number(-1, 1000).check(value, path, version)


class EmptyValue(Value):
    """A validator that accepts only null and the empty text, for a key of Nova that has no effect here. *why*: the
    reason and the alternative, for the error."""

    def __init__(self, why: str) -> None:
        self.why = why

    def check(self, value: Any, path: str, version: Any = None) -> Any:
        """Return ``None``. Raises ``InvalidField`` unless *value* is null or the empty text."""
        if value not in (None, ""):
            raise InvalidField(path, f"must be left out: {self.why}")

    def schema(self, version: Any = None) -> dict[str, Any]:
        return {"enum": [None, ""]}


_FIELDS: dict[str, Any] = {
    "uuid": Nullable(Id()), "image_id": Id(), "source_type": Choices(*SOURCES),
    "destination_type": Choices(*DESTINATIONS), "boot_index": BootIndex(), "volume_size": Nullable(SIZE),
    "delete_on_termination": TRUTH, "guest_format": Nullable(Text(0, 255)), "device_name": Nullable(DEVICE),
    "device_type": Nullable(Text(0, 255)), "disk_bus": Nullable(Text(0, 255)), "no_device": Anything(),
    "volume_id": Id(), "snapshot_id": Id(),
    "virtual_name": EmptyValue("a swap or ephemeral disk is said by source_type blank with destination_type local"),
    "connection_info": EmptyValue("the volume service tells hosts how they reach a volume"),
    "tag": device_tag("2.32"), "volume_type": field_since("2.67", Nullable(Text(0, 255)))}
#: The value type of virtual_name in block_device_mapping: a swap or ephemeral disk, which has no source.
VIRTUAL = Nullable(Text(0, 10, r"|swap|ephemeral[0-9]", "must be swap, or ephemeral and a digit"))
_OLD = ("volume_id", "snapshot_id", "volume_size", "device_name", "delete_on_termination", "no_device", "virtual_name",
        "connection_info")
BLOCK_DEVICES = ListOf(body_object(_FIELDS), 255)
OLD_BLOCK_DEVICES = ListOf(body_object({**{name: _FIELDS[name] for name in _OLD}, "virtual_name": VIRTUAL}), 255)


def requested_block_devices(server: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the block devices in *server*, the body of a request for a new server, in the format of
    block_device_mapping_v2. Raises ``InvalidRequest`` if the body has both block_device_mapping and
    block_device_mapping_v2."""
    old, new = server.get("block_device_mapping") or (), server.get("block_device_mapping_v2") or ()
    if old and new:
        raise InvalidRequest("Using different block_device_mapping syntaxes is not allowed in the same request.")
    return [_second_form(old_form) for old_form in old] or list(new)


def _second_form(old: Mapping[str, Any]) -> dict[str, Any]:
    """Convert *old*, an item of block_device_mapping, to the format of block_device_mapping_v2, and return it."""
    common = {name: old[name] for name in ("device_name", "delete_on_termination", "volume_size", "no_device")
              if name in old}
    uuid = old.get("snapshot_id") or old.get("volume_id")
    if old.get("virtual_name"):
        swap = {"guest_format": "swap"} if old["virtual_name"] == "swap" else {}
        return {**common, **swap, "source_type": "blank", "destination_type": "local", "boot_index": None, "uuid": uuid}
    source = "snapshot" if old.get("snapshot_id") else "volume"
    root = str(old.get("device_name") or "").rpartition("/")[2] == "vda"
    return {**common, "source_type": source, "destination_type": "volume", "boot_index": 0 if root else None,
            "uuid": uuid}
