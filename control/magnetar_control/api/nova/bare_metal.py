# SPDX-License-Identifier: GPL-3.0-or-later
"""os-baremetal-nodes, until 2.35: answered as by a Nova without Ironic."""

from __future__ import annotations

from magnetar_control.api.values import Anything, Wrapped
from magnetar_control.compute.hosts import bare_metal

from .operation import noun
from .values import PROXIES

_row = noun("os-baremetal-nodes", "/os-baremetal-nodes", until=PROXIES)
OPERATIONS = (
    _row("GET", "", "list", bare_metal.every),
    _row("GET", "/{id}", "show", bare_metal.show),
    _row("POST", "", "create", bare_metal.change, body=Anything()),
    _row("DELETE", "/{id}", "delete", bare_metal.change),
    *(_row("POST", "/{id}/action", f"action.{action}", bare_metal.change, action=action,
           body=Wrapped(action, Anything())) for action in ("add_interface", "remove_interface")),
)
