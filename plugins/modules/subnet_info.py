#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: subnet_info
version_added: "0.1.0"
short_description: Report the subnets of a cloud
description:
  - Reports the subnets of the project, and of networks that are shared with it.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.subnet_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.subnet
"""

EXAMPLES = r"""
- name: All subnets
  magnetar.compute.subnet_info:
    cloud: mycloud
  register: all

- name: Those without DHCP
  magnetar.compute.subnet_info:
    cloud: mycloud
    filters:
      enable_dhcp: false
"""

RETURN = r"""
subnets:
  description: The matching subnets; empty when there are none.
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
    cidr: {description: 'Its addresses, such as C(10.1.0.0/24) or C(fd00:1::/64). Default: the first free ones
          of C(subnet_pool).', type: str, sample: 10.1.0.0/24}
    subnet_pool: {description: 'The subnet pool of its addresses, by name or uuid.', type: str}
    prefix_length: {description: 'Length of its prefix in bits, in place of C(cidr). Default: the pool''s.', type: int,
        sample: 24}
    gateway_ip: {description: Address of the router; C(none) for none. The first one when omitted., type: str,
        sample: 10.1.0.1}
    enable_dhcp: {description: Whether guests get their addresses by DHCP., type: bool, sample: true}
    allocation_pools: {description: 'Ranges of the addresses that ports get. Default: all addresses except the
          gateway''s.', type: list, elements: dict, sample: [{start: 10.1.0.2, end: 10.1.0.254}]}
    dns_nameservers: {description: Addresses of DNS servers for guests., type: list, elements: str, sample: [
          192.0.2.53]}
    host_routes: {description: Routes that guests are told., type: list, elements: dict, sample: [
          {destination: 10.9.0.0/16, nexthop: 10.1.0.9}]}
    ipv6_address_mode: {description: 'Method for IPv6 addresses of guests; without it, guests set them themselves.',
        type: str}
    ipv6_ra_mode: {description: 'Advertisements of a router: as C(ipv6_address_mode), or none.', type: str}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import Subnet
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(Subnet)

if __name__ == "__main__":
    run_module_process(MODULE)
