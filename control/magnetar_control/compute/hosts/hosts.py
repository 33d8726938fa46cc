# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts as Nova shows them until 2.42: the services on each host, and what the servers of each project use of a compute
host. Later versions have ``hypervisors`` and ``services``."""

from __future__ import annotations

from collections.abc import Mapping

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.store.hosts import hosts, services
from magnetar_control.store.hosts.host_row import HostRow
from magnetar_control.store.hosts.services import COMPUTE, Service
from magnetar_core.errors import NotFound, NotSupported

from .services import DISABLED, ENABLED, read_services, update_host_service

RULE = "os_compute_api:os-hosts:"
#: CPUs, memory and disk, as columns of a host and as keys of a flavor.
SIZES = ("vcpus", "memory_mb", "disk_gb")


@use_case(f"{RULE}list")
def list_hosts(caller: Caller, zone: str | None = None) -> list[Service]:
    """Return the enabled services in the availability zone *zone*, or in all zones. Services in a cell that does not
    answer are left out."""
    return [service for service in read_services(caller) if service.reachable and not service.disabled
            and zone in (None, "", service.zone)]


@use_case(f"{RULE}show")
def show_host(caller: Caller, name: str) -> list[tuple[str, Mapping[str, int]]]:
    """Return CPUs, memory and disk of a compute host as pairs (label, mapping). Each mapping has the keys ``SIZES``.
    The labels are Nova's: ``(total)``; ``(used_now)``, the usage with reserved amounts; ``(used_max)``, the sum over
    the host's servers; and the id of each project, for the sum over the project's servers. Raises ``NotFound``."""
    row = _find_host(caller, name)
    of_projects = services.fetch_sizes_by_project(caller.cloud.store.cell(row.cell_id), name)
    total, used, reserved = row.totals, row.used, row.reserved
    return [("(total)", {size: getattr(total, size) for size in SIZES}),
            ("(used_now)", {size: getattr(used, size) + getattr(reserved, size) for size in SIZES}),
            ("(used_max)", {size: sum(sizes[size] for sizes in of_projects.values()) for size in SIZES}),
            *of_projects.items()]


def _find_host(caller: Caller, name: str) -> HostRow:
    row = caller.fetch(hosts.fetch_host_row, name)
    if row is None or row.name != name:
        raise NotFound(f"Compute host {name[:80]} could not be found.")
    return row


@use_case(f"{RULE}update")
def update_host(caller: Caller, name: str, *, enabled: bool | None = None, maintenance: bool = False) -> None:
    """Enable or disable a compute host. Raises ``NotFound``. Raises ``NotSupported`` when *maintenance* is set, because
    no host has a maintenance mode."""
    _find_host(caller, name)
    if maintenance:
        raise NotSupported("The requested functionality is not supported: nothing here has a maintenance mode. Disable "
                           "the host and migrate its servers.")
    if enabled is not None:
        update_host_service.function(caller, name, COMPUTE, status=ENABLED if enabled else DISABLED)


def _refuse_power_action(caller: Caller, name: str) -> None:
    """Raise ``NotSupported``: the API cannot start, shut down or reboot hosts, as in Nova with libvirt. Raises
    ``NotFound`` for an unknown host."""
    _find_host(caller, name)
    raise NotSupported("The requested functionality is not supported: hosts are not started, shut down or rebooted "
                       "here. Use what the host itself has for that.")


#: Use cases of power actions, by the action's word in the path.
POWER = {action: use_case(f"{RULE}{rule}")(_refuse_power_action) for action, rule in (
    ("startup", "start"), ("shutdown", "shutdown"), ("reboot", "reboot"))}
