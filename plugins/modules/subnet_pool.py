#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: subnet_pool
version_added: "0.1.0"
short_description: Manage subnet pools of a cloud
description:
  - Creates, updates or removes a subnet pool. Subnets get parts of its prefixes, so that no two overlap.
  - Prefixes can be added, and not removed. A pool that has a subnet is not removed.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.subnet_pool
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.subnet_pool_info
  - module: magnetar.compute.subnet
  - module: magnetar.compute.address_scope
  - module: magnetar.compute.rbac_policy
"""

EXAMPLES = r"""
- name: Addresses of the lab
  magnetar.compute.subnet_pool:
    cloud: mycloud
    name: lab
    prefixes: [10.20.0.0/16]
    default_prefixlen: 26

- name: A network
  magnetar.compute.network:
    cloud: mycloud
    name: bench
    mode: ovn

- name: A subnet of them
  magnetar.compute.subnet:
    cloud: mycloud
    name: bench-v4
    network: bench
    subnet_pool: lab

- name: There are more now, and no project gets more than 1024
  magnetar.compute.subnet_pool:
    cloud: mycloud
    name: lab
    prefixes: [10.20.0.0/16, 10.40.0.0/16]
    default_prefixlen: 26
    default_quota: 1024

- name: Remove it
  magnetar.compute.subnet:
    cloud: mycloud
    name: bench-v4
    state: absent

- name: Remove the pool
  magnetar.compute.subnet_pool:
    cloud: mycloud
    name: lab
    state: absent
"""

RETURN = r"""
subnet_pool:
  description: 'The subnet pool after the task; in check mode, as it would be. With O(state=absent), the last known
      subnet pool, or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    id: {description: 'The uuid; generated when the resource is created, unless given.', type: str,
        sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The name., type: str, sample: web1}
    description: {description: Free text of at most 255 characters., type: str, sample: for the shop}
    created_at: {description: 'When it was created, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    updated_at: {description: 'When it was last changed, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    prefixes: {description: 'Its prefixes, of one IP version. Prefixes can be added, and not removed.', type: list,
        elements: str, sample: [10.20.0.0/16]}
    default_prefixlen: {description: 'Length in bits of a subnet''s prefix if its request names none. Default of a new
          pool: C(min_prefixlen).', type: int, sample: 26}
    min_prefixlen: {description: 'Smallest length in bits of a subnet''s prefix. Default of a new pool: C(8), for IPv6
          C(64).', type: int, sample: 8}
    max_prefixlen: {description: 'Largest length in bits of a subnet''s prefix. Default of a new pool: the whole
          address.', type: int, sample: 32}
    default_quota: {description: 'Quota of each project: addresses of IPv4, or networks of 64 bits of IPv6; no limit
          when omitted.', type: int}
    address_scope: {description: 'Its address scope, by name or uuid; C(none) for none.', type: str}
    shared: {description: Whether all projects may have subnets of it; administrators say so., type: bool,
        sample: false}
    is_default: {description: Whether it is the default pool; administrators say so., type: bool, sample: false}
    ip_version: {description: C(4) or C(6)., type: int, sample: 4}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {prefixes: {old: [10.20.0.0/16], new: [10.20.0.0/15]}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import SubnetPool
from ansible_collections.magnetar.compute.plugins.module_utils.modules.resource import ResourceModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = ResourceModule(SubnetPool)

if __name__ == "__main__":
    run_module_process(MODULE)
