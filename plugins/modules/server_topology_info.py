#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: server_topology_info
version_added: "0.1.0"
short_description: Report the NUMA topology of a server of a cloud
description:
  - Reports the NUMA nodes of a guest, and the size of its pages. A guest without NUMA placement has no nodes.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.server_topology_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.server_info
"""

EXAMPLES = r"""
- name: NUMA nodes of web1
  magnetar.compute.server_topology_info:
    cloud: mycloud
    server: web1
  register: result

- name: Has it nodes of its own?
  ansible.builtin.debug:
    msg: "{{ result.server_topologies[0].nodes | length }} nodes"

- name: The same, of a server called by its uuid
  magnetar.compute.server_topology_info:
    cloud: mycloud
    server: "{{ result.server_topologies[0].server }}"
"""

RETURN = r"""
server_topologies:
  description: 'The NUMA topology of the server, as the only item.'
  returned: on success
  type: list
  elements: dict
  contains:
    server: {description: Uuid of the server., type: str, sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    nodes: {description: 'Its NUMA nodes: {memory_mb, vcpu_set, siblings}, for administrators with host_node
          and cpu_pinning; empty for a guest that has none of its own.', type: list, elements: dict, sample: [
          {memory_mb: 1024, vcpu_set: [0, 1], siblings: [], host_node: 0, cpu_pinning: {'0': 4, '1': 5}}]}
    pagesize_kb: {description: The size of its pages in KiB; null for pages as they come., type: int}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.server_topology import ServerTopologyInfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = ServerTopologyInfoModule()

if __name__ == "__main__":
    run_module_process(MODULE)
