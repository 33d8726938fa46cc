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
  - Attaches a NIC on a network or bridge to a server, or detaches it, while the server runs or is off.
  - An attached NIC becomes part of the O(magnetar.compute.server#module:networks) of its server, so a task of
    M(magnetar.compute.server) with C(networks) replaces it.
  - Detaching waits until the guest releases the NIC. If it does not within the agent's C(detach_timeout), the NIC
    stays and the task fails.
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
  description: 'The interface attachment after the task; in check mode, as it would be. With O(state=absent), the last
      known interface attachment, or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    id: {description: 'The uuid, which follows from server and MAC address.', type: str,
        sample: 5b6c0a4e-9f0a-5d0e-8a55-7b1f6a0c2d11}
    server: {description: 'The server, by name or uuid.', type: str, sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    network: {description: 'A network of the agent, or a libvirt network.', type: str, sample: lan}
    bridge: {description: 'A bridge of the host, in place of network.', type: str}
    port: {description: 'A logical switch port of OVN, in place of network.', type: str}
    physical_network: {description: A physical network in place of network; the NIC is a device of the host there.,
        type: str}
    vnic_type: {description: Type of such a NIC in the guest; C(direct) when omitted., type: str}
    trusted: {description: Whether the card trusts such a NIC; C(false) when omitted., type: bool}
    max_tx_rate: {description: Maximum rate of outgoing traffic of such a NIC in Mbit/s; C(0) for no limit., type: int}
    min_tx_rate: {description: Guaranteed rate of outgoing traffic in Mbit/s; C(0) for none., type: int}
    vlan: {description: The VLAN of such a NIC., type: int}
    mac: {description: MAC address; generated once when omitted., type: str, sample: '52:54:00:12:34:56'}
    model: {description: Model of the card; C(virtio) when omitted., type: str, sample: virtio}
    tag: {description: 'Device tag, shown to the guest in the config drive that is made with the server.', type: str}
    address: {description: 'IPv4 address. On a network that the agent creates, its DHCP server assigns it; elsewhere
          it is only shown. Kept when omitted; null for none.', type: str}
    port_security: {description: 'Whether only frames from its MAC and its addresses pass, and none of a DHCP server
          or router. C(true) for a new NIC when omitted.', type: bool, sample: true}
    allowed_addresses: {description: Further addresses and networks that it may send from., type: list, elements: str,
        sample: []}
    server_name: {description: The server's name., type: str, sample: web1}
    addresses: {description: 'Its addresses as far as they are known: {addr, version, mac, source}.', type: raw,
        sample: [{addr: 192.168.100.57, version: 4, mac: '52:54:00:12:34:56', source: lease}]}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record, plug, define]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {address: {old: null, new: 192.168.100.57}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the agent., returned: when the agent has answered,
    type: str, sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.attachment import InterfaceAttachmentModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InterfaceAttachmentModule()

if __name__ == "__main__":
    run_module_process(MODULE)
