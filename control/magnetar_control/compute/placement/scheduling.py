# SPDX-License-Identifier: GPL-3.0-or-later
"""The prediction of a server's host: the scheduler gets the request that a conductor would send, but nothing is
claimed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from magnetar_control.compute.caller import Caller
from magnetar_control.documents import FlavorOfServer, ImageOfServer
from magnetar_control.scheduler.choose import NoValidHost, choose_hosts
from magnetar_control.scheduler.current_hosts import read_current_hosts
from magnetar_control.scheduler.request_spec import (
    claimed_amounts,
    devices_of,
    placed_hardware,
    resources_of,
    spec_of_server,
)
from magnetar_control.store.claims.allocations import Amounts
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.errors import NoSpace


def why_no_host(caller: Caller, fault: Mapping[str, Any]) -> str | None:
    """Return the message of *fault* (a server's fault) if it says that the scheduler found no host, otherwise ``None``.
    For administrators the message names the filters that rejected hosts."""
    message = str(fault["message"])
    if not message.startswith(NoValidHost().message):
        return None
    return str(fault.get("details") or message) if caller.is_admin else message


def predicted_host(caller: Caller, row: Mapping[str, Any], freed: FlavorOfServer | None = None,
                   freed_image: ImageOfServer | None = None) -> str:
    """Return the name of the host that the scheduler would choose now for a new server. Raises ``NoSpace`` when no host
    fits; for administrators, the message of the error explains the reason.

    *row*: the column values of the new server, which need not be stored. *freed*, *freed_image*: flavor and image of an
    old server that the new server replaces. The old server's host is not known here, so its resources and devices count
    as free on every host. NUMA cells are not checked if the old server uses NUMA cells. Hosts on which a build has
    failed before are not excluded, because only conductors know of failed builds.
    """
    cloud = caller.cloud
    spec = spec_of_server(cloud.store.api, cloud.services.volume, caller.context, ServerRow.of_values(row),
                          keeps_reserve=True)
    if freed:
        old_amounts = claimed_amounts(freed, image=freed_image)
        spec = replace(spec, amounts=Amounts(*(
            max(0, new - old) for new, old in zip(spec.amounts, old_amounts, strict=True))),
            resources={name: n for name, new in spec.resources.items()
                       if (n := new - resources_of(freed, freed_image).get(name, 0)) > 0},
            numa=None if placed_hardware(freed, freed_image) else spec.numa)
    states = read_current_hosts(cloud.store, cloud.settings)
    if freed:
        spec = replace(spec, has_devices=dict.fromkeys(states.hosts, devices_of(freed)))
    try:
        return choose_hosts(states, spec)[0].host
    except NoValidHost as error:
        raise NoSpace(f"{error.message} {error.explanation}" if caller.is_admin else error.message) from None
