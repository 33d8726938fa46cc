#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: trait_info
version_added: "0.1.0"
short_description: Report the traits that hosts of a cloud have or could have
description:
  - Reports all traits that flavors and images can require or forbid, with the hosts that have them.
  - Needs the role V(admin).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.trait_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.resource_provider
"""

EXAMPLES = r"""
- name: All traits
  magnetar.compute.trait_info:
    cloud: mycloud
  register: result

- name: Hosts with an SSD
  ansible.builtin.debug:
    msg: "{{ result.traits | selectattr('name', 'equalto', 'CUSTOM_SSD') | map(attribute='hosts') | flatten }}"
"""

RETURN = r"""
traits:
  description: The matching traits; empty when there are none.
  returned: on success
  type: list
  elements: dict
  contains:
    name: {description: The name., type: str, sample: CUSTOM_SSD}
    custom: {description: Whether operators have made it., type: bool, sample: true}
    hosts: {description: Names of the hosts that have it., type: list, elements: str, sample: [kvm1]}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import HostTrait
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(HostTrait)

if __name__ == "__main__":
    run_module_process(MODULE)
