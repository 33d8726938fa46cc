#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: compute_service_info
version_added: "0.1.0"
short_description: Report the compute services of a cloud
description:
  - Reports for each compute host whether it gets new servers, whether its agent reports, and when it last reported.
  - Needs the role V(admin).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.compute_service_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.compute_service
"""

EXAMPLES = r"""
- name: All hosts
  magnetar.compute.compute_service_info:
    cloud: mycloud
  register: all

- name: Services whose agents do not report
  magnetar.compute.compute_service_info:
    cloud: mycloud
    filters:
      state: down
"""

RETURN = r"""
compute_services:
  description: The matching compute services; empty when there are none.
  returned: on success
  type: list
  elements: dict
  contains:
    id: {description: The uuid., type: str, sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The host's name., type: str, sample: kvm1}
    binary: {description: Nova's word for the kind of service., type: str, sample: nova-compute}
    status: {description: Whether the host gets new servers., type: str, sample: enabled}
    disabled_reason: {description: The reason; only with C(disabled)., type: str}
    forced_down: {description: 'Whether it counts as down whatever its agent reports, so that its servers can be
          evacuated. Only for a host that is certainly off.', type: bool, sample: false}
    state: {description: Whether its agent has reported recently., type: str, sample: up}
    zone: {description: Its availability zone., type: str, sample: nova}
    updated_at: {description: When its agent was last heard., type: str, sample: '2026-11-20T20:00:00Z'}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import ComputeService
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(ComputeService)

if __name__ == "__main__":
    run_module_process(MODULE)
