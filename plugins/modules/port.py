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
  - Makes a port on a network be present as described, or absent. A server is given it with
    O(magnetar.compute.server#module:networks).
  - Ports that are made with a server go with it, and need no task. One that a server has is not removed.
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
  description:
    - The port as it is afterwards, or as it would be in check mode.
    - With O(state=absent) it is the last that was known of it, or V(null) if there was none.
  returned: on success, unless a running operation is returned
  type: dict
  contains:
    id:
      description: The uuid; drawn when the resource is made, unless given.
      type: str
      sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d
    name:
      description: The name.
      type: str
      sample: web1
    description:
      description: Free text of at most 255 characters.
      type: str
      sample: for the shop
    created_at:
      description: When it was made, ISO 8601 in UTC.
      type: str
      sample: '2026-11-20T20:00:00Z'
    updated_at:
      description: When it was last changed, ISO 8601 in UTC.
      type: str
      sample: '2026-11-20T20:00:00Z'
    network:
      description: The network, by name or uuid.
      type: str
      sample: 5b6c0a4e-9f0a-4d0e-8a55-7b1f6a0c2d11
    fixed_ips:
      description: 'Its addresses: each an address, a subnet to have one of, or both. One is drawn when omitted.'
      type: list
      elements: dict
      sample:
        - subnet: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d
          ip_address: 10.1.0.7
    mac_address:
      description: MAC address; drawn when omitted.
      type: str
      sample: fa:16:3e:12:34:56
    security_groups:
      description: Its security groups, by name or uuid. C(default) when omitted.
      type: list
      elements: str
      sample:
        - 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10
    port_security_enabled:
      description: Whether it sends from its own addresses only, and security groups act. As the network says when
        omitted.
      type: bool
      sample: true
    allowed_address_pairs:
      description: Addresses that it may send from besides its own.
      type: list
      elements: dict
      sample:
        - ip_address: 10.1.0.250
    dns_name:
      description: Its name in the domain of its network, where DNS finds it. A server that takes it gives it its
        host name.
      type: str
      sample: web1
    vnic_type:
      description: C(normal), or a device of its server's host, on the physical network of its network. Nothing
        filters C(direct), a virtual function (SR-IOV), C(macvtap), a virtio NIC over one, and C(direct-physical),
        a whole card. OVN looks after C(vdpa), a virtio NIC that the card makes, and C(remote-managed), a virtual
        function of a SmartNIC.
      type: str
      sample: normal
    qos_policy:
      description: Its QoS policy, by name or uuid; C(none) for that of its network. As it is, of a new one what
        the cloud gives, when omitted.
      type: str
      sample: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10
    admin_state_up:
      description: Whether packets pass.
      type: bool
      sample: true
    status:
      description: C(ACTIVE) while a running server has it, else C(DOWN).
      type: str
      sample: ACTIVE
    device_id:
      description: Uuid of the server that has it.
      type: str
      sample: 4f1c9a0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d
    device_owner:
      description: Of what kind that is.
      type: str
      sample: compute:nova
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
  sample: {port_security_enabled: {old: null, new: false}}
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

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import NetworkPort
from ansible_collections.magnetar.compute.plugins.module_utils.modules.resource import ResourceModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run

MODULE = ResourceModule(NetworkPort)

if __name__ == "__main__":
    run(MODULE)
