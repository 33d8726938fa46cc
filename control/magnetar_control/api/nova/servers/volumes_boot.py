# SPDX-License-Identifier: GPL-3.0-or-later
"""os-volumes_boot, until 2.102: another name of servers; once only this name could boot servers from volumes."""

from __future__ import annotations

from dataclasses import replace

from magnetar_control.api.nova.operation import ApiOperation

from . import server_actions, server_create, servers

LAST = 102
#: Operations that exist under this name too: of servers themselves, and their actions.
NAMES = ("list", "detail.list", "create", "show", "update", "delete")
ACTIONS = ("confirmResize", "createImage", "os-start", "os-stop", "reboot", "rebuild", "resize", "revertResize",
           "trigger_crash_dump")
_WANTED = {*(f"servers.{name}" for name in NAMES), *(f"servers.action.{action}" for action in ACTIONS)}


def _by_this_name(operation: ApiOperation) -> ApiOperation:
    return replace(operation, path=operation.path.replace("/servers", "/os-volumes_boot", 1),
                   until=min(operation.until, LAST), name=operation.name.replace("servers", "os-volumes_boot", 1))


OPERATIONS = tuple(_by_this_name(operation) for noun in (servers, server_create, server_actions)
                   for operation in noun.OPERATIONS
                   if operation.name in _WANTED)
