#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: flavor_access_info
version_added: "0.1.0"
short_description: Report which projects of a cloud may use flavors that are not public
description:
  - Reports each permission with flavor and project. Needs the role V(admin).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.flavor_access_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.flavor_access
"""

EXAMPLES = r"""
- name: All permissions
  magnetar.compute.flavor_access_info:
    cloud: mycloud

- name: The projects that may use the flavor large
  magnetar.compute.flavor_access_info:
    cloud: mycloud
    filters:
      flavor: large
"""

RETURN = r"""
flavor_accesses:
  description: The matching flavor accesses; empty when there are none.
  returned: on success
  type: list
  elements: dict
  contains:
    id: {description: 'The uuid, derived from project and flavor.', type: str,
        sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: 'PROJECT:FLAVOR.', type: str, sample: '0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a:large'}
    flavor: {description: 'The flavor, by name or id; reported by name.', type: str, sample: large}
    flavor_id: {description: The flavor's id., type: str, sample: 5b6c0a4e-9f0a-4d0e-8a55-7b1f6a0c2d11}
    project: {description: 'The project, by id or name; reported by id.', type: str,
        sample: 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import FlavorAccess
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(FlavorAccess)

if __name__ == "__main__":
    run_module_process(MODULE)
