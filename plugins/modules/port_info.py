#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: port_info
version_added: "0.1.0"
short_description: Report the ports of a cloud
description:
  - Reports the ports of the project, including ports of servers.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.port_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.port
"""

EXAMPLES = r"""
- name: Ports that no server has
  magnetar.compute.port_info:
    cloud: mycloud
    filters:
      device_id: ""

- name: Addresses of one
  magnetar.compute.port_info:
    cloud: mycloud
    name: web1
    fields: [name, fixed_ips]
"""

RETURN = r"""
ports:
  description: The matching ports; empty when there are none.
  returned: on success
  type: list
  elements: dict
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
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import NetworkPort
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(NetworkPort)

if __name__ == "__main__":
    run_module_process(MODULE)
