#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: security_group_rule
version_added: "0.2.0"
short_description: Manage single rules of a security group
description:
  - Adds a rule to a security group, or removes it. Other rules of the group stay.
  - A rule has no name. Its options identify it, so O(state=absent) takes the same options.
  - M(magnetar.compute.security_group) manages all rules of a group as one list.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.security_group_rule
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.security_group
  - module: magnetar.compute.security_group_rule_info
"""

EXAMPLES = r"""
- name: Allow SSH from the office
  magnetar.compute.security_group_rule:
    cloud: mycloud
    security_group: web
    protocol: tcp
    port_range_min: 22
    port_range_max: 22
    remote_ip_prefix: 192.0.2.0/24

- name: Allow ping from servers of the same group
  magnetar.compute.security_group_rule:
    cloud: mycloud
    security_group: web
    protocol: icmp
    remote_group: web
    description: ping between web servers

- name: No SSH from the office any more
  magnetar.compute.security_group_rule:
    cloud: mycloud
    security_group: web
    protocol: tcp
    port_range_min: 22
    port_range_max: 22
    remote_ip_prefix: 192.0.2.0/24
    state: absent
"""

RETURN = r"""
rule:
  description: The rule after the task; in check mode, as it would be. V(null) with O(state=absent).
  returned: on success
  type: dict
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
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value., returned: on success,
    type: dict, sample: {rules: {old: [], new: [{direction: ingress, protocol: tcp}]}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API was asked for a change,
    type: str, sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process
from ansible_collections.magnetar.compute.plugins.module_utils.twins.security_group_rule import SecurityGroupRuleModule

MODULE = SecurityGroupRuleModule()

if __name__ == "__main__":
    run_module_process(MODULE)
