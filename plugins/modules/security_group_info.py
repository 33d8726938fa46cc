#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: security_group_info
version_added: "0.1.0"
short_description: Report the security groups of a cloud
description:
  - Reports the security groups of the project, with their rules.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.security_group_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.security_group
"""

EXAMPLES = r"""
- name: All security groups
  magnetar.compute.security_group_info:
    cloud: mycloud
  register: all

- name: The rules of one
  magnetar.compute.security_group_info:
    cloud: mycloud
    name: web
    fields: [name, rules]
"""

RETURN = r"""
security_groups:
  description: The matching security groups; empty when there are none.
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
    stateful: {description: 'Whether the group is stateful: replies to allowed traffic need no rule.', type: bool,
        sample: true}
    rules: {description: 'All of its rules: other rules are removed, and duplicates count once. An omitted
          port_range_max equals port_range_min. Without this option, a new group has the cloud''s default rules,
          and an existing group keeps its rules.', type: list, elements: dict, sample: [{direction: ingress,
            ethertype: IPv4, protocol: tcp, port_range_min: 22, port_range_max: 22, remote_ip_prefix: 192.0.2.0/24,
            remote_group: null, remote_address_group: null, description: ''}]}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import SecurityGroup
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(SecurityGroup)

if __name__ == "__main__":
    run_module_process(MODULE)
