#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: address_scope_info
version_added: "0.1.0"
short_description: Report the address scopes of a cloud
description:
  - Reports the address scopes of the project, and address scopes that are shared with it.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.address_scope_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.address_scope
"""

EXAMPLES = r"""
- name: All address scopes
  magnetar.compute.address_scope_info:
    cloud: mycloud
  register: all

- name: Whether one is shared
  magnetar.compute.address_scope_info:
    cloud: mycloud
    name: public
    fields: [name, shared]
"""

RETURN = r"""
address_scopes:
  description: The matching address scopes; empty when there are none.
  returned: on success
  type: list
  elements: dict
  contains:
    id: {description: 'The uuid; generated when the resource is created, unless given.', type: str,
        sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The name., type: str, sample: web1}
    description: {description: Free text of at most 255 characters., type: str, sample: for the shop}
    created_at: {description: 'When it was created, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    updated_at: {description: 'When it was last changed, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    ip_version: {description: C(4) or C(6)., type: int, sample: 4}
    shared: {description: Whether all projects may have pools of it; administrators say so., type: bool, sample: false}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import AddressScope
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(AddressScope)

if __name__ == "__main__":
    run_module_process(MODULE)
