#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: quota
version_added: "0.1.0"
short_description: Manage the quota of a project of a cloud
description:
  - Sets limits of a project; omitted limits stay as they are. V(-1) means no limit. O(state=absent) restores the
    defaults of the cloud.
  - A limit below the usage is refused.
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
  description: 'The quota after the task; in check mode, as it would be. With O(state=absent), the last known quota,
      or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    name: {description: The id of the project., type: str, sample: 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a}
    instances: {description: Limit of servers., type: int, sample: 10}
    cores: {description: Limit of the CPUs of all servers., type: int, sample: 20}
    ram: {description: Limit of the memory of all servers in MiB., type: int, sample: 51200}
    metadata_items: {description: Metadata keys of a server., type: int, sample: 128}
    key_pairs: {description: Key pairs of a user., type: int, sample: 100}
    server_groups: {description: Server groups., type: int, sample: 10}
    server_group_members: {description: Servers in a server group., type: int, sample: 10}
    volumes: {description: Volumes. Null if another service than the cloud's own has it., type: int, sample: 10}
    snapshots: {description: Snapshots of volumes. Null if another service than the cloud's own has it., type: int,
        sample: 10}
    gigabytes: {description: GiB of all volumes and snapshots. Null if another service than the cloud's own has it.,
        type: int, sample: 1000}
    per_volume_gigabytes: {description: GiB of one volume. Null if another service than the cloud's own has it.,
        type: int, sample: -1}
    backups: {description: Backups of volumes. Null if another service than the cloud's own has it., type: int,
        sample: 10}
    backup_gigabytes: {description: GiB of all backups. Null if another service than the cloud's own has it., type: int,
        sample: 1000}
    networks: {description: Networks. Null if another service than the cloud's own has it., type: int, sample: 100}
    subnets: {description: Subnets. Null if another service than the cloud's own has it., type: int, sample: 100}
    subnet_pools: {description: Subnet pools. Null if another service than the cloud's own has it., type: int,
        sample: -1}
    ports: {description: Ports. Null if another service than the cloud's own has it., type: int, sample: 500}
    routers: {description: Routers. Null if another service than the cloud's own has it., type: int, sample: 10}
    floating_ips: {description: Floating IPs. Null if another service than the cloud's own has it., type: int,
        sample: 50}
    security_groups: {description: Security groups. Null if another service than the cloud's own has it., type: int,
        sample: 10}
    security_group_rules: {description: Rules of all security groups. Null if another service than the cloud's own has
          it., type: int, sample: 100}
    rbac_policies: {description: Policies that share networks and the like. Null if another service than the cloud's own
          has it., type: int, sample: 10}
    instances_used: {description: Existing servers., type: int, sample: 3}
    cores_used: {description: CPUs of the existing servers., type: int, sample: 6}
    ram_used: {description: Memory of the existing servers in MiB., type: int, sample: 6144}
    server_groups_used: {description: Existing server groups., type: int, sample: 0}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {instances: {old: 10, new: 20}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.quota import QuotaModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = QuotaModule()

if __name__ == "__main__":
    run_module_process(MODULE)
