#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: interface_attachment_info
version_added: "0.1.0"
short_description: Report interface attachments
description:
  - Reports the interface attachments of a host or a cloud. An empty result is not a failure.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.interface_attachment_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.interface_attachment
"""

EXAMPLES = r"""
- name: All interface attachments
  magnetar.compute.interface_attachment_info:
  register: all

- name: NICs of a server
  magnetar.compute.interface_attachment_info:
    server: web1

- name: MACs on a network
  magnetar.compute.interface_attachment_info:
    network: lan
    fields: [server_name, mac]
"""

RETURN = r"""
interface_attachments:
  description: The matching interface attachments; empty when there are none.
  returned: on success
  type: list
  elements: dict
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
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.attachment import InterfaceAttachmentInfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InterfaceAttachmentInfoModule()

if __name__ == "__main__":
    run_module_process(MODULE)
