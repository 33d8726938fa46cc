#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: rbac_policy
version_added: "0.1.0"
short_description: Share things of a project with another one
description:
  - Allows another project of a cloud to use a network, security group, QoS policy or address group of this one, or
    ends that.
  - A policy has no name. Its options identify it, so O(state=absent) takes the same options.
  - A policy is not removed while another project uses the object through it. Project V(*), which means all projects,
    and external networks need the role V(admin).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.rbac_policy
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.rbac_policy_info
  - module: magnetar.compute.network
  - module: magnetar.compute.security_group
"""

EXAMPLES = r"""
- name: A network for two projects
  magnetar.compute.network:
    cloud: mycloud
    name: backbone
    mode: ovn

- name: The other project may have ports on it
  magnetar.compute.rbac_policy:
    cloud: mycloud
    object_type: network
    object: backbone
    target_project: 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a

- name: Not any more
  magnetar.compute.rbac_policy:
    cloud: mycloud
    object_type: network
    object: backbone
    target_project: 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a
    state: absent

- name: Remove the network
  magnetar.compute.network:
    cloud: mycloud
    name: backbone
    state: absent
"""

RETURN = r"""
rbac_policy:
  description: 'The RBAC policy after the task; in check mode, as it would be. With O(state=absent), the last known RBAC
      policy, or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    id: {description: The uuid., type: str, sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: 'TYPE:ACTION:PROJECT:OBJECT.', type: str,
        sample: 'network:access_as_shared:0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a:5b6c0a4e-9f0a-4d0e-8a55-7b1f6a0c2d11'}
    object_type: {description: Kind of the thing., type: str, sample: network}
    object: {description: 'The thing, by name or uuid.', type: str, sample: 5b6c0a4e-9f0a-4d0e-8a55-7b1f6a0c2d11}
    action: {description: 'The permission of the project: use the object, or (networks only, by administrators) use
          it as an external network.', type: str, sample: access_as_shared}
    target_project: {description: 'The project, by id; for administrators also by name. C(*) means all projects, for
          administrators only.', type: str, sample: 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {action: {old: null, new: access_as_shared}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.rbac_policy import RbacPolicyModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = RbacPolicyModule()

if __name__ == "__main__":
    run_module_process(MODULE)
