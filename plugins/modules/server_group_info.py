#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: server_group_info
version_added: "0.1.0"
short_description: Report the server groups of a cloud
description:
  - Reports the server groups of the project, with the uuids of their servers.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.server_group_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.server_group
"""

EXAMPLES = r"""
- name: Groups whose servers are apart
  magnetar.compute.server_group_info:
    cloud: mycloud
    filters:
      policy: anti-affinity

- name: The servers of a group
  magnetar.compute.server_group_info:
    cloud: mycloud
    name: frontends
"""

RETURN = r"""
server_groups:
  description: The matching server groups; empty when there are none.
  returned: on success
  type: list
  elements: dict
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
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import ServerGroup
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(ServerGroup)

if __name__ == "__main__":
    run_module_process(MODULE)
