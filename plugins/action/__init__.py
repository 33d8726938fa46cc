# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The package of action plugins. Ansible imports it when it reads a task of this collection, before it forks a worker
for the task. So this module imports the action plugin: workers inherit the plugin with all its imports.
"""

from __future__ import annotations

from ansible.plugins.loader import action_loader

from . import direct  # noqa: F401

# A worker looks up this plugin for each task whose module has an action plugin of another name, and finds it imported.
action_loader.get("ansible.legacy.normal", class_only=True)
