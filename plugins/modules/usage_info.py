#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: usage_info
version_added: "0.1.0"
short_description: Report the usage of projects of a cloud in a period
description:
  - Reports the servers that a project had in a period, with their hours, and the sums. Deleted servers are included
    until the cloud purges them.
  - A project without servers in the period is not reported.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.usage_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.quota_info
"""

EXAMPLES = r"""
- name: The usage of the project in November
  magnetar.compute.usage_info:
    cloud: mycloud
    begin: "2026-11-01"
    end: "2026-12-01"

- name: The current usage of all projects
  magnetar.compute.usage_info:
    cloud: mycloud
    all_projects: true
"""

RETURN = r"""
usages:
  description: The usage of each project; empty when none had a server.
  returned: on success
  type: list
  elements: dict
  contains:
    name: {description: The id of the project., type: str, sample: 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a}
    begin: {description: 'When the period begins, in UTC.', type: str, sample: '2026-11-01T00:00:00Z'}
    end: {description: When it ends., type: str, sample: '2026-12-01T00:00:00Z'}
    hours: {description: Hours of all servers., type: raw, sample: 72.5}
    vcpu_hours: {description: 'The same, times the CPUs of each.', type: raw, sample: 145.0}
    memory_mb_hours: {description: 'The same, times the memory of each in MiB.', type: raw, sample: 37120.0}
    disk_gb_hours: {description: 'The same, times the disk of each in GiB.', type: raw, sample: 725.0}
    servers: {description: 'The servers: {id, name, flavor, vcpus, memory_mb, disk_gb, started_at,
          ended_at, state, hours, uptime}, the last in seconds.', type: list, elements: dict, sample: [
          {id: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d, name: web1, flavor: small, vcpus: 2, memory_mb: 512,
            disk_gb: 10, started_at: '2026-11-20T20:00:00Z', ended_at: null, state: active, hours: 72.5,
            uptime: 261000}]}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.usage import UsageInfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = UsageInfoModule()

if __name__ == "__main__":
    run_module_process(MODULE)
