#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: incident_info
version_added: "0.1.0"
short_description: Report hosts of a cloud that have died
description:
  - Reports the incidents of hosts that have died, with the servers that were evacuated, and those that could not be.
  - A name stands for the incidents of this host.
  - Needs the role V(admin).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.incident_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.capacity_info
  - module: magnetar.compute.host_maintenance
"""

EXAMPLES = r"""
- name: The last incidents of all hosts
  magnetar.compute.incident_info:
    cloud: mycloud
  register: all

- name: Stop if a dead host needs people
  magnetar.compute.incident_info:
    cloud: mycloud
    filters:
      state: failed
  register: result
  failed_when: result.incidents | length > 0
"""

RETURN = r"""
incidents:
  description: 'The last 200 incidents, newest first.'
  returned: on success
  type: list
  elements: dict
  contains:
    id: {description: The incident's uuid., type: str, sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The host's name; the cell's name for an incident of a whole cell., type: str, sample: kvm1}
    host: {description: The host; null for an incident of a whole cell., type: str, sample: kvm1}
    cell: {description: The name of the host's cell., type: str, sample: cell1}
    state: {description: 'Open: C(noticed), C(fencing), C(evacuating); C(blocked) by a rule, or C(failed), until people
          help. Closed: C(done), C(returned) before the fence, C(closed) by an operator.', type: str, sample: done}
    message: {description: 'What has happened, and what to do.', type: str, sample: 'Of 3 servers of host kvm1, 2 were
          evacuated, 0 could not be, and 1 remain.'}
    noticed_at: {description: When the host was noticed to be silent., type: str, sample: '2026-11-20T20:00:00Z'}
    fencing_at: {description: When its fencing was decided., type: str, sample: '2026-11-20T20:00:02Z'}
    fenced_at: {description: When it was off for certain., type: str, sample: '2026-11-20T20:00:09Z'}
    finished_at: {description: When the incident was closed., type: str, sample: '2026-11-20T20:01:00Z'}
    moved: {description: Number of servers that are on other hosts now., type: int, sample: 2}
    failed: {description: Number of servers that could not be evacuated., type: int, sample: 0}
    remaining: {description: 'Number of servers with the policy never, or deleted meanwhile.', type: int, sample: 1}
    servers: {description: 'The servers, in the order of their evacuation: {id, name, policy, priority, state, attempts,
          to, reason}. C(state) is waiting, moving, moved, failed or remains.', type: list, elements: dict, sample: [
          {id: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d, name: web1, policy: always, priority: 9, state: moved, attempts: 1,
            to: kvm2, reason: null}]}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import Incident
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(Incident)

if __name__ == "__main__":
    run_module_process(MODULE)
