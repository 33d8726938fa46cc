#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_info
version_added: "0.1.0"
short_description: Report the host of an agent
description:
  - Reports the hypervisor, the CPUs, memory and disk of the host with what is used of them, and whether KVM works.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.host_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.server_info
"""

EXAMPLES = r"""
- name: The host that the play runs on
  magnetar.compute.host_info:
  register: result

- name: Does KVM work there?
  ansible.builtin.debug:
    msg: "{{ result.hosts[0].kvm.usable }}"

- name: A host over the network, from the controller
  magnetar.compute.host_info:
    endpoint: https://kvm1.example.org:6553
    token: "{{ vault_token }}"
  delegate_to: localhost

- name: Stop when libvirt does not answer the agent
  ansible.builtin.assert:
    that: result.hosts[0].connected
"""

RETURN = r"""
hosts:
  description: The host of the agent, as the only item.
  returned: on success
  type: list
  elements: dict
  sample:
    - id: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d
      name: kvm1
      hypervisor_type: QEMU
      hypervisor_version: 7.2.22
      libvirt_version: 9.0.0
      agent_version: 0.1.0
      architecture: x86_64
      virt_types:
        - kvm
        - qemu
      kvm:
        usable: true
        reason: a guest started in 0.1 s
        checked_at: '2026-11-20T20:00:00Z'
      vcpus: 16
      vcpus_used: 4
      memory_mb: 65536
      memory_mb_used: 8192
      disk_gb: 900
      disk_gb_free: 700
      cpu_model: EPYC-Rome
      servers: 4
      cloud_servers: 0
      running: 3
      connected: true
      link_name: kvm1
      link_port: 6553
      orphans:
        domains: []
        files: []
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

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import Host
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run

MODULE = InfoModule(Host)

if __name__ == "__main__":
    run(MODULE)
