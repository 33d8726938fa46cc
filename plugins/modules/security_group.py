#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: security_group
version_added: "0.1.0"
short_description: Manage security groups of a cloud, with their rules
description:
  - Creates, updates or removes a security group. Its rules are one list; other rules are removed in the same
    transaction.
  - Rules act on networks of OVN, and reach running servers immediately. A group that a port uses is not removed.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.security_group
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.security_group_info
  - module: magnetar.compute.port
  - module: magnetar.compute.server
"""

EXAMPLES = r"""
- name: Web servers, reached by all; SSH from the office
  magnetar.compute.security_group:
    cloud: mycloud
    name: web
    rules:
      - {protocol: tcp, port_range_min: 80}
      - {protocol: tcp, port_range_min: 443}
      - {protocol: tcp, port_range_min: 22, remote_ip_prefix: 192.0.2.0/24}
      - {protocol: icmp, port_range_min: 8}
      - {direction: egress}

- name: The database, reached by web servers and its own copies
  magnetar.compute.security_group:
    cloud: mycloud
    name: db
    rules:
      - {protocol: tcp, port_range_min: 5432, remote_group: web}
      - {protocol: tcp, port_range_min: 5432, port_range_max: 5440, remote_group: db}
      - {direction: egress}

- name: Nothing passes
  magnetar.compute.security_group:
    cloud: mycloud
    name: closed
    rules: []

- name: Remove it
  magnetar.compute.security_group:
    cloud: mycloud
    name: closed
    state: absent
"""

RETURN = r"""
security_group:
  description: 'The security group after the task; in check mode, as it would be. With O(state=absent), the last known
      security group, or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    id: {description: 'The uuid; generated when the resource is created, unless given.', type: str,
        sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The name., type: str, sample: web1}
    description: {description: Free text of at most 255 characters., type: str, sample: for the shop}
    created_at: {description: 'When it was created, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    updated_at: {description: 'When it was last changed, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    stateful: {description: 'Whether the group is stateful: replies to allowed traffic need no rule.', type: bool,
        sample: true}
    rules: {description: 'All of its rules: other rules are removed, and duplicates count once. An omitted
          port_range_max equals port_range_min. Without this option, a new group has the cloud''s default rules,
          and an existing group keeps its rules.', type: list, elements: dict, sample: [{direction: ingress,
            ethertype: IPv4, protocol: tcp, port_range_min: 22, port_range_max: 22, remote_ip_prefix: 192.0.2.0/24,
            remote_group: null, remote_address_group: null, description: ''}]}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {stateful: {old: null, new: true}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import SecurityGroup
from ansible_collections.magnetar.compute.plugins.module_utils.modules.resource import ResourceModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = ResourceModule(SecurityGroup)

if __name__ == "__main__":
    run_module_process(MODULE)
