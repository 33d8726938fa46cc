# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of the connection to the agent, for modules and the inventory; derived from their declaration."""

from __future__ import annotations

import json

from ansible_collections.magnetar.compute.plugins.module_utils.core.options import (
    CONNECTION,
    options_documentation,
    plugin_documentation,
)

NOTES = [
    "With the unix socket (the default) the module runs on the host itself, over Ansible's own connection, as a user "
    "of the group C(magnetar) or with C(become).",
    "An endpoint that begins with C(ssh://) needs the Python package C(paramiko) on the controller.",
]


#: Options of the connection that a connection plugin has no use for: its calls have limits of their own.
UNUSED = ("timeout",)


def _variables():
    """Return the documentation of the endpoint options for connection plugins. In connection plugins, the host variable
    ``magnetar_NAME`` sets the option NAME.
    """
    options = plugin_documentation(CONNECTION)
    for name in UNUSED:
        del options[name]
    for name, option in options.items():
        option["vars"] = [{"name": "magnetar_%s" % name}]
    return options


class ModuleDocFragment:
    DOCUMENTATION: str = json.dumps({"options": options_documentation(CONNECTION), "notes": NOTES})
    INVENTORY: str = json.dumps({"options": plugin_documentation(CONNECTION), "notes": NOTES[1:]})
    VARIABLES: str = json.dumps({"options": _variables(), "notes": NOTES[1:]})
