#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: trunk
version_added: "0.1.0"
short_description: Manage trunks of a cloud
description:
  - Creates, updates or removes a trunk. A server with the trunk's port also has its subports, each as a VLAN. In the
    guest, a VLAN device with the subport's tag and MAC address connects to the subport's network.
  - For clouds with OVN. Addresses, port security and security groups of a subport work as with any port.
  - A trunk in use by a server is not removed; its subports can change while the server runs.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.trunk
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.trunk_info
  - module: magnetar.compute.port
"""

EXAMPLES = r"""
- name: A network of the office
  magnetar.compute.network:
    cloud: mycloud
    name: office
    mode: ovn

- name: The NIC of a firewall
  magnetar.compute.port:
    cloud: mycloud
    name: fw
    network: backend

- name: Its port in the office
  magnetar.compute.port:
    cloud: mycloud
    name: fw-office
    network: office

- name: Its NIC has that as a VLAN
  magnetar.compute.trunk:
    cloud: mycloud
    name: fw
    port: fw
    subports:
      - {port: fw-office, segmentation_id: 101}

- name: Disconnect the office, whether the firewall runs or not
  magnetar.compute.trunk:
    cloud: mycloud
    name: fw
    subports: []

- name: Remove it
  magnetar.compute.trunk:
    cloud: mycloud
    name: fw
    state: absent
"""

RETURN = r"""
trunk:
  description: 'The trunk after the task; in check mode, as it would be. With O(state=absent), the last known trunk,
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
    port: {description: 'The parent port, which the server has, by name or uuid.', type: str,
        sample: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10}
    subports: {description: 'All ports that it has as VLANs: others are removed. They stay as they are when omitted.',
        type: list, elements: dict, sample: [{port: 4f1c9a0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d, segmentation_id: 101}]}
    admin_state_up: {description: 'Whether its subports may change, and it may be removed. Packets pass all the same.',
        type: bool, sample: true}
    status: {description: 'C(ACTIVE) while a running server has its port, otherwise C(DOWN).', type: str,
        sample: ACTIVE}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {admin_state_up: {old: true, new: false}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import NetworkTrunk
from ansible_collections.magnetar.compute.plugins.module_utils.modules.resource import ResourceModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = ResourceModule(NetworkTrunk)

if __name__ == "__main__":
    run_module_process(MODULE)
