#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: user_info
version_added: "0.2.0"
short_description: Report users of a cloud
description:
  - Reports users of all domains, without passwords. Users without the role V(admin) see themselves.
  - Only for clouds with the embedded identity service. A cloud with a Keystone of its own refuses the task, and names
    the module of openstack.cloud to use.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.user_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.user
"""

EXAMPLES = r"""
- name: The users of the domain Default that are disabled
  magnetar.compute.user_info:
    cloud: mycloud
    domain: Default
    filters:
      is_enabled: false

- name: The user ann
  magnetar.compute.user_info:
    cloud: mycloud
    name: ann
"""

RETURN = r"""
users:
  description: The matching users; empty when there are none.
  returned: on success
  type: list
  elements: dict
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
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import IdentityUser
from ansible_collections.magnetar.compute.plugins.module_utils.modules.identity import IdentityInfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = IdentityInfoModule(IdentityUser)

if __name__ == "__main__":
    run_module_process(MODULE)
