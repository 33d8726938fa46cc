#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: address_group
version_added: "0.1.0"
short_description: Manage address groups of a cloud
description:
  - Creates, updates or removes an address group. Rules of security groups name it and allow its addresses. Changes
    reach running servers immediately.
  - For clouds with OVN. A group in use by a rule is not removed.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.address_group
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.address_group_info
  - module: magnetar.compute.security_group
  - module: magnetar.compute.rbac_policy
"""

EXAMPLES = r"""
- name: The office's addresses, all of them
  magnetar.compute.address_group:
    cloud: mycloud
    name: office
    addresses: [192.0.2.0/24, 198.51.100.7]

- name: They have moved
  magnetar.compute.address_group:
    cloud: mycloud
    name: office
    addresses: [203.0.113.0/24]

- name: Those may log in
  magnetar.compute.security_group:
    cloud: mycloud
    name: ssh
    rules:
      - {protocol: tcp, port_range_min: 22, remote_address_group: office}
      - {direction: egress}

- name: Nobody may
  magnetar.compute.security_group:
    cloud: mycloud
    name: ssh
    rules: []

- name: Remove it
  magnetar.compute.address_group:
    cloud: mycloud
    name: office
    state: absent
"""

RETURN = r"""
address_group:
  description: 'The address group after the task; in check mode, as it would be. With O(state=absent), the last known
      address group, or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    id: {description: 'The uuid; generated when the resource is created, unless given.', type: str,
        sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The name., type: str, sample: web1}
    description: {description: Free text of at most 255 characters., type: str, sample: for the shop}
    created_at: {description: 'When it was created, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    updated_at: {description: 'When it was last changed, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    addresses: {description: 'All addresses and networks that it has: others are removed. They stay as they are when
          omitted.', type: list, elements: str, sample: [192.0.2.0/24]}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {addresses: {old: [192.0.2.0/24], new: [198.51.100.7/32]}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import AddressGroup
from ansible_collections.magnetar.compute.plugins.module_utils.modules.resource import ResourceModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = ResourceModule(AddressGroup)

if __name__ == "__main__":
    run_module_process(MODULE)
