# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts as Nova has them until 2.42, by name: which services are where, and what the servers of each project have of a
compute host. Since then there are ``hypervisors`` and ``services``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.store.hosts import hosts, services
from magnetar_control.store.hosts.services import COMPUTE, Service
from magnetar_core.errors import NotFound, NotSupported

from .services import DISABLED, ENABLED, read_all, update_by_host

RULE = "os_compute_api:os-hosts:"
#: CPUs, memory and disk, as columns of a host and as keys of a flavor.
SIZES = ("vcpus", "memory_mb", "disk_gb")


@use_case(f"{RULE}list")
def every(caller: Caller, zone: str | None = None) -> list[Service]:
    """The services that are not disabled, of one zone where it is named."""
    return [one for one in read_all(caller) if one.reachable and not one.disabled and zone in (None, "", one.zone)]


@use_case(f"{RULE}show")
def show(caller: Caller, name: str) -> list[tuple[str, Mapping[str, int]]]:
    """What a compute host has of ``SIZES``, what is used of it, what its servers may use, and of that what those of
    each project: Nova's words for these, or the project, and the sizes. Raises ``NotFound``."""
    row = _find(caller, name)
    of_projects = services.sizes_by_project(caller.cloud.store.cell(row["cell_id"]), name)
    return [("(total)", {size: row[size] for size in SIZES}),
            ("(used_now)", {size: row[f"{size}_used"] + row[f"{size}_reserved"] for size in SIZES}),
            ("(used_max)", {size: sum(one[size] for one in of_projects.values()) for size in SIZES}),
            *of_projects.items()]


def _find(caller: Caller, name: str) -> Any:
    row = caller.fetch(hosts.show, name)
    if row is None or row["name"] != name:
        raise NotFound(f"Compute host {name[:80]} could not be found.")
    return row


@use_case(f"{RULE}update")
def update(caller: Caller, name: str, *, enabled: bool | None = None, maintenance: bool = False) -> None:
    """Enable or disable a compute host. *maintenance*: whether its maintenance mode is to change, which no host has.
    Raises ``NotFound``, ``NotSupported``."""
    _find(caller, name)
    if maintenance:
        raise NotSupported("The requested functionality is not supported: nothing here has a maintenance mode. Disable "
                           "the host and migrate its servers.")
    if enabled is not None:
        update_by_host.function(caller, name, COMPUTE, status=ENABLED if enabled else DISABLED)


def _refuse(caller: Caller, name: str) -> None:
    """Hosts have their own ways to be turned on and off, as with Nova and libvirt. Raises ``NotFound``,
    ``NotSupported``."""
    _find(caller, name)
    raise NotSupported("The requested functionality is not supported: hosts are not started, shut down or rebooted "
                       "here. Use what the host itself has for that.")


#: Word in the path to what would do it.
POWER = {word: use_case(f"{RULE}{rule}")(_refuse) for word, rule in (
    ("startup", "start"), ("shutdown", "shutdown"), ("reboot", "reboot"))}
