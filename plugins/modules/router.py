#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: router
version_added: "0.1.0"
short_description: Manage routers of a cloud
description:
  - Creates, updates or removes a router between subnets and to an external network.
  - Removing a router detaches its subnets. A router with floating IPs in use is not removed.
  - For clouds with OVN.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.router
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.router_info
  - module: magnetar.compute.subnet
  - module: magnetar.compute.floating_ip
"""

EXAMPLES = r"""
- name: From the subnet to the outside
  magnetar.compute.router:
    cloud: mycloud
    name: edge
    external_network: ext
    interfaces: [backend-v4]

- name: Lead to another network through a server
  magnetar.compute.router:
    cloud: mycloud
    name: edge
    routes:
      - {destination: 10.9.0.0/16, nexthop: 10.5.0.9}

- name: Close the way out
  magnetar.compute.router:
    cloud: mycloud
    name: edge
    external_network: none

- name: Open it for floating IPs only, as an admin
  magnetar.compute.router:
    cloud: mycloud
    name: edge
    external_network: ext
    enable_snat: false
"""

RETURN = r"""
router:
  description: 'The router after the task; in check mode, as it would be. With O(state=absent), the last known router,
      or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    id: {description: 'The uuid; generated when the resource is created, unless given.', type: str,
        sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The name., type: str, sample: web1}
    description: {description: Free text of at most 255 characters., type: str, sample: for the shop}
    created_at: {description: 'When it was created, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    updated_at: {description: 'When it was last changed, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    external_network: {description: 'The external network of the router, by name or uuid; C(none) for none.', type: str,
        sample: 5b6c0a4e-9f0a-4d0e-8a55-7b1f6a0c2d11}
    enable_snat: {description: Whether outgoing traffic of servers has the router's address (SNAT). Only admins turn
          this off., type: bool, sample: true}
    interfaces: {description: 'The subnets that it is in, by name or uuid, all of them.', type: list, elements: str,
        sample: [8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d]}
    routes: {description: Static routes., type: list, elements: dict, sample: [{destination: 10.9.0.0/16,
            nexthop: 10.1.0.9}]}
    admin_state_up: {description: Whether packets pass., type: bool, sample: true}
    external_addresses: {description: Its addresses in the external network., type: list, elements: str, sample: [
          192.0.2.9]}
    status: {description: C(ACTIVE)., type: str, sample: ACTIVE}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {interfaces: {old: [], new: [8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d]}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process
from ansible_collections.magnetar.compute.plugins.module_utils.twins.network import RouterModule

MODULE = RouterModule()

if __name__ == "__main__":
    run_module_process(MODULE)
