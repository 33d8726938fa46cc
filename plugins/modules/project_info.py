#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: project_info
version_added: "0.2.0"
short_description: Report projects of a cloud
description:
  - Reports projects of all domains. Users without the role V(admin) see the projects in which they have a role.
  - Only for clouds with the embedded identity service. A cloud with a Keystone of its own refuses the task, and names
    the module of openstack.cloud to use.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.project_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.project
"""

EXAMPLES = r"""
- name: All projects
  magnetar.compute.project_info:
    cloud: mycloud

- name: The projects of the domain Default whose names begin with shop
  magnetar.compute.project_info:
    cloud: mycloud
    domain: Default
    name: shop*
    fields: [id, name]

- name: The projects below the project shop
  magnetar.compute.project_info:
    cloud: mycloud
    filters:
      parent: shop
"""

RETURN = r"""
projects:
  description: The matching projects; empty when there are none.
  returned: on success
  type: list
  elements: dict
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
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import IdentityProject
from ansible_collections.magnetar.compute.plugins.module_utils.modules.identity import IdentityInfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = IdentityInfoModule(IdentityProject)

if __name__ == "__main__":
    run_module_process(MODULE)
