# SPDX-License-Identifier: GPL-3.0-or-later
"""The host that a request names."""

from __future__ import annotations

from magnetar_control.compute.caller import Caller
from magnetar_control.store.hosts import hosts
from magnetar_control.store.hosts.host_row import HostRow
from magnetar_core.errors import NotFound


def find_named_host(caller: Caller, name: str) -> HostRow:
    """Return the row of the host whose name or uuid is *name*. Raises ``NotFound``."""
    row = caller.fetch(hosts.fetch_host_row, name)
    if row is None:
        raise unknown_host_error(name)
    return row


def unknown_host_error(name: str) -> NotFound:
    """Return the error that the cloud has no host *name*."""
    return NotFound(f"There is no host {name[:80]!r} in this cloud. `openstack compute service list` shows them.",
                    kind="host", key=name[:80])
