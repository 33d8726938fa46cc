# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of modules, derived from their declarations: ``magnetar.compute.options.NAME`` for the module NAME."""

from __future__ import annotations

import json
from importlib import import_module

from ansible_collections.magnetar.compute.plugins.module_utils.core.options import options_documentation


class ModuleDocFragment:
    """The documentation fragments with the options of modules. Ansible reads the attribute ``SERVER_INFO``, for
    example, for the fragment ``options.server_info``.
    """

    def __getattr__(self, name):
        if not name.isupper():
            raise AttributeError(name)
        module = import_module("ansible_collections.magnetar.compute.plugins.modules.%s" % name.lower()).MODULE
        options = options_documentation(module.options)
        if "servers" in options:
            options["servers"]["suboptions"] = options_documentation(module.item_options)
        return json.dumps({"options": options})  # JSON is YAML
