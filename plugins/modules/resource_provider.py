#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: resource_provider
version_added: "0.1.0"
short_description: Set traits, ratios, reserved amounts and custom resources of a host
description:
  - Sets inventories and traits of a host of a cloud for the scheduler, in addition to the reports of its agent. They
    act immediately, stay whatever the agent reports later, and Placement's API shows them.
  - A provider exists as long as its host does; this module neither creates nor removes it. Needs the role V(admin).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.resource_provider
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.resource_provider_info
  - module: magnetar.compute.trait_info
  - module: magnetar.compute.aggregate
"""

EXAMPLES = r"""
- name: Promise each CPU of kvm1 four times, and keep memory from servers
  magnetar.compute.resource_provider:
    cloud: mycloud
    name: kvm1
    own_inventories:
      VCPU: {allocation_ratio: 4.0}
      MEMORY_MB: {reserved: 2048}

- name: Give it eight licenses, which flavors ask for with resources:CUSTOM_LICENSE, and a trait
  magnetar.compute.resource_provider:
    cloud: mycloud
    name: kvm1
    own_inventories:
      CUSTOM_LICENSE: {total: 8}
    own_traits: [CUSTOM_SSD]

- name: Let settings, aggregates and its agent say it all again
  magnetar.compute.resource_provider:
    cloud: mycloud
    name: kvm1
    own_inventories: {}
    own_traits: []
"""

RETURN = r"""
resource_provider:
  description: 'The resource provider after the task; in check mode, as it would be.'
  returned: 'on success, unless a running operation is returned'
  type: dict
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
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {own_traits: {old: [], new: [CUSTOM_SSD]}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.resource_provider import ResourceProviderModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = ResourceProviderModule()

if __name__ == "__main__":
    run_module_process(MODULE)
