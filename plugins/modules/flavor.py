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
  - Makes a flavor be present as described, or absent.
  - Sizes are fixed once the flavor is made. Servers keep the sizes they were made with, even when the flavor is
    changed or removed.
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
  description:
    - The flavor as it is afterwards, or as it would be in check mode.
    - With O(state=absent) it is the last that was known of it, or V(null) if there was none.
  returned: on success, unless a list or a running operation is returned
  type: dict
  contains:
    id:
      description: The uuid; drawn when the resource is made, unless given.
      type: str
      sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d
    name:
      description: The name.
      type: str
      sample: web1
    description:
      description: Free text of at most 255 characters.
      type: str
      sample: for the shop
    created_at:
      description: When it was made, ISO 8601 in UTC.
      type: str
      sample: '2026-11-20T20:00:00Z'
    updated_at:
      description: When it was last changed, ISO 8601 in UTC.
      type: str
      sample: '2026-11-20T20:00:00Z'
    vcpus:
      description: Number of virtual CPUs.
      type: int
      sample: 1
    ram:
      description: Memory in MiB.
      type: int
      sample: 512
    disk:
      description: Root disk in GiB; 0 keeps the size of the image.
      type: int
      sample: 10
    ephemeral:
      description: Ephemeral disk in GiB; 0 for none.
      type: int
      sample: 0
    swap:
      description: Swap disk in MiB; 0 for none.
      type: int
      sample: 0
    extra_specs:
      description: 'Extra specs, keys to strings: what its servers have besides sizes, and which hosts suit them.'
      type: dict
      sample:
        hw:watchdog_action: reset
actions:
  description: What was done, or would be in check mode, in order.
  returned: on success
  type: list
  elements: str
  sample: [record]
changes:
  description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden.
  returned: on success
  type: dict
  sample: {ram: {old: null, new: 512}}
operation:
  description: The work that goes on, when it was not waited for.
  returned: when O(wait=false) and the work takes longer than a moment
  type: dict
  sample:
    id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10
    status: running
request_id:
  description: Name of the request in the agent's logs.
  returned: when the agent has answered
  type: str
  sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11
error:
  description: "For programs: V(code) says what kind of failure it is, V(details) has the values."
  returned: on failure
  type: dict
  sample:
    code: invalid-field
    details:
      field: name
      rule: is required
    request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import Flavor
from ansible_collections.magnetar.compute.plugins.module_utils.modules.resource import ResourceModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run

MODULE = ResourceModule(Flavor)

if __name__ == "__main__":
    run(MODULE)
