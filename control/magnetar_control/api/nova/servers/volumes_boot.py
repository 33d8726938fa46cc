# SPDX-License-Identifier: GPL-3.0-or-later
"""os-volumes_boot, until 2.102: another name of servers, from when only by it servers booted from volumes."""

from __future__ import annotations

from dataclasses import replace

from magnetar_control.api.nova.operation import ApiOperation

from . import server_actions, server_create, servers

LAST = 102
#: What there is by this name, too: of servers themselves, and of their actions.
NAMES = ("list", "detail.list", "create", "show", "update", "delete")
ACTIONS = ("confirmResize", "createImage", "os-start", "os-stop", "reboot", "rebuild", "resize", "revertResize",
           "trigger_crash_dump")
_WANTED = {*(f"servers.{name}" for name in NAMES), *(f"servers.action.{action}" for action in ACTIONS)}


def _by_this_name(one: ApiOperation) -> ApiOperation:
    return replace(one, path=one.path.replace("/servers", "/os-volumes_boot", 1), until=min(one.until, LAST),
                   name=one.name.replace("servers", "os-volumes_boot", 1))


OPERATIONS = tuple(_by_this_name(one) for noun in (servers, server_create, server_actions) for one in noun.OPERATIONS
                   if one.name in _WANTED)
