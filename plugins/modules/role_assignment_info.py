#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: role_assignment_info
version_added: "0.2.0"
short_description: Report which users and groups of a cloud have which roles
description:
  - Reports role assignments. Roles that users have by a group are reported for the group. Needs the role V(admin).
  - Options take names and ids. If a role, user, group, project or domain does not exist, the list is empty.
  - Only for clouds with the embedded identity service. A cloud with a Keystone of its own refuses the task, and names
    the module of openstack.cloud to use.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.role_assignment_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.role_assignment
"""

EXAMPLES = r"""
- name: Everybody with a role in the project shop
  magnetar.compute.role_assignment_info:
    cloud: mycloud
    project: shop

- name: The roles of ann
  magnetar.compute.role_assignment_info:
    cloud: mycloud
    user: ann
    fields: [role, project, domain, system]
"""

RETURN = r"""
role_assignments:
  description: The matching role assignments; empty when there are none.
  returned: on success
  type: list
  elements: dict
  contains:
    id: {description: 'The uuid, derived from role, user or group, and target.', type: str,
        sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: 'The key, with names.', type: str, sample: 'role=member:user=ann:project=shop'}
    role: {description: 'The role, by name or id.', type: str, sample: member}
    role_id: {description: The id of the role., type: str, sample: 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a}
    user: {description: 'The user who has the role, by name or id; C(null) for a group.', type: str, sample: ann}
    user_id: {description: The id of the user., type: str, sample: 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a}
    user_domain: {description: 'The domain of the user, by name or id, where the user is given by name.', type: str,
        sample: Default}
    group: {description: 'The group whose users have the role, by name or id; C(null) for a user.', type: str,
        sample: operators}
    group_id: {description: The id of the group., type: str, sample: 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a}
    group_domain: {description: 'The domain of the group, by name or id, where the group is given by name.', type: str,
        sample: Default}
    project: {description: 'The project in which the role counts, by name or id.', type: str, sample: shop}
    project_id: {description: The id of the project., type: str, sample: 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a}
    project_domain: {description: 'The domain of the project, by name or id, where the project is given by name.',
        type: str, sample: Default}
    domain: {description: 'The domain on which the role counts, by name or id.', type: str, sample: Default}
    domain_id: {description: The id of the domain., type: str, sample: default}
    system: {description: The system as the target of the role; always C(all)., type: str, sample: all}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.identity import RoleAssignmentInfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = RoleAssignmentInfoModule()

if __name__ == "__main__":
    run_module_process(MODULE)
