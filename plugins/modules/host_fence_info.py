#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_fence_info
version_added: "0.1.0"
short_description: Report the fences of a cloud's hosts
description:
  - Reports the hosts that were ever fenced, with the result of the last attempt.
  - The state is the recorded one. C(magnetar host fence-status) asks the devices. Needs the role V(admin).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.host_fence_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.host_fence
"""

EXAMPLES = r"""
- name: All hosts that were ever fenced
  magnetar.compute.host_fence_info:
    cloud: mycloud

- name: Hosts whose fencing failed
  magnetar.compute.host_fence_info:
    cloud: mycloud
  register: result
  failed_when: result.host_fences | selectattr('state', 'eq', 'failed') | list | length > 0
"""

RETURN = r"""
host_fences:
  description: The matching host fences; empty when there are none.
  returned: on success
  type: list
  elements: dict
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
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import HostFence
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(HostFence)

if __name__ == "__main__":
    run_module_process(MODULE)
