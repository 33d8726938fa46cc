# SPDX-License-Identifier: GPL-3.0-or-later
"""os-baremetal-nodes, until 2.35: the answers of a Nova without Ironic."""

from __future__ import annotations

from magnetar_control.api.values import Anything, Wrapped
from magnetar_control.compute.hosts import bare_metal

from .operation import operation_factory
from .values import PROXIES

_row = operation_factory("os-baremetal-nodes", "/os-baremetal-nodes", until=PROXIES)
OPERATIONS = (
    _row("GET", "", "list", bare_metal.list_bare_metal_nodes),
    _row("GET", "/{id}", "show", bare_metal.show_bare_metal_node),
    _row("POST", "", "create", bare_metal.update_bare_metal_node, body=Anything()),
    _row("DELETE", "/{id}", "delete", bare_metal.update_bare_metal_node),
    *(_row("POST", "/{id}/action", f"action.{action}", bare_metal.update_bare_metal_node, action=action,
           body=Wrapped(action, Anything())) for action in ("add_interface", "remove_interface")),
)
