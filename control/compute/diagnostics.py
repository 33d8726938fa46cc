# SPDX-License-Identifier: GPL-3.0-or-later
"""diagnostics: what a server's guest has used, as its host's agent counts it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_core.errors import Conflict, MagnetarError, NotFound, NotSupported

from .caller import Caller
from .target import Target, of_server

RUNNING = "running"


@of_server(rule="os_compute_api:os-server-diagnostics")
def show(caller: Caller, target: Target) -> Mapping[str, Any]:
    """What the guest of a running server has used: the agent's document. Raises ``Conflict`` when nobody can tell now,
    ``NotSupported`` when the agent is too old."""
    told = _told(caller, target)
    if told["power_state"] != RUNNING:
        raise Conflict(f"Cannot 'get_diagnostics' instance {target.row.id} while it is in power state "
                       f"{told['power_state']}")
    return told


def _told(caller: Caller, target: Target) -> Mapping[str, Any]:
    id = target.row.id
    found = caller.cloud.hosts.get(target.row.host)
    if found is None:
        raise Conflict(f"Instance {id} is not ready: it is on no host.")
    try:
        with caller.cloud.agents.client(found.endpoint) as client:
            return client.diagnostics(id)
    except NotFound as error:
        if "kind" not in error.details:  # it is the route that is not there
            raise NotSupported(f"The agent of host {found.name} is too old to tell. Update it.") from None
        raise Conflict(f"Instance {id} is not ready: its host {found.name} does not have it.") from None
    except MagnetarError as error:
        raise Conflict(f"Instance {id} is not ready: its host {found.name} cannot tell: {error.message} "
                       "Try again in a moment, or look at `openstack compute service list`.") from None
