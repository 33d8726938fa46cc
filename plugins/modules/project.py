#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: project
version_added: "0.2.0"
short_description: Manage projects of a cloud
description:
  - Creates, updates or removes a project.
  - A removed project leaves its servers, volumes and networks behind, as in Keystone. The task warns of servers. Remove
    them first, because afterwards only administrators can.
  - A project with projects below it is not removed. The project of the login is neither disabled nor removed.
  - Only for clouds with the embedded identity service. A cloud with a Keystone of its own refuses the task, and names
    the module of openstack.cloud to use.
  - Needs the role V(admin).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.project
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.project_info
  - module: magnetar.compute.role_assignment
  - module: magnetar.compute.quota
  - module: magnetar.compute.domain
"""

EXAMPLES = r"""
- name: A project for the shop
  magnetar.compute.project:
    cloud: mycloud
    name: shop
    description: Servers of the shop

- name: Its tests, which share its administrators
  magnetar.compute.project:
    cloud: mycloud
    name: shop-test
    domain: Default
    parent: shop
    tags: [test]
    properties:
      cost_center: "4711"

- name: Nobody uses the tests any more
  magnetar.compute.project:
    cloud: mycloud
    name: shop-test
    state: absent
"""

RETURN = r"""
project:
  description: 'The project after the task; in check mode, as it would be. With O(state=absent), the last known project,
      or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    id: {description: The id; the cloud generates it., type: str, sample: 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a}
    name: {description: 'The name, unique in the domain.', type: str, sample: shop}
    domain: {description: 'The domain, by name or id; reported by name. Without it, names are searched in, and
          new resources belong to, the domain of the login''s project.', type: str, sample: Default}
    domain_id: {description: The id of the domain., type: str, sample: default}
    description: {description: Free text., type: str, sample: for the shop}
    is_enabled: {description: Whether it is enabled. Nobody logs in with a disabled project; its servers run on.,
        type: bool, sample: true}
    parent: {description: 'The project above it, by name or id; reported by name, C(null) for none.', type: str,
        sample: retail}
    parent_id: {description: 'The id of the project above it, or of its domain.', type: str, sample: default}
    tags: {description: Tags., type: list, elements: str, sample: [retail]}
    properties: {description: 'Further properties, keys to texts. Exact when given.', type: dict, sample: {colour: red}}
    options: {description: 'Its resource options, such as C(immutable).', type: dict, sample: {}}
    is_domain: {description: Whether it is a domain too; never here., type: bool, sample: false}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {description: {old: '', new: for the shop}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import IdentityProject
from ansible_collections.magnetar.compute.plugins.module_utils.modules.identity import DomainedIdentityModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = DomainedIdentityModule(IdentityProject)

if __name__ == "__main__":
    run_module_process(MODULE)
