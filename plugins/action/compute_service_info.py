# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Direct execution of the module of this name."""

from __future__ import annotations

from ansible_collections.magnetar.compute.plugins.plugin_utils.direct import ActionModule

__all__ = ["ActionModule"]
