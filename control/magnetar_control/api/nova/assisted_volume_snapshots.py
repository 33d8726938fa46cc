# SPDX-License-Identifier: GPL-3.0-or-later
"""os-assisted-volume-snapshots: what volume services with files ask of Nova. See the use cases for why none is made."""

from __future__ import annotations

from typing import Any

import orjson

from magnetar_control.api.values import Anything, Id, Wrapped
from magnetar_control.compute.proxies import assisted_volume_snapshots
from magnetar_core.errors import InvalidField
from magnetar_core.values import Choices, Text

from .operation import Call, Query, noun
from .values import record

CREATE = record({"volume_id": Id(), "create_info": record(
    {"snapshot_id": Id(), "type": Choices("qcow2"), "new_file": Text(1, 255), "id": Text(1, 255)},
    "snapshot_id", "type", "new_file")}, "volume_id", "create_info")


def _deleted(call: Call) -> dict[str, Any]:
    """``delete_info`` is JSON in the query: {volume_id, file_to_merge, merge_target_file, type}."""
    try:
        told = orjson.loads(call.query.get("delete_info", ""))
    except orjson.JSONDecodeError:
        raise InvalidField("delete_info", "must be a JSON object, such as {\"volume_id\": UUID}") from None
    if not isinstance(told, dict) or "volume_id" not in told:
        raise InvalidField("delete_info", "must be an object with volume_id")
    return {"volume_id": Id().check(told["volume_id"], "delete_info.volume_id")}


_row = noun("os-assisted-volume-snapshots", "/os-assisted-volume-snapshots")
OPERATIONS = (
    _row("POST", "", "create", assisted_volume_snapshots.create, body=Wrapped("snapshot", CREATE),
         given=lambda call: {"volume_id": call.body["volume_id"]}),
    _row("DELETE", "/{id}", "delete", assisted_volume_snapshots.delete, given=_deleted, strict=75, status=204,
         query={"delete_info": Query(value=Anything())}),
)
