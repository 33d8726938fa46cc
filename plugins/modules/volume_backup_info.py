#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: volume_backup_info
version_added: "0.2.0"
short_description: Report backups of volumes of a cloud
description:
  - Reports the backups of volumes of the login's project, also while they are written or restored.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.volume_backup_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.volume_backup
"""

EXAMPLES = r"""
- name: All backups
  magnetar.compute.volume_backup_info:
    cloud: mycloud
  register: all

- name: The backups of one volume that can be restored, the newest first
  magnetar.compute.volume_backup_info:
    cloud: mycloud
    filters:
      volume: 0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11
      status: available
    sort: -data_timestamp
"""

RETURN = r"""
volume_backups:
  description: The matching volume backups; empty when there are none.
  returned: on success
  type: list
  elements: dict
  contains:
    id: {description: The uuid; generated when the backup is created., type: str,
        sample: 6d2f7c8e-1b7a-4c1b-8e54-0f6f3b1c9a42}
    name: {description: The name of the backup., type: str, sample: monday}
    description: {description: Free text of at most 255 characters., type: str, sample: for the shop}
    created_at: {description: 'When it was created, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    updated_at: {description: 'When it was last changed, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    volume: {description: 'The volume to back up, by name or uuid.', type: str,
        sample: 0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11}
    snapshot: {description: 'Snapshot of the volume to back up, by name or uuid, instead of the volume as it is now.',
        type: str}
    incremental: {description: 'Whether the backup stores only what differs from the volume''s latest backup, its
          parent, which a restore then needs too.', type: bool, sample: false}
    container: {description: 'A label, as in Cinder; the directory or bucket is the same for all.', type: str}
    metadata: {description: 'Keys and values, 255 characters each at most.', type: dict, sample: {keep: 30d}}
    parent: {description: The backup that this incremental one needs; null for a full backup., type: str}
    has_dependent_backups: {description: Whether incremental backups need this one. It cannot be removed before them.,
        type: bool, sample: false}
    size: {description: Size of the volume in GiB., type: int, sample: 10}
    stored_chunks: {description: 'Parts of the volume, of 1 MiB each, that this backup stores.', type: int,
        sample: 1024}
    data_timestamp: {description: 'The moment whose content the backup has, ISO 8601 in UTC.', type: str,
        sample: '2026-11-20T20:00:00Z'}
    status: {description: Cinder's status word., type: str, sample: available}
    fault: {description: Why the last task failed., type: str}
    restored_volume: {description: 'With C(state=restored), the volume that has the backup''s content. Only the result
          of such a task has it.', type: str}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import CloudVolumeBackup
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(CloudVolumeBackup)

if __name__ == "__main__":
    run_module_process(MODULE)
