# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a server would be: the scheduler is asked as a conductor asks it, and nothing is claimed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from magnetar_control.compute.caller import Caller
from magnetar_control.scheduler.choose import NoValidHost, choose
from magnetar_control.scheduler.hosts import HostStates
from magnetar_control.scheduler.request_spec import amounts_of, devices_of, of_server, placed_hardware, resources_of
from magnetar_control.scheduler.rules import rules_of
from magnetar_control.store.claims.allocations import Amounts
from magnetar_control.store.hosts import aggregates, cell_look, hosts
from magnetar_control.store.scatter_gather import scatter_gather
from magnetar_core.errors import NoSpace


def why_no_host(caller: Caller, fault: Mapping[str, Any]) -> str | None:
    """Why no host was found for a server, where that is its *fault*; administrators read which filters refused."""
    message = str(fault["message"])
    if not message.startswith(NoValidHost().message):
        return None
    return str(fault.get("details") or message) if caller.is_admin else message


def predicted_host(caller: Caller, row: Mapping[str, Any], freed: Mapping[str, Any] | None = None,
                   freed_image: Mapping[str, Any] | None = None) -> str:
    """Name of the host that a new server (a row to be) would get at this moment. Raises ``NoSpace``; administrators
    read why. *freed*, *freed_image*: of the server that it replaces, whose amounts and devices count as free on every
    host, and so do all NUMA cells then. Builds that failed are known to conductors only."""
    cloud = caller.cloud
    spec = of_server(cloud.store.api, cloud.services.volume, caller.context, row)
    if freed:
        old_amounts = amounts_of(freed, image=freed_image)
        spec = replace(spec, amounts=Amounts(*(
            max(0, new - old) for new, old in zip(spec.amounts, old_amounts, strict=True))),
            resources={name: n for name, new in spec.resources.items()
                       if (n := new - resources_of(freed, freed_image).get(name, 0)) > 0},
            numa=None if placed_hardware(freed, freed_image) else spec.numa)
    states = HostStates(cloud.settings.default_availability_zone, rules_of(cloud.settings))
    with cloud.store.api.read() as connection:
        rows, groups = hosts.every(connection), aggregates.every(connection)
    states.refresh(rows, groups)
    if freed:
        spec = replace(spec, has_devices=dict.fromkeys(states.hosts, devices_of(freed)))
    look = partial(cell_look.look, cloud.settings.host_down_after, states.rules.looks_at_flavors)
    found = scatter_gather(cloud.store, look, cloud.settings.cell_timeout)
    for row_of_host in rows:
        states.seen(row_of_host["name"], found.get(row_of_host["cell_id"]) or cell_look.NOTHING)
    try:
        return choose(states, spec)[0].host
    except NoValidHost as error:
        raise NoSpace(f"{error.message} {error.explanation}" if caller.is_admin else error.message) from None
