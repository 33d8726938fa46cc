# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jinja tests of the states of servers."""

from __future__ import annotations

from collections.abc import Mapping

from ansible.errors import AnsibleFilterError

from ansible_collections.magnetar.compute.plugins.module_utils.core.power import (
    CRASHED,
    OFF,
    PAUSED,
    RUNNING,
    SUSPENDED,
)

#: Test to the field of a server, and its value.
STATES = {"running": ("power_state", RUNNING), "stopped": ("power_state", OFF), "paused": ("power_state", PAUSED),
          "suspended": ("power_state", SUSPENDED), "crashed": ("power_state", CRASHED), "error": ("status", "ERROR")}


def server_of_value(value, name):
    """Return the server in *value*: a server, a module result with exactly one server, or a mapping with a server under
    the key ``server`` or ``magnetar``. *name*: the name of the Jinja test, for the error. Raises
    ``AnsibleFilterError``."""
    if isinstance(value, Mapping):
        for key in ("server", "magnetar"):
            if isinstance(value.get(key), Mapping):
                return value[key]
        servers = value.get("servers")
        if isinstance(servers, (list, tuple)) and len(servers) == 1:
            return servers[0]
        if "power_state" in value or "status" in value:
            return value
    raise AnsibleFilterError("magnetar.compute.%s needs a server, as server_info returns it, or the result of a task "
                             "with one server." % name)


def _state_test(name):
    field, wanted = STATES[name]
    return lambda value: server_of_value(value, name).get(field) == wanted


class TestModule:
    """The Jinja tests for the states of servers: running, stopped, paused, suspended, crashed, error."""

    def tests(self):
        """Return the test functions by name."""
        return {name: _state_test(name) for name in STATES}
