#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: compute_service
version_added: "0.1.0"
short_description: Enable, disable, force down or remove the compute service of a host
description:
  - Sets whether a compute host of a cloud gets new servers, and whether it counts as down.
  - Conductors create the service of a host; this module can remove it. Needs the role V(admin).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.compute_service
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.compute_service_info
  - module: magnetar.compute.hypervisor_info
"""

EXAMPLES = r"""
- name: Create no new servers on kvm1
  magnetar.compute.compute_service:
    cloud: mycloud
    name: kvm1
    status: disabled
    disabled_reason: new memory on Friday

- name: Create new servers on it again
  magnetar.compute.compute_service:
    cloud: mycloud
    name: kvm1
    status: enabled

- name: Count it as down, after it was switched off for sure
  magnetar.compute.compute_service:
    cloud: mycloud
    name: kvm1
    forced_down: true

- name: Remove a host without servers from the cloud
  magnetar.compute.compute_service:
    cloud: mycloud
    name: kvm1
    state: absent
"""

RETURN = r"""
compute_service:
  description: 'The compute service after the task; in check mode, as it would be. With O(state=absent), the last known
      compute service, or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    id: {description: The uuid., type: str, sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The host's name., type: str, sample: kvm1}
    binary: {description: Nova's word for the kind of service., type: str, sample: nova-compute}
    status: {description: Whether the host gets new servers., type: str, sample: enabled}
    disabled_reason: {description: The reason; only with C(disabled)., type: str}
    forced_down: {description: 'Whether it counts as down whatever its agent reports, so that its servers can be
          evacuated. Only for a host that is certainly off.', type: bool, sample: false}
    state: {description: Whether its agent has reported recently., type: str, sample: up}
    zone: {description: Its availability zone., type: str, sample: nova}
    updated_at: {description: When its agent was last heard., type: str, sample: '2026-11-20T20:00:00Z'}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {status: {old: enabled, new: disabled}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.compute_service import ComputeServiceModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = ComputeServiceModule()

if __name__ == "__main__":
    run_module_process(MODULE)
