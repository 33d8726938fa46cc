# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of the modules about limits, computed from its declaration."""

from __future__ import annotations

from ansible_collections.magnetar.compute.plugins.module_utils.faces.operators import MODULES
from ansible_collections.magnetar.compute.plugins.plugin_utils.docs import fragment


class ModuleDocFragment:
    INFO: str = fragment(MODULES["limits_info"])
