# SPDX-License-Identifier: GPL-3.0-or-later
"""Block device mappings in the bodies of new servers, in both of Nova's forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.api.nova.values import device_tag, record, since
from magnetar_control.compute.block_devices import FIELDS
from magnetar_core.errors import InvalidRequest
from magnetar_core.values import ListOf

_OLD = ("volume_id", "snapshot_id", "volume_size", "device_name", "delete_on_termination", "no_device", "virtual_name",
        "connection_info")
BLOCK_DEVICES = ListOf(record({**FIELDS, "tag": device_tag("2.32"),
                               "volume_type": since("2.67", FIELDS["volume_type"])}), 255)
OLD_BLOCK_DEVICES = ListOf(record({name: FIELDS[name] for name in _OLD}), 255)


def mapping(server: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The mapping of a body, in the second form. Raises ``InvalidRequest`` for both forms at once."""
    old, new = server.get("block_device_mapping") or (), server.get("block_device_mapping_v2") or ()
    if old and new:
        raise InvalidRequest("Using different block_device_mapping syntaxes is not allowed in the same request.")
    return [_second_form(one) for one in old] or list(new)


def _second_form(old: Mapping[str, Any]) -> dict[str, Any]:
    """An item of the first form as one of the second."""
    found = {name: old[name] for name in ("device_name", "delete_on_termination", "volume_size", "no_device")
             if name in old}
    source = "snapshot" if old.get("snapshot_id") else "volume"
    root = str(old.get("device_name") or "").rpartition("/")[2] == "vda"
    return {**found, "source_type": source, "destination_type": "volume", "boot_index": 0 if root else None,
            "uuid": old.get("snapshot_id") or old.get("volume_id")}
