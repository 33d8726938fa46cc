#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: volume_snapshot
version_added: "0.1.0"
short_description: Manage volume snapshots, copies of volumes as they were at a moment
description:
  - Takes a snapshot of a volume, or removes one. A snapshot that exists is never taken again.
  - A running server may use the volume; the snapshot lacks data that its guest has not yet written to the disk.
  - A snapshot is a full copy in the pool of its volume, and stays when the volume is removed.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.volume_snapshot
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.volume_snapshot_info
  - module: magnetar.compute.volume
"""

EXAMPLES = r"""
- name: Take a snapshot
  magnetar.compute.volume_snapshot:
    name: data-before-upgrade
    volume: data

- name: Make a volume from the snapshot
  magnetar.compute.volume:
    name: data-restored
    snapshot: data-before-upgrade

- name: Remove the snapshot
  magnetar.compute.volume_snapshot:
    name: data-before-upgrade
    state: absent
"""

RETURN = r"""
volume_snapshot:
  description: 'The volume snapshot after the task; in check mode, as it would be. With O(state=absent), the last known
      volume snapshot, or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
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
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record, make]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {description: {old: '', new: before the upgrade}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the agent., returned: when the agent has answered,
    type: str, sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import VolumeSnapshot
from ansible_collections.magnetar.compute.plugins.module_utils.modules.resource import ResourceModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = ResourceModule(VolumeSnapshot)

if __name__ == "__main__":
    run_module_process(MODULE)
