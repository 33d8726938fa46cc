#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: group_assignment
version_added: "0.2.0"
short_description: Put users into groups of users
description:
  - Puts one user into a group of users of a cloud, or takes the user out. Other users stay.
  - M(magnetar.compute.group) with O(magnetar.compute.group#module:users) manages all users of a group.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.group_assignment
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.group
  - module: magnetar.compute.user
  - module: magnetar.compute.role_assignment
"""

EXAMPLES = r"""
- name: Ann is an operator
  magnetar.compute.group_assignment:
    cloud: mycloud
    group: operators
    user: ann

- name: Bob is none any more
  magnetar.compute.group_assignment:
    cloud: mycloud
    group: operators
    user: bob
    state: absent
"""

RETURN = r"""
group:
  description: The group after the task, as M(magnetar.compute.group) returns it; in check mode, as it would be.
  returned: on success
  type: dict
  sample: {id: 8c7d3c0e5d0f4a2b9d0e0c6c8a1f2b3d, name: operators, users: [ann]}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value., returned: on success,
    type: dict, sample: {users: {old: [], new: [ann]}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API was asked for a change,
    type: str, sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process
from ansible_collections.magnetar.compute.plugins.module_utils.twins.parts import GroupAssignmentModule

MODULE = GroupAssignmentModule()

if __name__ == "__main__":
    run_module_process(MODULE)
