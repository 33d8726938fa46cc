#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: aggregate
version_added: "0.1.0"
short_description: Manage host aggregates of a cloud
description:
  - Creates, updates or removes a host aggregate.
  - Given hosts and metadata replace the existing ones; O(purge_hosts=false) and O(purge_metadata=false) add to them.
  - A host is in one availability zone only, and cannot change it while it has servers.
  - Needs the role V(admin).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.aggregate
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.aggregate_info
"""

EXAMPLES = r"""
- name: Hosts with fast disks
  magnetar.compute.aggregate:
    cloud: mycloud
    name: fast
    hosts: [kvm1]
    metadata:
      ssd: "true"

- name: An availability zone of its own, of the hosts that it has
  magnetar.compute.aggregate:
    cloud: mycloud
    name: rack1
    availability_zone: rack1

- name: Remove it; its hosts leave it
  magnetar.compute.aggregate:
    cloud: mycloud
    name: rack1
    state: absent
"""

RETURN = r"""
aggregate:
  description: 'The aggregate after the task; in check mode, as it would be. With O(state=absent), the last known
      aggregate, or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    id: {description: The uuid; the cloud generates it., type: str, sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The name., type: str, sample: fast}
    availability_zone: {description: The availability zone of its hosts; null for none of its own. That of hosts that
          have servers cannot change., type: str, sample: rack1}
    hosts: {description: Names of its hosts., type: list, elements: str, sample: [kvm1, kvm2]}
    metadata: {description: 'Metadata, keys to strings, which filters of the scheduler and flavors refer to. The zone is
          none of it.', type: dict, sample: {ssd: 'true'}}
    number: {description: Its id in the Compute API., type: int, sample: 1}
    created_at: {description: 'When it was created, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    updated_at: {description: When it was last changed., type: str, sample: '2026-11-20T20:00:00Z'}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {hosts: {old: [], new: [kvm1]}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import HostAggregate
from ansible_collections.magnetar.compute.plugins.module_utils.modules.resource import ResourceModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = ResourceModule(HostAggregate)

if __name__ == "__main__":
    run_module_process(MODULE)
