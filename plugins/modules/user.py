#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: user
version_added: "0.2.0"
short_description: Manage users of a cloud
description:
  - Creates, updates or removes a user. A user needs a role in a project to do anything; see
    M(magnetar.compute.role_assignment).
  - The password is compared with the stored one, so a task with O(update_password=always) changes nothing if the user
    has that password already. No result and no log shows it.
  - The user of the login is neither disabled nor removed.
  - Only for clouds with the embedded identity service. A cloud with a Keystone of its own refuses the task, and names
    the module of openstack.cloud to use.
  - Needs the role V(admin).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.user
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.user_info
  - module: magnetar.compute.role_assignment
  - module: magnetar.compute.group
  - module: magnetar.compute.application_credential
"""

EXAMPLES = r"""
- name: Ann works for the shop
  magnetar.compute.user:
    cloud: mycloud
    name: ann
    password: "{{ password_of_ann }}"
    email: ann@example.com
    default_project: shop

- name: Ann forgot her password
  magnetar.compute.user:
    cloud: mycloud
    name: ann
    password: "{{ new_password_of_ann }}"
    update_password: always

- name: Ann is on leave
  magnetar.compute.user:
    cloud: mycloud
    name: ann
    is_enabled: false

- name: Ann has left
  magnetar.compute.user:
    cloud: mycloud
    name: ann
    state: absent
"""

RETURN = r"""
user:
  description: 'The user after the task; in check mode, as it would be. With O(state=absent), the last known user, or
      V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    id: {description: The id; the cloud generates it., type: str, sample: 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a}
    name: {description: 'The name, unique in the domain.', type: str, sample: ann}
    domain: {description: 'The domain, by name or id; reported by name. Without it, names are searched in, and
          new resources belong to, the domain of the login''s project.', type: str, sample: Default}
    domain_id: {description: The id of the domain., type: str, sample: default}
    description: {description: Free text., type: str, sample: for the shop}
    email: {description: The e-mail address., type: str, sample: ann@example.com}
    default_project: {description: 'The project that a login without a project uses, by name or id; reported by name.
          C(none) for none. It gives no role.', type: str, sample: shop}
    default_project_id: {description: The id of the default project., type: str,
        sample: 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a}
    is_enabled: {description: Whether it is enabled. A disabled user cannot log in., type: bool, sample: true}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {email: {old: '', new: ann@example.com}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import IdentityUser
from ansible_collections.magnetar.compute.plugins.module_utils.modules.identity import DomainedIdentityModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = DomainedIdentityModule(IdentityUser)

if __name__ == "__main__":
    run_module_process(MODULE)
