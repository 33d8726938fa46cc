#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: volume_snapshot_info
version_added: "0.1.0"
short_description: Report volume snapshots
description:
  - Reports the volume snapshots of a host or a cloud. An empty result is not a failure.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.volume_snapshot_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.volume_snapshot
"""

EXAMPLES = r"""
- name: All volume snapshots
  magnetar.compute.volume_snapshot_info:
  register: all

- name: Some volume snapshots, by pattern and field
  magnetar.compute.volume_snapshot_info:
    name: d*
    filters:
      pool: default

- name: Names only, sorted
  magnetar.compute.volume_snapshot_info:
    fields: [id, name]
    sort: name
    limit: 100
"""

RETURN = r"""
volume_snapshots:
  description: The matching volume snapshots; empty when there are none.
  returned: on success
  type: list
  elements: dict
  contains:
    id: {description: 'The uuid; generated when the resource is created, unless given.', type: str,
        sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The name., type: str, sample: monday}
    description: {description: Free text of at most 255 characters., type: str, sample: for the shop}
    created_at: {description: 'When it was created, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    updated_at: {description: 'When it was last changed, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    volume: {description: 'The volume, by name or uuid. The snapshot stays when the volume goes.', type: str,
        sample: 0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11}
    metadata: {description: 'Keys and values, 255 characters each at most.', type: dict, sample: {role: db}}
    size: {description: Size in GiB., type: int, sample: 10}
    pool: {description: 'Its pool, the pool of its volume.', type: str, sample: default}
    format: {description: Format of its content on the host., type: str, sample: qcow2}
    bootable: {description: Whether its volume was made from an image., type: bool, sample: false}
    status: {description: Cinder's status word., type: str, sample: available}
    host: {description: The host., type: str, sample: kvm1}
    fault: {description: '{code, message, created} of the last failure, until one succeeds.', type: raw}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import VolumeSnapshot
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(VolumeSnapshot)

if __name__ == "__main__":
    run_module_process(MODULE)
