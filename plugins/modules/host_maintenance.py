#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_maintenance
version_added: "0.1.0"
short_description: Drain a host of a cloud, or enable it again
description:
  - Disables the compute service of a host, and moves its servers to other hosts. Running and paused servers move live,
    servers that are off move cold, and shelved ones are offloaded.
  - Servers that may not move stay, and C(stays) says why. The task does not fail then. Another run tries them again.
  - The conductors of the cloud do the work, also after the task has ended. Needs the role V(admin).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.host_maintenance
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.host_maintenance_info
  - module: magnetar.compute.compute_service
  - module: magnetar.compute.migration
"""

EXAMPLES = r"""
- name: Drain kvm1
  magnetar.compute.host_maintenance:
    cloud: mycloud
    name: kvm1
    state: maintenance
    reason: new memory on Friday
    timeout: 7200
  register: drained

- name: No server is left
  ansible.builtin.assert:
    that: drained.host_maintenance.stays | length == 0
    fail_msg: "{{ drained.host_maintenance.stays }}"

- name: Create new servers on it again
  magnetar.compute.host_maintenance:
    cloud: mycloud
    name: kvm1
    state: enabled
"""

RETURN = r"""
host_maintenance:
  description: 'The host maintenance after the task; in check mode, as it would be.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    id: {description: The uuid of the host's compute service., type: str, sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The host's name., type: str, sample: kvm1}
    state: {description: 'C(maintenance) disables the host''s compute service and moves its servers to other hosts;
          C(enabled) enables the service again, and moves nothing back. Reported as C(disabled) for a service that was
          disabled without a drain.', type: str, sample: maintenance}
    reason: {description: The reason that lists of services show; only with C(maintenance)., type: str, sample: new
          memory}
    drain: {description: 'Progress of the drain: C(draining), C(drained), or C(ending) while its last moves continue
          after the host was enabled. Null without a drain.', type: str, sample: drained}
    message: {description: The reason why the drain does not proceed., type: str}
    moved: {description: 'Servers that have left the host: {id, name, how, to}. C(how) is live, cold or offload.',
        type: list, elements: dict, sample: [{id: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d, name: web1, how: live,
            to: kvm2}]}
    stays: {description: 'Servers that stay: {id, name, reason}.', type: list, elements: raw, sample: []}
    moving: {description: 'Servers that are being moved: {id, name, how}.', type: list, elements: raw, sample: []}
    waiting: {description: 'Servers on the host that are not moved yet: {id, name}.', type: list, elements: raw,
        sample: []}
    volumes: {description: Number of volumes that the host stores. They stay there., type: int, sample: 0}
    started_at: {description: When the drain was last requested., type: str, sample: '2026-11-20T20:00:00Z'}
    finished_at: {description: When nothing was left to do., type: str, sample: '2026-11-20T20:04:00Z'}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record, disable]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {state: {old: enabled, new: maintenance}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.host_maintenance import HostMaintenanceModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = HostMaintenanceModule()

if __name__ == "__main__":
    run_module_process(MODULE)
