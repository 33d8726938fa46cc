#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: volume_info
version_added: "0.1.0"
short_description: Report volumes
description:
  - Reports the volumes that an agent knows. That there are none is no failure.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.volume_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.volume
"""

EXAMPLES = r"""
- name: All volumes
  magnetar.compute.volume_info:
  register: all

- name: Some volumes, by pattern and field
  magnetar.compute.volume_info:
    name: d*
    filters:
      status: available

- name: Names only, sorted
  magnetar.compute.volume_info:
    fields: [id, name]
    sort: name
    limit: 100
"""

RETURN = r"""
volumes:
  description: The volumes that fit; empty when there are none.
  returned: on success
  type: list
  elements: dict
  sample:
    - id: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d
      name: web1
      description: for the shop
      created_at: '2026-11-20T20:00:00Z'
      updated_at: '2026-11-20T20:00:00Z'
      size: 10
      pool: default
      format: qcow2
      image: null
      source_volume: null
      snapshot: null
      metadata:
        role: db
      multiattach: false
      bootable: false
      status: available
      attachments:
        - id: 5b6c0a4e-9f0a-5d0e-8a55-7b1f6a0c2d11
          device: vdb
          server_name: web1
          server: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d
      shared: false
      host: kvm1
      fault: null
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

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import Volume
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run

MODULE = InfoModule(Volume)

if __name__ == "__main__":
    run(MODULE)
