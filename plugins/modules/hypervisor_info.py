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
  - Reports the CPUs, memory and disk of each compute host, what is claimed of them, and what the allocation
    ratios allow to be claimed.
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
  description: The hypervisors that fit; empty when there are none.
  returned: on success
  type: list
  elements: dict
  sample:
    - id: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d
      name: kvm1
      cell: cell1
      zone: nova
      up: true
      disabled: false
      disabled_reason: null
      forced_down: false
      type: QEMU
      version: 7.2.22
      vcpus: 16
      vcpus_used: 4
      vcpus_limit: 64
      memory_mb: 65536
      memory_mb_used: 8192
      memory_mb_limit: 65024
      disk_gb: 900
      disk_gb_used: 200
      disk_gb_limit: 900
      servers: 4
      virt_types:
        - kvm
        - qemu
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

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import Hypervisor
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run

MODULE = InfoModule(Hypervisor)

if __name__ == "__main__":
    run(MODULE)
