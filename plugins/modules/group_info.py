#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: group_info
version_added: "0.2.0"
short_description: Report groups of users of a cloud
description:
  - Reports groups of all domains, with their users. Users without the role V(admin) see the groups that they belong to.
  - Only for clouds with the embedded identity service. A cloud with a Keystone of its own refuses the task, and names
    the module of openstack.cloud to use.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.group_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.group
"""

EXAMPLES = r"""
- name: The groups of the domain Default
  magnetar.compute.group_info:
    cloud: mycloud
    domain: Default

- name: The users of the group operators
  magnetar.compute.group_info:
    cloud: mycloud
    name: operators
    fields: [users]
"""

RETURN = r"""
groups:
  description: The matching groups; empty when there are none.
  returned: on success
  type: list
  elements: dict
  contains:
    id: {description: The id; the cloud generates it., type: str, sample: 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a}
    name: {description: 'The name, unique in the domain.', type: str, sample: operators}
    domain: {description: 'The domain, by name or id; reported by name. Without it, names are searched in, and
          new resources belong to, the domain of the login''s project.', type: str, sample: Default}
    domain_id: {description: The id of the domain., type: str, sample: default}
    description: {description: Free text., type: str, sample: for the shop}
    users: {description: 'Its users, by id, or by name if they are in its domain; reported by name, users of other
          domains by id.', type: list, elements: str, sample: [ann, bob]}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import IdentityGroup
from ansible_collections.magnetar.compute.plugins.module_utils.modules.identity import IdentityInfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = IdentityInfoModule(IdentityGroup)

if __name__ == "__main__":
    run_module_process(MODULE)
