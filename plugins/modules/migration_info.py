#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: migration_info
version_added: "0.1.0"
short_description: Report migrations
description:
  - Reports the migrations from and to the host of an agent, those that go on and the last thousand that ended.
  - In a cloud, reports the last thousand of all hosts, as their sources see them, to administrators. What only an
    agent knows is empty there, and V(status) is the word of the Compute API.
  - That there are none is no failure.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.migration_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.migration
"""

EXAMPLES = r"""
- name: All migrations from and to this host
  magnetar.compute.migration_info:
  register: all

- name: Progress of the migration of one server
  magnetar.compute.migration_info:
    name: web1
    filters:
      status: running
    fields: [id, name, status, progress]
"""

RETURN = r"""
migrations:
  description: The migrations that fit; empty when there are none.
  returned: on success
  type: list
  elements: dict
  sample:
    - id: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d
      name: web1
      description: for the shop
      created_at: '2026-11-20T20:00:00Z'
      updated_at: '2026-11-20T20:00:00Z'
      server: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d
      side: source
      peer: kvm2
      address: kvm2:6553
      type: live
      phase: settled
      manifest: null
      max_downtime: 300
      bandwidth: 100
      auto_converge: true
      time_limit: 600
      on_time_limit: abort
      status: completed
      progress:
        phase: memory
        done: 123456789
        total: 134217728
        remaining: 10760939
        dirty_rate: 1048576
        seconds_left: 1
      native_tls: false
      fault: null
      host: kvm1
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

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import Migration
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run

MODULE = InfoModule(Migration)

if __name__ == "__main__":
    run(MODULE)
