#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: quota
version_added: "0.1.0"
short_description: Manage what a project of a cloud may use
description:
  - Sets limits of a project; options that are left out stay. V(-1) is no limit. With O(state=absent) the
    defaults of the cloud count again.
  - A limit that is lower than what is used is refused.
  - Needs the role V(admin).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.quota
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.quota_info
"""

EXAMPLES = r"""
- name: Twenty servers
  magnetar.compute.quota:
    cloud: mycloud
    name: admin
    instances: 20
    cores: 40

- name: The defaults again
  magnetar.compute.quota:
    cloud: mycloud
    name: admin
    state: absent
"""

RETURN = r"""
quota:
  description:
    - The quota as it is afterwards, or as it would be in check mode.
    - With O(state=absent) it is the last that was known of it, or V(null) if there was none.
  returned: on success, unless a running operation is returned
  type: dict
  contains:
    name:
      description: The id of the project.
      type: str
      sample: 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a
    instances:
      description: Servers.
      type: int
      sample: 10
    cores:
      description: CPUs of all servers.
      type: int
      sample: 20
    ram:
      description: Memory of all servers in MiB.
      type: int
      sample: 51200
    metadata_items:
      description: Metadata keys of a server.
      type: int
      sample: 128
    key_pairs:
      description: Key pairs of a user.
      type: int
      sample: 100
    server_groups:
      description: Server groups.
      type: int
      sample: 10
    server_group_members:
      description: Servers in a server group.
      type: int
      sample: 10
    instances_used:
      description: Servers that there are.
      type: int
      sample: 3
    cores_used:
      description: CPUs that they have.
      type: int
      sample: 6
    ram_used:
      description: Memory that they have in MiB.
      type: int
      sample: 6144
    server_groups_used:
      description: Server groups that there are.
      type: int
      sample: 0
actions:
  description: What was done, or would be in check mode, in order.
  returned: on success
  type: list
  elements: str
  sample: [record]
changes:
  description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden.
  returned: on success
  type: dict
  sample: {instances: {old: 10, new: 20}}
operation:
  description: The work that goes on, when it was not waited for.
  returned: when O(wait=false) and the work takes longer than a moment
  type: dict
  sample:
    id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10
    status: running
request_id:
  description: Name of the request in the logs of the API.
  returned: when the API has answered
  type: str
  sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11
error:
  description: "For programs: V(code) says what kind of failure it is, V(details) has the values."
  returned: on failure
  type: dict
  sample:
    code: invalid-field
    details:
      field: name
      rule: is required
    request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.quota import QuotaModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run

MODULE = QuotaModule()

if __name__ == "__main__":
    run(MODULE)
