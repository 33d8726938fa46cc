#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: hypervisor_info
version_added: "0.1.0"
short_description: Report the hosts of a cloud as the scheduler sees them
description:
  - Reports the CPUs, memory and disk of each compute host, their claims, and the limits by allocation ratios.
  - Needs the role V(admin).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.hypervisor_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.compute_service
  - module: magnetar.compute.host_info
"""

EXAMPLES = r"""
- name: All hosts
  magnetar.compute.hypervisor_info:
    cloud: mycloud
  register: all

- name: Hosts of one rack, fullest first
  magnetar.compute.hypervisor_info:
    cloud: mycloud
    name: rack1-*
    sort: -memory_mb_used
"""

RETURN = r"""
hypervisors:
  description: The matching hypervisors; empty when there are none.
  returned: on success
  type: list
  elements: dict
  contains:
    id: {description: The uuid., type: str, sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The host's name., type: str, sample: kvm1}
    cell: {description: Name of its cell., type: str, sample: cell1}
    zone: {description: Its availability zone., type: str, sample: nova}
    up: {description: Whether its agent reports., type: bool, sample: true}
    disabled: {description: Whether it gets no new servers., type: bool, sample: false}
    disabled_reason: {description: Why., type: str}
    forced_down: {description: Whether an administrator has forced it down., type: bool, sample: false}
    type: {description: Type of the hypervisor., type: str, sample: QEMU}
    version: {description: Its version., type: str, sample: 7.2.22}
    vcpus: {description: Shared CPUs of the host., type: int, sample: 16}
    vcpus_used: {description: CPUs that are claimed., type: int, sample: 4}
    vcpus_limit: {description: 'CPUs that may be claimed, by the allocation ratio.', type: int, sample: 64}
    pcpus: {description: Dedicated CPUs of the host., type: int, sample: 8}
    pcpus_used: {description: Those that are claimed., type: int, sample: 2}
    pcpus_limit: {description: Those that may be claimed., type: int, sample: 8}
    memory_mb: {description: Memory of the host in MiB., type: int, sample: 65536}
    memory_mb_used: {description: Memory that is claimed in MiB., type: int, sample: 8192}
    memory_mb_limit: {description: Memory that may be claimed in MiB., type: int, sample: 65024}
    disk_gb: {description: Disk of the host in GiB., type: int, sample: 900}
    disk_gb_used: {description: Disk that is claimed in GiB., type: int, sample: 200}
    disk_gb_limit: {description: Disk that may be claimed in GiB., type: int, sample: 900}
    servers: {description: 'Servers on it, and servers that move to it.', type: int, sample: 4}
    virt_types: {description: 'Kinds of virtualisation that work there, best first.', type: list, elements: raw,
        sample: [kvm, qemu]}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import Hypervisor
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(Hypervisor)

if __name__ == "__main__":
    run_module_process(MODULE)
