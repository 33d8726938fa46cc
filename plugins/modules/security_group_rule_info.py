#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: security_group_rule_info
version_added: "0.2.0"
short_description: Report rules of security groups
description:
  - Reports the rules of the security groups of the project, or of one group.
  - Options select the rules that have the same value.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.security_group_rule_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.security_group_rule
  - module: magnetar.compute.security_group_info
"""

EXAMPLES = r"""
- name: All rules of a group
  magnetar.compute.security_group_rule_info:
    cloud: mycloud
    security_group: web

- name: Rules that let SSH in
  magnetar.compute.security_group_rule_info:
    cloud: mycloud
    direction: ingress
    protocol: tcp
    port_range_min: 22
"""

RETURN = r"""
security_group_rules:
  description: The matching rules; empty when there are none.
  returned: on success
  type: list
  elements: dict
  contains:
    direction: {description: 'To the ports, or from them.', type: str, sample: ingress}
    ether_type: {description: IP version., type: str, sample: IPv4}
    protocol: {description: Name or number of the IP protocol; V(null) for any., type: str, sample: tcp}
    port_range_min: {description: 'The first port, or the type of ICMP; V(null) for any.', type: int, sample: 22}
    port_range_max: {description: 'The last port, or the code of ICMP; V(null) for any.', type: int, sample: 22}
    remote_ip_prefix: {description: From or to these addresses only., type: str, sample: 192.0.2.0/24}
    remote_group_id: {description: Uuid of the security group of the other side., type: str}
    remote_address_group_id: {description: Uuid of the address group of the other side., type: str}
    description: {description: Free text., type: str, sample: SSH from the office}
    security_group_id: {description: Uuid of the security group., type: str,
        sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process
from ansible_collections.magnetar.compute.plugins.module_utils.twins.security_group_rule import (
    SecurityGroupRuleInfoModule,
)

MODULE = SecurityGroupRuleInfoModule()

if __name__ == "__main__":
    run_module_process(MODULE)
