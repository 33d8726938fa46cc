#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: default_security_group_rule_info
version_added: "0.1.0"
short_description: Report the rules that new security groups of a cloud begin with
description:
  - Reports the default security group rules of a cloud, which are the same for all projects.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.default_security_group_rule_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.default_security_group_rule
"""

EXAMPLES = r"""
- name: All default rules
  magnetar.compute.default_security_group_rule_info:
    cloud: mycloud
  register: all

- name: The initial rules of new groups
  magnetar.compute.default_security_group_rule_info:
    cloud: mycloud
    filters:
      direction: ingress
    fields: [protocol, port_range_min, port_range_max, remote_ip_prefix]
"""

RETURN = r"""
default_security_group_rules:
  description: The matching default security group rules; empty when there are none.
  returned: on success
  type: list
  elements: dict
  contains:
    id: {description: The uuid., type: str, sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: 'USES,DIRECTION,ETHERTYPE,PROTOCOL,MIN,MAX,REMOTE.', type: str,
        sample: 'other,ingress,IPv4,tcp,22,22,192.0.2.0/24'}
    direction: {description: 'To the ports, or from them.', type: str, sample: ingress}
    ethertype: {description: IP version., type: str, sample: IPv4}
    protocol: {description: Name or number of the IP protocol; any when omitted., type: str, sample: tcp}
    port_range_min: {description: 'The first port, or the type of ICMP.', type: int, sample: 22}
    port_range_max: {description: 'The last port, or the code of ICMP. Defaults to C(port_range_min), except for ICMP.',
        type: int, sample: 22}
    remote_ip_prefix: {description: From or to these addresses only., type: str, sample: 192.0.2.0/24}
    remote_group: {description: 'From or to ports of this security group only, by name or uuid, which is shared with all
          projects; C(PARENT) for the new group itself.', type: str}
    remote_address_group: {description: 'From or to addresses of this address group only, by name or uuid, which is
          shared with all projects.', type: str}
    used_in_default_sg: {description: Whether the C(default) groups of projects that have none yet begin with it.,
        type: bool, sample: false}
    used_in_non_default_sg: {description: Whether other new groups begin with it., type: bool, sample: true}
    description: {description: Free text of at most 255 characters., type: str, sample: SSH from the office}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import DefaultSecurityGroupRule
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(DefaultSecurityGroupRule)

if __name__ == "__main__":
    run_module_process(MODULE)
