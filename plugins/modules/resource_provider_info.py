#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: resource_provider_info
version_added: "0.1.0"
short_description: 'Report resource providers of a cloud: inventories, traits and claims'
description:
  - Reports inventories, claims, traits and aggregates of hosts, and the settings of operators for them.
  - Needs the role V(admin).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.resource_provider_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.resource_provider
"""

EXAMPLES = r"""
- name: All hosts
  magnetar.compute.resource_provider_info:
    cloud: mycloud

- name: The claims on kvm1
  magnetar.compute.resource_provider_info:
    cloud: mycloud
    name: kvm1
"""

RETURN = r"""
resource_providers:
  description: The matching resource providers; empty when there are none.
  returned: on success
  type: list
  elements: dict
  contains:
    id: {description: The uuid., type: str, sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The host's name., type: str, sample: kvm1}
    own_traits: {description: 'Traits from operators, in addition to the traits that its agent reports, such as
          C(CUSTOM_SSD). Missing custom traits are created. Given traits replace the existing ones.', type: list,
        elements: str, sample: [CUSTOM_SSD]}
    own_inventories: {description: 'Settings of operators for its inventories, by resource class. Of
          C(VCPU), C(MEMORY_MB), C(DISK_GB), C(PCPU) and other classes that its agent reports: C(reserved)
          and C(allocation_ratio). Of custom classes also C(total), C(min_unit), C(max_unit) and C(step_size).
          Given inventories replace the existing ones; other classes follow settings, aggregates and the
          agent.', type: dict, sample: {VCPU: {allocation_ratio: 4.0}, CUSTOM_LICENSE: {total: 8, reserved: 0,
            min_unit: 1, max_unit: 2147483647, step_size: 1, allocation_ratio: 1.0}}}
    traits: {description: All its traits., type: list, elements: str, sample: [COMPUTE_NODE, CUSTOM_SSD]}
    inventories: {description: 'All its inventories, by resource class.', type: dict, sample: {VCPU: {total: 16,
            reserved: 0, min_unit: 1, max_unit: 16, step_size: 1, allocation_ratio: 4.0}}}
    usages: {description: Claimed amounts of them., type: dict, sample: {VCPU: 3}}
    aggregates: {description: Names of the host aggregates that it is in., type: list, elements: str, sample: [fast]}
    generation: {description: 'A number that is another one when inventories, traits or aggregates are.', type: int,
        sample: 7}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import ResourceProvider
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(ResourceProvider)

if __name__ == "__main__":
    run_module_process(MODULE)
