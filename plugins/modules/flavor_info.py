#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: flavor_info
version_added: "0.1.0"
short_description: Report flavors
description:
  - Reports the flavors of a host or a cloud. An empty result is not a failure.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.flavor_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.flavor
"""

EXAMPLES = r"""
- name: All flavors
  magnetar.compute.flavor_info:
  register: all

- name: One flavor
  magnetar.compute.flavor_info:
    name: one

- name: Some flavors, by pattern and field
  magnetar.compute.flavor_info:
    name: o*
    filters:
      vcpus: 1

- name: Names only, sorted
  magnetar.compute.flavor_info:
    fields: [id, name]
    sort: name
    limit: 100
"""

RETURN = r"""
flavors:
  description: The matching flavors; empty when there are none.
  returned: on success
  type: list
  elements: dict
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
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process
from ansible_collections.magnetar.compute.plugins.module_utils.twins.flavor_info import FlavorInfoModule

MODULE = FlavorInfoModule()

if __name__ == "__main__":
    run_module_process(MODULE)
