#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: volume
version_added: "0.1.0"
short_description: Manage volumes, disks that are independent of servers
description:
  - Creates, updates or removes a volume.
  - A volume is empty, or made from an image, another volume or a volume snapshot. It can be extended, also while
    a running server has it, and never shrinks.
  - A volume in use by a server is not removed; see M(magnetar.compute.volume_attachment).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.volume
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.volume_info
  - module: magnetar.compute.volume_attachment
  - module: magnetar.compute.volume_snapshot
  - module: magnetar.compute.server
"""

EXAMPLES = r"""
- name: An empty volume
  magnetar.compute.volume:
    name: data
    size: 10

- name: A volume to boot from, with all options
  magnetar.compute.volume:
    name: root
    description: root disk of the shop
    image: debian
    size: 20
    pool: default
    format: raw
    metadata:
      role: db
    timeout: 1800

- name: Extend it, also while a running server has it
  magnetar.compute.volume:
    name: data
    size: 20

- name: A copy of it as it is now
  magnetar.compute.volume:
    name: copy
    source_volume: data

- name: Remove it
  magnetar.compute.volume:
    name: copy
    state: absent
"""

RETURN = r"""
volume:
  description: 'The volume after the task; in check mode, as it would be. With O(state=absent), the last known volume,
      or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    id: {description: 'The uuid; generated when the resource is created, unless given.', type: str,
        sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The name., type: str, sample: data}
    description: {description: Free text of at most 255 characters., type: str, sample: for the shop}
    created_at: {description: 'When it was created, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    updated_at: {description: 'When it was last changed, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    size: {description: 'Size in GiB. Required for an empty volume; otherwise it defaults to the size of its source,
          rounded up. It can grow, also while a running server has it, and never shrinks.', type: int, sample: 10}
    pool: {description: 'Its pool, one of the agent''s setting C(pools).', type: str, sample: default}
    format: {description: 'Format of its content on the host; when omitted, the format of an encrypted source, or the
          format of the pool. With C(luks) it is encrypted (AES-256 in XTS mode), in pools that are folders; the host
          generates and keeps the key. A copy of an encrypted volume is also encrypted.', type: str, sample: qcow2}
    image: {description: 'Image as its source, by name or uuid.', type: str}
    source_volume: {description: 'Volume of this host to copy, by name or uuid.', type: str}
    snapshot: {description: 'Volume snapshot as its source, by name or uuid.', type: str}
    adopt: {description: 'From a cloud: whether the volume takes over complete content that the pool has under its uuid,
          from a host that held it before.', type: bool, sample: false}
    metadata: {description: 'Keys and values, 255 characters each at most.', type: dict, sample: {role: db}}
    multiattach: {description: 'Whether several servers may use it at the same time. They need a cluster file system,
          and the format C(raw).', type: bool, sample: false}
    bootable: {description: 'Whether its content comes from an image, directly or through copies.', type: bool,
        sample: false}
    status: {description: Cinder's status word., type: str, sample: available}
    attachments: {description: 'The servers that have it: {id, server, server_name, device}.', type: list,
        elements: dict, sample: [{id: 5b6c0a4e-9f0a-5d0e-8a55-7b1f6a0c2d11, device: vdb, server_name: web1,
            server: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}]}
    shared: {description: 'Whether other hosts reach its pool, too.', type: bool, sample: false}
    host: {description: The host., type: str, sample: kvm1}
    fault: {description: '{code, message, created} of the last failure, until one succeeds.', type: raw}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record, grow]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {size: {old: 10, new: 20}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the agent., returned: when the agent has answered,
    type: str, sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import Volume
from ansible_collections.magnetar.compute.plugins.module_utils.modules.resource import ResourceModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = ResourceModule(Volume)

if __name__ == "__main__":
    run_module_process(MODULE)
