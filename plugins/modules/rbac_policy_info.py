#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: rbac_policy_info
version_added: "0.1.0"
short_description: Report the sharing of objects between projects
description:
  - Reports the RBAC policies of the project.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.rbac_policy_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.rbac_policy
"""

EXAMPLES = r"""
- name: All RBAC policies
  magnetar.compute.rbac_policy_info:
    cloud: mycloud
  register: all

- name: The objects that all projects may use
  magnetar.compute.rbac_policy_info:
    cloud: mycloud
    filters:
      target_project: "*"
    fields: [object_type, object]
"""

RETURN = r"""
rbac_policies:
  description: The matching RBAC policies; empty when there are none.
  returned: on success
  type: list
  elements: dict
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
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import RbacPolicy
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(RbacPolicy)

if __name__ == "__main__":
    run_module_process(MODULE)
