#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: address_scope
version_added: "0.1.0"
short_description: Manage address scopes of a cloud
description:
  - Creates, updates or removes an address scope. Its subnet pools cannot overlap, even if different projects own them,
    and routers do not translate addresses between networks of the same scope.
  - A scope that has pools is not removed.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.address_scope
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.address_scope_info
  - module: magnetar.compute.subnet_pool
  - module: magnetar.compute.rbac_policy
"""

EXAMPLES = r"""
- name: Addresses that are known outside of the cloud
  magnetar.compute.address_scope:
    cloud: mycloud
    name: public
    shared: true

- name: Some of them, for all projects
  magnetar.compute.subnet_pool:
    cloud: mycloud
    name: tenants
    address_scope: public
    prefixes: [198.51.100.0/22]
    default_prefixlen: 28
    shared: true

- name: Those of IPv6
  magnetar.compute.address_scope:
    cloud: mycloud
    name: public6
    ip_version: 6

- name: Remove it
  magnetar.compute.address_scope:
    cloud: mycloud
    name: public6
    state: absent
"""

RETURN = r"""
address_scope:
  description: 'The address scope after the task; in check mode, as it would be. With O(state=absent), the last known
      address scope, or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    id: {description: 'The uuid; generated when the resource is created, unless given.', type: str,
        sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The name., type: str, sample: web1}
    description: {description: Free text of at most 255 characters., type: str, sample: for the shop}
    created_at: {description: 'When it was created, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    updated_at: {description: 'When it was last changed, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    ip_version: {description: C(4) or C(6)., type: int, sample: 4}
    shared: {description: Whether all projects may have pools of it; administrators say so., type: bool, sample: false}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {description: {old: '', new: known outside}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import AddressScope
from ansible_collections.magnetar.compute.plugins.module_utils.modules.resource import ResourceModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = ResourceModule(AddressScope)

if __name__ == "__main__":
    run_module_process(MODULE)
