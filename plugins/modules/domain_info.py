#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: domain_info
version_added: "0.2.0"
short_description: Report domains of a cloud
description:
  - Reports domains. Users without the role V(admin) see their own domains.
  - Only for clouds with the embedded identity service. A cloud with a Keystone of its own refuses the task, and names
    the module of openstack.cloud to use.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.domain_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.domain
"""

EXAMPLES = r"""
- name: All domains
  magnetar.compute.domain_info:
    cloud: mycloud

- name: The domains that are disabled
  magnetar.compute.domain_info:
    cloud: mycloud
    filters:
      is_enabled: false
"""

RETURN = r"""
domains:
  description: The matching domains; empty when there are none.
  returned: on success
  type: list
  elements: dict
  contains:
    id: {description: The id; the cloud generates it., type: str, sample: 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a}
    name: {description: The name., type: str, sample: shop}
    description: {description: Free text., type: str, sample: for the shop}
    is_enabled: {description: Whether it is enabled. Nobody logs in with users or projects of a disabled domain.,
        type: bool, sample: true}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import IdentityDomain
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(IdentityDomain)

if __name__ == "__main__":
    run_module_process(MODULE)
