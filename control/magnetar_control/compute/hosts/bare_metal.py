# SPDX-License-Identifier: GPL-3.0-or-later
"""Bare metal nodes. Until 2.35, Nova forwards these requests to Ironic, if there is one; Magnetar has none, and
refuses."""

from __future__ import annotations

from magnetar_control.compute.caller import Caller, use_case
from magnetar_core.errors import InvalidRequest, NotSupported

RULE = "os_compute_api:os-baremetal-nodes:"


def _refuse_bare_metal(_caller: Caller, _id: str = "") -> None:
    """Raise ``NotSupported``, because this cloud has no bare metal nodes."""
    raise NotSupported("The requested functionality is not supported: this cloud has no bare metal service.")


list_bare_metal_nodes = use_case(f"{RULE}list")(_refuse_bare_metal)
show_bare_metal_node = use_case(f"{RULE}show")(_refuse_bare_metal)


@use_case(f"{RULE}show")
def update_bare_metal_node(_caller: Caller, _id: str = "") -> None:
    """Raise ``InvalidRequest``, because this cloud has no bare metal service. Nova does not support changes of nodes
    either."""
    raise InvalidRequest("Command Not supported: nodes are changed in the bare metal service, which this cloud has "
                         "not.")
