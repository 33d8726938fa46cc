#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: default_security_group_rule
version_added: "0.1.0"
short_description: Manage the rules that new security groups of a cloud begin with
description:
  - Creates or removes a rule that new security groups of all projects start with. Existing groups keep their rules.
  - A new cloud has four, as Neutron does. They allow all outgoing traffic of all groups, and traffic between ports
    with the same C(default) group.
  - A rule has no name. Its options identify it, so O(state=absent) takes the same options.
  - Administrators create and remove such rules, and all projects see them.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.default_security_group_rule
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.default_security_group_rule_info
  - module: magnetar.compute.security_group
"""

EXAMPLES = r"""
- name: SSH from the office into all groups that projects make
  magnetar.compute.default_security_group_rule:
    cloud: mycloud
    protocol: tcp
    port_range_min: 22
    remote_ip_prefix: 192.0.2.0/24
    description: SSH from the office

- name: Ping into each project's group default
  magnetar.compute.default_security_group_rule:
    cloud: mycloud
    protocol: icmp
    port_range_min: 8
    used_in_default_sg: true
    used_in_non_default_sg: false

- name: No SSH from the office any more
  magnetar.compute.default_security_group_rule:
    cloud: mycloud
    protocol: tcp
    port_range_min: 22
    remote_ip_prefix: 192.0.2.0/24
    state: absent

- name: Nor ping
  magnetar.compute.default_security_group_rule:
    cloud: mycloud
    protocol: icmp
    port_range_min: 8
    used_in_default_sg: true
    used_in_non_default_sg: false
    state: absent
"""

RETURN = r"""
default_security_group_rule:
  description: 'The default security group rule after the task; in check mode, as it would be. With O(state=absent), the
      last known default security group rule, or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
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
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {direction: {old: null, new: ingress}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.default_security_group_rule import (
    DefaultSecurityGroupRuleModule,
)
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = DefaultSecurityGroupRuleModule()

if __name__ == "__main__":
    run_module_process(MODULE)
