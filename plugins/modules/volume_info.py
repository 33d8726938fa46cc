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
  - Reports the volumes of a host or a cloud. An empty result is not a failure.
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
  description: The matching volumes; empty when there are none.
  returned: on success
  type: list
  elements: dict
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
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import Volume
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(Volume)

if __name__ == "__main__":
    run_module_process(MODULE)
