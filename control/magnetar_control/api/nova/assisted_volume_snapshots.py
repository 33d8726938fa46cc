# SPDX-License-Identifier: GPL-3.0-or-later
"""os-assisted-volume-snapshots: requests of volume services whose volumes are files. The use cases refuse them, and say
why."""

from __future__ import annotations

from typing import Any

import orjson

from magnetar_control.api.values import Anything, Id, Wrapped
from magnetar_control.compute.proxies import assisted_volume_snapshots
from magnetar_core.errors import InvalidField
from magnetar_core.values import Choices, Text

from .operation import Call, Query, operation_factory
from .values import body_object

CREATE = body_object({"volume_id": Id(), "create_info": body_object(
    {"snapshot_id": Id(), "type": Choices("qcow2"), "new_file": Text(1, 255), "id": Text(1, 255)},
    "snapshot_id", "type", "new_file")}, "volume_id", "create_info")


def _deleted(call: Call) -> dict[str, Any]:
    """Return ``{"volume_id": uuid}``, the keyword argument of the use case ``delete_assisted_snapshot``. The uuid comes
    from the query parameter ``delete_info``, a JSON object with the key ``volume_id``. Raises ``InvalidField``."""
    try:
        delete_info = orjson.loads(call.query.get("delete_info", ""))
    except orjson.JSONDecodeError:
        raise InvalidField("delete_info", "must be a JSON object, such as {\"volume_id\": UUID}") from None
    if not isinstance(delete_info, dict) or "volume_id" not in delete_info:
        raise InvalidField("delete_info", "must be an object with volume_id")
    return {"volume_id": Id().check(delete_info["volume_id"], "delete_info.volume_id")}


_row = operation_factory("os-assisted-volume-snapshots", "/os-assisted-volume-snapshots")
OPERATIONS = (
    _row("POST", "", "create", assisted_volume_snapshots.create_assisted_snapshot, body=Wrapped("snapshot", CREATE),
         given=lambda call: {"volume_id": call.body["volume_id"]}),
    _row("DELETE", "/{id}", "delete", assisted_volume_snapshots.delete_assisted_snapshot, given=_deleted, strict=75,
         status=204, query={"delete_info": Query(value=Anything())}),
)
