#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: floating_ip
version_added: "0.1.0"
short_description: Manage floating IPs of a cloud
description:
  - Creates, updates or removes a floating IP, an address of an external network for a server behind a router.
  - It has a name here. The name of a floating IP from another tool is its address.
  - Without O(name) and O(id), the module does what C(openstack.cloud.floating_ip) does. O(floating_ip_address) or
    O(server) finds the floating IP, and a server without one gets one.
  - For clouds with OVN.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.floating_ip
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.floating_ip_info
  - module: magnetar.compute.router
  - module: magnetar.compute.server
"""

EXAMPLES = r"""
- name: An address for later use
  magnetar.compute.floating_ip:
    cloud: mycloud
    name: web
    network: ext
  register: made

- name: It reaches a port
  magnetar.compute.floating_ip:
    cloud: mycloud
    name: web
    port: web1

- name: It reaches nothing any more
  magnetar.compute.floating_ip:
    cloud: mycloud
    id: "{{ made.floating_ip.id }}"
    port: none

- name: Remove it
  magnetar.compute.floating_ip:
    cloud: mycloud
    name: web
    state: absent
"""

RETURN = r"""
floating_ip:
  description: 'The floating IP after the task; in check mode, as it would be. With O(state=absent), the last known
      floating IP, or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    id: {description: 'The uuid; generated when the resource is created, unless given.', type: str,
        sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The name. One that was made without has its address for a name., type: str, sample: web}
    description: {description: Free text of at most 255 characters., type: str, sample: for the shop}
    created_at: {description: 'When it was created, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    updated_at: {description: 'When it was last changed, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    network: {description: 'The external network, by name or uuid.', type: str,
        sample: 5b6c0a4e-9f0a-4d0e-8a55-7b1f6a0c2d11}
    floating_ip_address: {description: The address; chosen automatically when omitted. Administrators may choose it.,
        type: str, sample: 192.0.2.10}
    server: {description: 'The server that it reaches, by name or uuid: the first of its ports that a router leads to;
          C(none) for none.', type: str, sample: 4f1c9a0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    port: {description: 'The port that it reaches, in place of C(server).', type: str,
        sample: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10}
    fixed_ip_address: {description: 'Address of the port, if it has several.', type: str, sample: 10.1.0.7}
    port_forwardings: {description: 'All port forwardings: each forwards one port of the floating IP
          to a port of a server, all behind one router. Other forwardings are removed. Excludes C(server)
          and C(port). Omitted, they stay as they are.', type: list, elements: dict, sample: [{protocol: tcp,
            external_port: 2222, internal_port: 22, description: '', port: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10,
            fixed_ip_address: 10.1.0.7}]}
    router: {description: Uuid of the router between., type: str, sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    status: {description: 'C(ACTIVE) while it reaches a port, otherwise C(DOWN).', type: str, sample: ACTIVE}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {port: {old: null, new: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process
from ansible_collections.magnetar.compute.plugins.module_utils.twins.floating_ip import FloatingIpModule

MODULE = FloatingIpModule()

if __name__ == "__main__":
    run_module_process(MODULE)
