#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: role
version_added: "0.2.0"
short_description: Manage roles of a cloud
description:
  - Creates, updates or removes a role. A new role permits nothing until the rules of the services name it.
  - A role that is removed is taken away from all users and groups. A task that would take the role V(admin) from the
    user of the login is refused.
  - Only for clouds with the embedded identity service. A cloud with a Keystone of its own refuses the task, and names
    the module of openstack.cloud to use.
  - Needs the role V(admin).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.role
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.role_info
  - module: magnetar.compute.role_assignment
"""

EXAMPLES = r"""
- name: A role for auditors
  magnetar.compute.role:
    cloud: mycloud
    name: auditor
    description: Reads invoices

- name: No auditors any more
  magnetar.compute.role:
    cloud: mycloud
    name: auditor
    state: absent
"""

RETURN = r"""
role:
  description: 'The role after the task; in check mode, as it would be. With O(state=absent), the last known role, or
      V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    id: {description: The id; the cloud generates it., type: str, sample: 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a}
    name: {description: 'The name, unique in the cloud.', type: str, sample: auditor}
    description: {description: Free text., type: str, sample: reads invoices}
    domain: {description: 'The domain that the role belongs to, by name or id; reported by name. Roles without one,
          the default, belong to the cloud.', type: str}
    domain_id: {description: The id of the domain; C(null) for a role of the cloud., type: str, sample: default}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {description: {old: '', new: reads invoices}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import IdentityRole
from ansible_collections.magnetar.compute.plugins.module_utils.modules.identity import NamedIdentityModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = NamedIdentityModule(IdentityRole)

if __name__ == "__main__":
    run_module_process(MODULE)
