#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: qos_policy
version_added: "0.1.0"
short_description: Manage QoS policies of a cloud, with their rules
description:
  - Creates, updates or removes a QoS policy. Its rules are one list; other rules are removed in the same transaction.
    Changes act immediately on the ports with the policy, and on ports of networks with the policy.
  - For administrators of clouds with OVN. Projects set their own policies and shared policies on their networks and
    ports (O(magnetar.compute.port#module:qos_policy)). A policy in use is not removed.
  - Servers claim the bandwidth of rules of type V(minimum_bandwidth) on their hosts. Such a rule cannot change while
    a server has a port with the policy.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.qos_policy
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.qos_policy_info
  - module: magnetar.compute.port
  - module: magnetar.compute.network
  - module: magnetar.compute.rbac_policy
"""

EXAMPLES = r"""
- name: Ten megabits in and out, for all projects
  magnetar.compute.qos_policy:
    cloud: mycloud
    name: slow
    shared: true
    rules:
      - {type: bandwidth_limit, max_kbps: 10000, max_burst_kbps: 1000}
      - {type: bandwidth_limit, direction: ingress, max_kbps: 10000}

- name: Mark sent packets, without other rules
  magnetar.compute.qos_policy:
    cloud: mycloud
    name: slow
    rules:
      - {type: dscp_marking, dscp_mark: 26}

- name: A port that has it is promised a gigabit in and out
  magnetar.compute.qos_policy:
    cloud: mycloud
    name: paid
    rules:
      - {type: minimum_bandwidth, min_kbps: 1000000}
      - {type: minimum_bandwidth, direction: ingress, min_kbps: 1000000}

- name: New networks of this project have it
  magnetar.compute.qos_policy:
    cloud: mycloud
    name: slow
    is_default: true

- name: Remove it
  magnetar.compute.qos_policy:
    cloud: mycloud
    name: slow
    state: absent
"""

RETURN = r"""
qos_policy:
  description: 'The QoS policy after the task; in check mode, as it would be. With O(state=absent), the last known QoS
      policy, or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    id: {description: 'The uuid; generated when the resource is created, unless given.', type: str,
        sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The name., type: str, sample: web1}
    description: {description: Free text of at most 255 characters., type: str, sample: for the shop}
    created_at: {description: 'When it was created, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    updated_at: {description: 'When it was last changed, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    shared: {description: Whether all projects may use it., type: bool, sample: false}
    is_default: {description: Whether new networks of its project have it., type: bool, sample: false}
    rules: {description: 'All rules that it has, one of a type and direction: others are removed. They stay as
          they are when omitted.', type: list, elements: dict, sample: [{type: bandwidth_limit, direction: egress,
            max_kbps: 10000, max_burst_kbps: 0, dscp_mark: null, min_kbps: null}]}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {shared: {old: false, new: true}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import QosPolicy
from ansible_collections.magnetar.compute.plugins.module_utils.modules.resource import ResourceModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = ResourceModule(QosPolicy)

if __name__ == "__main__":
    run_module_process(MODULE)
