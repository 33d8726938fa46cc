#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: port
version_added: "0.1.0"
short_description: Manage ports of a cloud
description:
  - Creates, updates or removes a port on a network. Servers use it through
    O(magnetar.compute.server#module:networks).
  - Ports that a server creates are removed with it, and need no task. A port in use by a server is not removed.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.port
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.port_info
  - module: magnetar.compute.subnet
  - module: magnetar.compute.security_group
  - module: magnetar.compute.server
"""

EXAMPLES = r"""
- name: A port with an address of its own and two groups
  magnetar.compute.port:
    cloud: mycloud
    name: web1
    network: backend
    fixed_ips:
      - ip_address: 10.5.0.20
    security_groups: [default, web]

- name: It may send from an address that it shares with others, too
  magnetar.compute.port:
    cloud: mycloud
    name: web1
    allowed_address_pairs:
      - ip_address: 10.5.0.250

- name: A port of a router, which packets of others go through
  magnetar.compute.port:
    cloud: mycloud
    name: gateway
    network: backend
    security_groups: []
    port_security_enabled: false

- name: Remove it
  magnetar.compute.port:
    cloud: mycloud
    name: gateway
    state: absent
"""

RETURN = r"""
port:
  description: 'The port after the task; in check mode, as it would be. With O(state=absent), the last known port, or
      V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    id: {description: 'The uuid; generated when the resource is created, unless given.', type: str,
        sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The name., type: str, sample: web1}
    description: {description: Free text of at most 255 characters., type: str, sample: for the shop}
    created_at: {description: 'When it was created, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    updated_at: {description: 'When it was last changed, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    network: {description: 'The network, by name or uuid.', type: str, sample: 5b6c0a4e-9f0a-4d0e-8a55-7b1f6a0c2d11}
    fixed_ips: {description: 'Its addresses: each an address, a subnet for an automatic address, or both. One address
          is chosen when omitted.', type: list, elements: dict, sample: [{subnet: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d,
            ip_address: 10.1.0.7}]}
    mac_address: {description: MAC address; generated when omitted., type: str, sample: 'fa:16:3e:12:34:56'}
    security_groups: {description: 'Its security groups, by name or uuid. C(default) when omitted.', type: list,
        elements: str, sample: [0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10]}
    port_security_enabled: {description: 'Whether it sends from its own addresses only, and security groups apply.
          Default: as the network has it.', type: bool, sample: true}
    allowed_address_pairs: {description: Further addresses that it may send from., type: list, elements: dict, sample: [
          {ip_address: 10.1.0.250}]}
    dns_name: {description: Its DNS name in the domain of its network. A server that uses the port sets it to its host
          name., type: str, sample: web1}
    vnic_type: {description: 'C(normal), or a device of its server''s host, on the physical network of its
          network. Nothing filters C(direct), a virtual function (SR-IOV), C(macvtap), a virtio NIC over one,
          and C(direct-physical), a whole card. OVN looks after C(vdpa), a virtio NIC that the card makes,
          and C(remote-managed), a virtual function of a SmartNIC.', type: str, sample: normal}
    qos_policy: {description: 'Its QoS policy, by name or uuid; C(none) for the network''s policy. Without
          it, a new resource gets the cloud''s default, and an existing one keeps its policy.', type: str,
        sample: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10}
    admin_state_up: {description: Whether packets pass., type: bool, sample: true}
    status: {description: 'C(ACTIVE) while a running server has it, otherwise C(DOWN).', type: str, sample: ACTIVE}
    device_id: {description: Uuid of the server that has it., type: str, sample: 4f1c9a0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    device_owner: {description: Kind of its owner., type: str, sample: 'compute:nova'}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {network: {old: null, new: 5b6c0a4e-9f0a-4d0e-8a55-7b1f6a0c2d11}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import NetworkPort
from ansible_collections.magnetar.compute.plugins.module_utils.modules.resource import ResourceModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = ResourceModule(NetworkPort)

if __name__ == "__main__":
    run_module_process(MODULE)
