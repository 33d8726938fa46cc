#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: availability_zone_info
version_added: "0.1.0"
short_description: Report the availability zones of a cloud
description:
  - Reports the availability zones that a new server can ask for; administrators also see their hosts.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.availability_zone_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.server
  - module: magnetar.compute.hypervisor_info
"""

EXAMPLES = r"""
- name: All zones
  magnetar.compute.availability_zone_info:
    cloud: mycloud
  register: result

- name: Names of the zones that get new servers
  ansible.builtin.debug:
    msg: "{{ result.availability_zones | selectattr('available') | map(attribute='name') }}"
"""

RETURN = r"""
availability_zones:
  description: The availability zones of the cloud.
  returned: on success
  type: list
  elements: dict
  contains:
    name: {description: The name., type: str, sample: nova}
    available: {description: Whether one of its hosts gets new servers., type: bool, sample: true}
    hosts: {description: Names of its hosts; empty unless the caller is an administrator., type: list, elements: str,
        sample: [kvm1, kvm2]}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import AvailabilityZone
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(AvailabilityZone)

if __name__ == "__main__":
    run_module_process(MODULE)
