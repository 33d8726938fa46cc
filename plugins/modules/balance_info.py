#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: balance_info
version_added: "0.1.0"
short_description: Report the load of a cloud's hosts, and moves that would even it out
description:
  - Reports, for each cell, the CPUs and memory that the hosts really use, and the live migrations that would even out
    their load or free one host. Nothing is moved.
  - Needs the role V(admin).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.balance_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.balance
  - module: magnetar.compute.capacity_info
"""

EXAMPLES = r"""
- name: All cells
  magnetar.compute.balance_info:
    cloud: mycloud
  register: result

- name: Name the most loaded host
  ansible.builtin.debug:
    msg: "{{ (result.balances[0].hosts | sort(attribute='load') | map(attribute='name') | list)[-1:] }}"

- name: The moves that would free kvm1
  magnetar.compute.balance_info:
    cloud: mycloud
    free_host: kvm1
"""

RETURN = r"""
balances:
  description: The matching balances; empty when there are none.
  returned: on success
  type: list
  elements: dict
  contains:
    id: {description: The uuid of the cell., type: str, sample: 5f0a2c1e-9d3b-4c55-8f51-0e6d1b7a9c20}
    name: {description: The cell's name., type: str, sample: cell1}
    state: {description: C(balanced) does the proposed moves. Reported as C(unbalanced) while moves are proposed.,
        type: str, sample: balanced}
    free_host: {description: 'Move the running servers of this host to other hosts, instead of evening out the load
          of all hosts.', type: str}
    max_moves: {description: 'The most moves; by default 10, and with C(free_host) as many as needed.', type: int}
    keep_going: {description: Whether the next move is done after one that failed., type: bool, sample: false}
    hosts: {description: 'The hosts: {name, cpus, cpus_used, memory_mb, memory_mb_used, load}. C(load) is the greater
          share in use, from 0 to 1.', type: list, elements: dict, sample: [{name: kvm1, cpus: 64, cpus_used: 51.2,
            memory_mb: 257000, memory_mb_used: 90000, load: 0.8}]}
    moves: {description: 'The proposed moves in their order: {id, name, source, target, cpus_used, memory_mb_used,
          reason}.', type: list, elements: dict, sample: [{id: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d, name: web1,
            source: kvm1, target: kvm2, cpus_used: 12.5, memory_mb_used: 4096, reason: 'kvm1 80% -> 60%, kvm2 20%
              -> 40% (CPU of kvm1; mean 50%)'}]}
    stays: {description: 'Hosts that should give a server and cannot, or servers that stay on the host to be freed:
          {name, reason}.', type: list, elements: raw, sample: []}
    unmeasured: {description: 'Hosts that take no part: {name, reason}.', type: list, elements: dict, sample: [
          {name: kvm9, reason: It is down.}]}
    dropped: {description: Number of moves that are not proposed because after them a host could not fail any more.,
        type: int, sample: 0}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.balance import BalanceInfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = BalanceInfoModule()

if __name__ == "__main__":
    run_module_process(MODULE)
