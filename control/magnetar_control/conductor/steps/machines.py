# SPDX-License-Identifier: GPL-3.0-or-later
"""The machine type of a server, which its host has chosen. It is saved, so that an unshelved or evacuated server has
the same type on its new host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.conductor.worker.work import RunningAction
from magnetar_control.store.servers import servers
from magnetar_core.hardware.machines import is_versioned


def machine_type_column(work: RunningAction, resource: Mapping[str, Any]) -> dict[str, Any]:
    """Return {"image": JSON} to save in the server's row: the server's image fields with the machine type from
    *resource* added. Return an empty mapping if *resource* has no versioned machine type, such as ``pc-q35-8.2``, or if
    the row already has this machine type. *resource*: the server as its agent reports it."""
    image, machine = work.server.image, str(resource.get("machine") or "")
    if not is_versioned(machine) or image.get("machine") == machine:
        return {}
    return {"image": servers.json_text({**image, "machine": machine})}
