# SPDX-License-Identifier: GPL-3.0-or-later
"""versions: the version documents once more, below a version."""

from __future__ import annotations

from typing import Any

from magnetar_control.api.nova import versions
from magnetar_control.api.nova.app import ROOTS
from magnetar_control.api.nova.operation import Call, Operation
from magnetar_core.errors import NotFound


def show(call: Call) -> dict[str, Any]:
    """GET /versions/{id}: v2.0 or v2.1."""
    id = call.params["id"]
    if id not in ROOTS.values():
        raise NotFound(f"There is no version {id[:80]} of the Compute API; there are {', '.join(ROOTS.values())}.")
    return versions.one(id, call.request.root)


OPERATIONS = (Operation(method="GET", path="/versions/{id}", handler=show, name="versions.show"),)
