# SPDX-License-Identifier: GPL-3.0-or-later
"""Bare metal, which Nova passes on to Ironic until 2.35 where there is one: here there is none."""

from __future__ import annotations

from magnetar_control.compute.caller import Caller, use_case
from magnetar_core.errors import InvalidRequest, NotSupported

RULE = "os_compute_api:os-baremetal-nodes:"


def _none(_caller: Caller, _id: str = "") -> None:
    """Raises ``NotSupported``."""
    raise NotSupported("The requested functionality is not supported: this cloud has no bare metal service.")


every = use_case(f"{RULE}list")(_none)
show = use_case(f"{RULE}show")(_none)


@use_case(f"{RULE}show")
def change(_caller: Caller, _id: str = "") -> None:
    """Nova has never passed changes on. Raises ``InvalidRequest``."""
    raise InvalidRequest("Command Not supported: nodes are changed in the bare metal service, which this cloud has "
                         "not.")
