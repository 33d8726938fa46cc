#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: network_info
version_added: "0.1.0"
short_description: Report networks
description:
  - Reports the networks of a host or a cloud. An empty result is not a failure.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.network_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.network
"""

EXAMPLES = r"""
- name: All networks
  magnetar.compute.network_info:
  register: all

- name: One network
  magnetar.compute.network_info:
    name: one

- name: Some networks, by pattern and field
  magnetar.compute.network_info:
    name: o*
    filters:
      mode: nat

- name: Names only, sorted
  magnetar.compute.network_info:
    fields: [id, name]
    sort: name
    limit: 100
"""

RETURN = r"""
networks:
  description: The matching networks; empty when there are none.
  returned: on success
  type: list
  elements: dict
  contains:
    id: {description: 'The uuid; generated when the resource is created, unless given.', type: str,
        sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The name of the network; also its name in libvirt., type: str, sample: lan}
    description: {description: Free text of at most 255 characters., type: str, sample: for the shop}
    created_at: {description: 'When it was created, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    updated_at: {description: 'When it was last changed, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    mode: {description: 'bridge: an existing bridge; nat: routed out by address translation; isolated: guests and host
          only; ovn: over all hosts of a cloud, by OVN.', type: str, sample: nat}
    bridge: {description: 'The bridge: an existing one for mode bridge; otherwise its name, which is generated when
          omitted.', type: str, sample: magbr0}
    cidr: {description: 'Addresses of the network; the first is the host''s, or the router''s of mode ovn. Needed for
          nat and isolated.', type: str, sample: 192.168.100.0/24}
    dhcp: {description: Whether the host answers DHCP on it; nat and isolated only., type: bool, sample: true}
    dhcp_start: {description: First address given by DHCP., type: str, sample: 192.168.100.2}
    dhcp_end: {description: Last address given by DHCP., type: str, sample: 192.168.100.254}
    domain: {description: 'DNS domain of the guests; in a cloud for mode ovn, whose guests find one another there by
          name.', type: str, sample: lab.example}
    mtu: {description: MTU; 0 for the default., type: int, sample: 1500}
    qos_policy: {description: 'QoS policy of its ports, by name or uuid, of a cloud with OVN; C(none) for none. As it
          is, of a new one the project''s default policy, when omitted.', type: str}
    shared: {description: Whether all projects of a cloud may use it; administrators say so., type: bool, sample: false}
    external: {description: 'Whether it is an external network of a cloud, which routers lead to and floating IPs come
          from; administrators say so.', type: bool, sample: false}
    provider_network_type: {description: 'For mode ovn: C(flat) or C(vlan), a physical network that hosts are connected
          to, or C(geneve), a virtual one, which is the default. Only administrators set it, and see it.', type: str}
    provider_physical_network: {description: Name of the physical network., type: str}
    provider_segmentation_id: {description: VLAN tag of C(vlan)., type: int}
    active: {description: Whether it is up., type: bool, sample: true}
    managed: {description: 'Whether the agent made it, and so removes it.', type: bool, sample: true}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import Network
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(Network)

if __name__ == "__main__":
    run_module_process(MODULE)
