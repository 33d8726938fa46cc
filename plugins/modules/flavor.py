#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: flavor
version_added: "0.1.0"
short_description: Manage flavors, the sizes of servers
description:
  - Creates, updates or removes a flavor.
  - Sizes of a flavor cannot change. Servers keep their sizes, even when the flavor is changed or removed.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.flavor
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.flavor_info
  - module: magnetar.compute.server
"""

EXAMPLES = r"""
- name: Make a flavor
  magnetar.compute.flavor:
    name: small
    vcpus: 1
    ram: 512

- name: Make a flavor with all options
  magnetar.compute.flavor:
    name: large
    description: for databases
    vcpus: 8
    ram: 16384
    disk: 100
    ephemeral: 50
    swap: 1024
    extra_specs:
      hw:cpu_sockets: "1"
      hw:watchdog_action: reset

- name: Change its description
  magnetar.compute.flavor:
    name: large
    description: for databases and caches

- name: Remove it
  magnetar.compute.flavor:
    name: large
    state: absent
"""

RETURN = r"""
flavor:
  description: 'The flavor after the task; in check mode, as it would be. With O(state=absent), the last known flavor,
      or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    id: {description: 'The uuid; generated when the resource is created, unless given.', type: str,
        sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The name., type: str, sample: web1}
    description: {description: Free text of at most 255 characters., type: str, sample: for the shop}
    created_at: {description: 'When it was created, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    updated_at: {description: 'When it was last changed, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    vcpus: {description: Number of virtual CPUs., type: int, sample: 1}
    ram: {description: Memory in MiB., type: int, sample: 512}
    disk: {description: Root disk in GiB; 0 keeps the size of the image., type: int, sample: 10}
    ephemeral: {description: Ephemeral disk in GiB; 0 for none., type: int, sample: 0}
    swap: {description: Swap disk in MiB; 0 for none., type: int, sample: 0}
    extra_specs: {description: 'Extra specs, keys to strings: hardware of its servers in addition to sizes, and suitable
          hosts.', type: dict, sample: {'hw:watchdog_action': reset}}
    is_public: {description: Whether all projects of a cloud may use it; C(true) when omitted for a new flavor.,
        type: bool, sample: true}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {vcpus: {old: null, new: 1}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the agent., returned: when the agent has answered,
    type: str, sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import Flavor
from ansible_collections.magnetar.compute.plugins.module_utils.modules.resource import ResourceModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = ResourceModule(Flavor)

if __name__ == "__main__":
    run_module_process(MODULE)
