#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: flavor_access
version_added: "0.1.0"
short_description: Allow projects of a cloud to use a flavor
description:
  - Allows a project to use a flavor that is not public, or ends that. Servers keep their flavor.
  - Create such a flavor with O(magnetar.compute.flavor#module:is_public=false). Needs the role V(admin).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.flavor_access
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.flavor_access_info
  - module: magnetar.compute.flavor
"""

EXAMPLES = r"""
- name: A flavor for some projects
  magnetar.compute.flavor:
    cloud: mycloud
    name: large
    vcpus: 16
    ram: 65536
    is_public: false

- name: The project shop may use it
  magnetar.compute.flavor_access:
    cloud: mycloud
    flavor: large
    project: shop

- name: Not any more
  magnetar.compute.flavor_access:
    cloud: mycloud
    flavor: large
    project: shop
    state: absent
"""

RETURN = r"""
flavor_access:
  description: 'The flavor access after the task; in check mode, as it would be. With O(state=absent), the last known
      flavor access, or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    id: {description: 'The uuid, derived from project and flavor.', type: str,
        sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: 'PROJECT:FLAVOR.', type: str, sample: '0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a:large'}
    flavor: {description: 'The flavor, by name or id; reported by name.', type: str, sample: large}
    flavor_id: {description: The flavor's id., type: str, sample: 5b6c0a4e-9f0a-4d0e-8a55-7b1f6a0c2d11}
    project: {description: 'The project, by id or name; reported by id.', type: str,
        sample: 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {flavor: {old: null, new: large}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.sharing import FlavorAccessModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = FlavorAccessModule()

if __name__ == "__main__":
    run_module_process(MODULE)
