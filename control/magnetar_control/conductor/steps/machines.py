# SPDX-License-Identifier: GPL-3.0-or-later
"""The machine type of a server, which its host has chosen: kept, so that it has the same wherever it is made again
(unshelved, evacuated)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from magnetar_control.conductor.worker.work import Work
from magnetar_control.store.servers import servers
from magnetar_core.hardware.machines import is_versioned


def recorded(work: Work, resource: Mapping[str, Any]) -> dict[str, Any]:
    """The column of the server that keeps the machine type of the agent's *resource*; nothing where it does already."""
    image, machine = orjson.loads(work.server.image), str(resource.get("machine") or "")
    if not is_versioned(machine) or image.get("machine") == machine:
        return {}
    return {"image": servers.text({**image, "machine": machine})}
