#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: server_group
version_added: "0.1.0"
short_description: Manage server groups of a cloud
description:
  - Creates or removes a server group. The scheduler places the servers of a group together or apart. New servers join
    it through the scheduler hint C(group).
  - A group cannot change. Servers of a removed group stay, without a group.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.server_group
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.server_group_info
"""

EXAMPLES = r"""
- name: Each frontend on a host of its own
  magnetar.compute.server_group:
    cloud: mycloud
    name: frontends
    policy: anti-affinity

- name: Two of them at most on one host
  magnetar.compute.server_group:
    cloud: mycloud
    name: backends
    policy: anti-affinity
    rules:
      max_server_per_host: 2

- name: Remove it
  magnetar.compute.server_group:
    cloud: mycloud
    name: frontends
    state: absent
"""

RETURN = r"""
server_group:
  description: 'The server group after the task; in check mode, as it would be. With O(state=absent), the last known
      server group, or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    id: {description: The uuid; the cloud generates it., type: str, sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The name., type: str, sample: frontends}
    policy: {description: 'C(affinity) places its servers on one host, C(anti-affinity) each on its own host; the soft
          policies do so if possible.', type: str, sample: anti-affinity}
    rules: {description: 'For C(anti-affinity) only. C(max_server_per_host): the maximum number of its servers
          per host.', type: dict, sample: {max_server_per_host: 2}}
    members: {description: Uuids of its servers., type: list, elements: str, sample: [
          4f1c9a0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d]}
    project_id: {description: The project that it belongs to., type: str, sample: 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a}
    user_id: {description: The user who created it., type: str, sample: 4f1c9a0e5d0f4a2b9d0e0c6c8a1f2b3d}
    created_at: {description: 'When it was created, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {policy: {old: null, new: anti-affinity}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import ServerGroup
from ansible_collections.magnetar.compute.plugins.module_utils.modules.resource import ResourceModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = ResourceModule(ServerGroup)

if __name__ == "__main__":
    run_module_process(MODULE)
