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
  - Makes a subnet pool be present as described, or absent. Subnets are cut of its prefixes, so that no two overlap.
  - Prefixes can be added to it, and none taken away. One of which a subnet is cut is not removed.
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

- name: It is needed no more
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
  description:
    - The subnet pool as it is afterwards, or as it would be in check mode.
    - With O(state=absent) it is the last that was known of it, or V(null) if there was none.
  returned: on success, unless a running operation is returned
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
    prefixes:
      description: Its prefixes, of one IP version. More can be added, none taken away.
      type: list
      elements: str
      sample:
        - 10.20.0.0/16
    default_prefixlen:
      description: How many bits the prefix of a subnet has that says nothing. As C(min_prefixlen) of a new pool,
        else as it is, when omitted.
      type: int
      sample: 26
    min_prefixlen:
      description: How many bits it has at least. C(8), of IPv6 C(64), of a new pool, else as it is, when omitted.
      type: int
      sample: 8
    max_prefixlen:
      description: How many bits it has at most. All of an address of a new pool, else as it is, when omitted.
      type: int
      sample: 32
    default_quota:
      description: How many addresses of it each project may have, of IPv6 how many networks of 64 bits; any when
        omitted.
      type: int
    address_scope:
      description: The address scope that it is of, by name or uuid; C(none) for none.
      type: str
    shared:
      description: Whether all projects may have subnets of it; administrators say so.
      type: bool
      sample: false
    is_default:
      description: Whether subnets are of it that ask for the default pool; administrators say so.
      type: bool
      sample: false
    ip_version:
      description: C(4) or C(6).
      type: int
      sample: 4
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
  sample: {prefixes: {old: [10.20.0.0/16], new: [10.20.0.0/15]}}
operation:
  description: The work that goes on, when it was not waited for.
  returned: when O(wait=false) and the work takes longer than a moment
  type: dict
  sample:
    id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10
    status: running
request_id:
  description: Name of the request in the logs of the API.
  returned: when the API has answered
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

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import SubnetPool
from ansible_collections.magnetar.compute.plugins.module_utils.modules.resource import ResourceModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run

MODULE = ResourceModule(SubnetPool)

if __name__ == "__main__":
    run(MODULE)
