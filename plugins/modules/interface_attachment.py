#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: interface_attachment
version_added: "0.1.0"
short_description: Attach NICs to servers and detach them
description:
  - Makes a server have a NIC on a network or bridge, or not have it; while it runs and when it is off.
  - A NIC that is attached becomes part of the O(magnetar.compute.server#module:networks) of its server, so a task of
    M(magnetar.compute.server) that gives C(networks) replaces it.
  - Detaching waits until the guest lets go of the NIC. A guest that refuses within the agent's C(detach_timeout)
    keeps it, and the task fails.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.interface_attachment
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.interface_attachment_info
  - module: magnetar.compute.network
  - module: magnetar.compute.server
"""

EXAMPLES = r"""
- name: Give a server a second NIC
  magnetar.compute.interface_attachment:
    server: web1
    bridge: br1

- name: One with a MAC and a model
  magnetar.compute.interface_attachment:
    server: web1
    network: lan
    mac: "52:54:00:12:34:77"
    model: e1000e
    tag: back

- name: Remove it
  magnetar.compute.interface_attachment:
    server: web1
    mac: "52:54:00:12:34:77"
    state: absent

- name: Remove the NIC on a bridge
  magnetar.compute.interface_attachment:
    server: web1
    bridge: br1
    state: absent
"""

RETURN = r"""
interface_attachment:
  description:
    - The interface attachment as it is afterwards, or as it would be in check mode.
    - With O(state=absent) it is the last that was known of it, or V(null) if there was none.
  returned: on success, unless a running operation is returned
  type: dict
  contains:
    id:
      description: The uuid, which follows from server and MAC address.
      type: str
      sample: 5b6c0a4e-9f0a-5d0e-8a55-7b1f6a0c2d11
    server:
      description: The server, by name or uuid.
      type: str
      sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d
    network:
      description: A network known to the agent, or a libvirt network.
      type: str
      sample: lan
    bridge:
      description: A bridge of the host, in place of network.
      type: str
    port:
      description: A logical switch port of OVN, in place of network.
      type: str
    physical_network:
      description: A physical network, of which the NIC is a device of the host, in place of network.
      type: str
    vnic_type:
      description: How the guest has such a NIC; C(direct) when omitted.
      type: str
    trusted:
      description: Whether the card trusts such a NIC; C(false) when omitted.
      type: bool
    max_tx_rate:
      description: How much such a NIC sends at most, in Mbit/s; C(0) for no limit.
      type: int
    min_tx_rate:
      description: How much of its card it is sure of, in Mbit/s; C(0) for nothing.
      type: int
    vlan:
      description: The VLAN of such a NIC.
      type: int
    mac:
      description: MAC address; drawn once when omitted.
      type: str
      sample: '52:54:00:12:34:56'
    model:
      description: Model of the card; C(virtio) when omitted.
      type: str
      sample: virtio
    tag:
      description: Device tag, shown to the guest in the config drive that is made with the server.
      type: str
    address:
      description: IPv4 address. On a network that the agent makes, its DHCP gives it; elsewhere it is only shown.
        Kept when omitted; null for none.
      type: str
    port_security:
      description: Whether only frames from its MAC and its addresses pass, and none of a DHCP server or router.
        C(true) for a new NIC when omitted.
      type: bool
      sample: true
    allowed_addresses:
      description: Addresses and networks that it may send from, besides its own.
      type: list
      elements: str
      sample: []
    server_name:
      description: The server's name.
      type: str
      sample: web1
    addresses:
      description: 'Its addresses as far as they are known: {addr, version, mac, source}.'
      type: raw
      sample:
        - addr: 192.168.100.57
          version: 4
          mac: '52:54:00:12:34:56'
          source: lease
actions:
  description: What was done, or would be in check mode, in order.
  returned: on success
  type: list
  elements: str
  sample: [record, plug, define]
changes:
  description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden.
  returned: on success
  type: dict
  sample: {address: {old: null, new: 192.168.100.57}}
operation:
  description: The work that goes on, when it was not waited for.
  returned: when O(wait=false) and the work takes longer than a moment
  type: dict
  sample:
    id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10
    status: running
request_id:
  description: Name of the request in the agent's logs.
  returned: when the agent has answered
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

from ansible_collections.magnetar.compute.plugins.module_utils.modules.attachment import InterfaceAttachmentModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run

MODULE = InterfaceAttachmentModule()

if __name__ == "__main__":
    run(MODULE)
