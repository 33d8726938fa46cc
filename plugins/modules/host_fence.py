#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_fence
version_added: "0.1.0"
short_description: Fence a host of a cloud, or unfence it
description:
  - Switches a host off by its fence agent, confirms that, and keeps it disabled and down until it is unfenced. Its
    servers lose their power without a shutdown.
  - A conductor of the host's cell does the work with its settings C(fencing), also after the task has ended. The
    task fails if no conductor has served the request within ten minutes, and the request is dropped.
  - The task believes the last result, and runs no agent for a host that is fenced already. C(magnetar host
    fence-status) asks the devices. Needs the role V(admin).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.host_fence
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.host_fence_info
  - module: magnetar.compute.host_maintenance
  - module: magnetar.compute.compute_service
"""

EXAMPLES = r"""
- name: Cut the power of kvm1, whatever runs on it
  magnetar.compute.host_fence:
    cloud: mycloud
    name: kvm1
    state: fenced
    timeout: 600

- name: Use kvm1 again
  magnetar.compute.host_fence:
    cloud: mycloud
    name: kvm1
    state: unfenced

- name: Record that kvm2 was switched off by hand
  magnetar.compute.host_fence:
    cloud: mycloud
    name: kvm2
    state: fenced
    confirmed: true
"""

RETURN = r"""
host_fence:
  description: 'The host fence after the task; in check mode, as it would be.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    id: {description: The uuid of the host's compute service., type: str, sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The host's name., type: str, sample: kvm1}
    state: {description: 'C(fenced) switches the host off by its fence agent, confirms that, and keeps it
          disabled and down. C(unfenced) switches it on, and gives it back its earlier status. Reported as
          C(requested) while an attempt works or after it was interrupted, and as C(failed) if the host is
          not off for certain.', type: str, sample: fenced}
    agent: {description: The fence agent of the last fencing; C(by hand) for a confirmed one., type: str,
        sample: fence_redfish}
    message: {description: 'The result of the last attempt, or the reason of its failure.', type: str, sample: 'Fenced
          at 2026-11-20T20:00:00 for ann@admin. Switched off by fence_redfish. Use it again with: magnetar host unfence
          kvm1'}
    requested_by: {description: The user or evacuation that requested the last fencing., type: str, sample: ann@admin}
    requested_at: {description: When the last fencing was requested., type: str, sample: '2026-11-20T20:00:00Z'}
    confirmed_at: {description: When the fence agent last said that the host is off., type: str,
        sample: '2026-11-20T20:00:04Z'}
    ended_at: {description: When the last attempt ended., type: str, sample: '2026-11-20T20:00:04Z'}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record, fence]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {state: {old: unfenced, new: fenced}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.host_maintenance import HostFenceModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = HostFenceModule()

if __name__ == "__main__":
    run_module_process(MODULE)
