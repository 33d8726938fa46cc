#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: balance
version_added: "0.1.0"
short_description: Even out the load of a cloud's hosts, or free one
description:
  - Moves a few running servers live between the hosts of a cell, by the CPUs and memory that hosts and servers really
    use. The scheduler checks each move, a server is not moved twice within an hour, and a host that may fail before
    may fail afterwards.
  - The moves are done one after the other. The first failure ends the task unless O(keep_going). Another run starts
    from the load at that time.
  - In check mode, the proposed moves are returned. Needs the role V(admin).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.balance
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.balance_info
  - module: magnetar.compute.capacity_info
  - module: magnetar.compute.host_maintenance
"""

EXAMPLES = r"""
- name: Even out the load of the hosts of cell1
  magnetar.compute.balance:
    cloud: mycloud
    name: cell1
    max_moves: 5
    timeout: 7200

- name: Move the running servers of kvm4 to other hosts
  magnetar.compute.balance:
    cloud: mycloud
    name: cell1
    free_host: kvm4
    timeout: 7200
"""

RETURN = r"""
balance:
  description: 'The balance after the task; in check mode, as it would be.'
  returned: 'on success, unless a running operation is returned'
  type: dict
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
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record, move]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {state: {old: unbalanced, new: balanced}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.balance import BalanceModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = BalanceModule()

if __name__ == "__main__":
    run_module_process(MODULE)
