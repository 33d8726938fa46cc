#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: capacity_info
version_added: "0.1.0"
short_description: Report whether a cloud has room for the servers of a failed host
description:
  - Reports for the cloud, for each availability zone and for each aggregate whether all servers of each of their hosts
    would find a place on other hosts (N+1).
  - The scheduler places the servers of one host after the other in memory, with all of its filters. Nothing is claimed
    or moved.
  - Needs the role V(admin).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.capacity_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.hypervisor_info
  - module: magnetar.compute.compute_service
"""

EXAMPLES = r"""
- name: The whole cloud, its zones and aggregates
  magnetar.compute.capacity_info:
    cloud: mycloud
  register: result

- name: Stop unless any one host may fail
  ansible.builtin.assert:
    that: result.capacities[0].holds
    fail_msg: "{{ result.capacities[0].reason }}"

- name: One zone
  magnetar.compute.capacity_info:
    cloud: mycloud
    zone: nova
"""

RETURN = r"""
capacities:
  description: 'The cloud, its zones and its aggregates; with O(zone) or O(aggregate) only these.'
  returned: on success
  type: list
  elements: dict
  contains:
    name: {description: 'C(cloud), or the name of the zone or aggregate.', type: str, sample: cloud}
    scope: {description: The hosts that are meant., type: str, sample: cloud}
    zone: {description: 'The zone, for its report.', type: str}
    aggregate: {description: 'The aggregate, for its report.', type: str}
    holds: {description: Whether all servers of each host have a place on other hosts., type: bool, sample: false}
    reason: {description: 'Why, in a sentence.', type: str, sample: '1 of 3 hosts may not fail. kvm3: 1 of 12 servers
          have no place on another host (web1). Of 3 hosts the filters refused: RamFilter 2, RetryFilter 1.'}
    hosts: {description: Number of hosts., type: int, sample: 3}
    servers: {description: Number of servers on them., type: int, sample: 36}
    lacking: {description: 'The hosts that may not fail: {host, servers, unplaced, examples, reason}. C(unplaced)
          is the number of servers without a place, C(examples) has the ids and names of the largest, C(servers)
          is null if the host''s cell does not answer.', type: list, elements: dict, sample: [{host: kvm3, servers: 12,
            unplaced: 1, examples: [{id: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d, name: web1}], reason: 'Of 3 hosts
              the filters refused: RamFilter 2, RetryFilter 1.'}]}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.capacity import CapacityInfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = CapacityInfoModule()

if __name__ == "__main__":
    run_module_process(MODULE)
