#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: aggregate_info
version_added: "0.1.0"
short_description: Report the host aggregates of a cloud
description:
  - Reports host aggregates, with their hosts and metadata.
  - Needs the role V(admin).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.aggregate_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.aggregate
"""

EXAMPLES = r"""
- name: All aggregates
  magnetar.compute.aggregate_info:
    cloud: mycloud

- name: Those of an availability zone
  magnetar.compute.aggregate_info:
    cloud: mycloud
    filters:
      availability_zone: rack1
"""

RETURN = r"""
aggregates:
  description: The matching aggregates; empty when there are none.
  returned: on success
  type: list
  elements: dict
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
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import HostAggregate
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(HostAggregate)

if __name__ == "__main__":
    run_module_process(MODULE)
