#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: role_assignment
version_added: "0.2.0"
short_description: Give users and groups of a cloud roles, or take them away
description:
  - Gives a user or a group a role in a project, on a domain or on the system. Without the role, a user cannot log in
    there.
  - Names are searched in the domain of the login's project, then in all domains. If several domains have a name, name
    the domain or use an id.
  - With O(project), O(domain) is no target, but the domain of user, group and project that have no domain option of
    their own.
  - If the role, user, group, project or domain does not exist, O(state=absent) changes nothing.
  - A task that would take the role V(admin) from the user of the login is refused.
  - Only for clouds with the embedded identity service. A cloud with a Keystone of its own refuses the task, and names
    the module of openstack.cloud to use.
  - Needs the role V(admin).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.role_assignment
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.role_assignment_info
  - module: magnetar.compute.role
  - module: magnetar.compute.user
  - module: magnetar.compute.group
"""

EXAMPLES = r"""
- name: Ann uses the servers of the shop
  magnetar.compute.role_assignment:
    cloud: mycloud
    user: ann
    role: member
    project: shop

- name: Operators see all projects
  magnetar.compute.role_assignment:
    cloud: mycloud
    group: operators
    role: reader
    system: all

- name: Ann does not any more
  magnetar.compute.role_assignment:
    cloud: mycloud
    user: ann
    role: member
    project: shop
    state: absent
"""

RETURN = r"""
role_assignment:
  description: 'The role assignment after the task; in check mode, as it would be. With O(state=absent), the last known
      role assignment, or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
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
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {role: {old: null, new: member}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.identity import RoleAssignmentModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = RoleAssignmentModule()

if __name__ == "__main__":
    run_module_process(MODULE)
