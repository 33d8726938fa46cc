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
  - Makes a host aggregate, changes its name, hosts, metadata and availability zone, or removes it.
  - Hosts and metadata are exact when they are given; O(purge_hosts=false) and O(purge_metadata=false) add to
    what is there.
  - A host that has servers does not change its availability zone, and a host is in one zone only.
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
  description:
    - The aggregate as it is afterwards, or as it would be in check mode.
    - With O(state=absent) it is the last that was known of it, or V(null) if there was none.
  returned: on success, unless a running operation is returned
  type: dict
  contains:
    id:
      description: The uuid; the cloud draws it.
      type: str
      sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d
    name:
      description: The name.
      type: str
      sample: fast
    availability_zone:
      description: The availability zone of its hosts; null for none of its own. That of hosts that have servers
        cannot change.
      type: str
      sample: rack1
    hosts:
      description: Names of its hosts.
      type: list
      elements: str
      sample:
        - kvm1
        - kvm2
    metadata:
      description: Metadata, keys to strings, which filters of the scheduler and flavors refer to. The zone is none
        of it.
      type: dict
      sample:
        ssd: 'true'
    number:
      description: The id by which the Compute API knows it.
      type: int
      sample: 1
    created_at:
      description: When it was made, ISO 8601 in UTC.
      type: str
      sample: '2026-11-20T20:00:00Z'
    updated_at:
      description: When it was last changed.
      type: str
      sample: '2026-11-20T20:00:00Z'
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
  sample: {hosts: {old: [], new: [kvm1]}}
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

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import HostAggregate
from ansible_collections.magnetar.compute.plugins.module_utils.modules.resource import ResourceModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run

MODULE = ResourceModule(HostAggregate)

if __name__ == "__main__":
    run(MODULE)
