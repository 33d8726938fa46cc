#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: volume_attachment
version_added: "0.1.0"
short_description: Attach volumes to servers and detach them
description:
  - Attaches a volume to a server, or detaches it, while the server runs or is off.
  - Detaching waits until the guest releases the disk. If it does not within the agent's C(detach_timeout), the volume
    stays and the task fails.
  - O(replaces) exchanges another volume for this one while the server runs. The guest keeps the disk and its content.
  - A volume that is the root disk of a server cannot be detached.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.volume_attachment
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.volume_attachment_info
  - module: magnetar.compute.volume
  - module: magnetar.compute.server
"""

EXAMPLES = r"""
- name: Attach a volume
  magnetar.compute.volume_attachment:
    server: web1
    volume: data

- name: Attach a volume for reading, deleted with the server
  magnetar.compute.volume_attachment:
    server: web1
    volume: copy
    device: vdd
    readonly: true
    delete_on_termination: true

- name: Attach a volume of another host
  magnetar.compute.volume_attachment:
    server: web1
    volume: records
    endpoint: https://kvm1.example.org
    volume_endpoint: https://kvm2.example.org

- name: Put a volume in the place of another one while the server runs
  magnetar.compute.volume_attachment:
    server: web1
    volume: faster
    replaces: data

- name: Detach it
  magnetar.compute.volume_attachment:
    server: web1
    volume: data
    state: absent
"""

RETURN = r"""
volume_attachment:
  description: 'The volume attachment after the task; in check mode, as it would be. With O(state=absent), the last
      known volume attachment, or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    id: {description: 'The uuid, derived from the uuids of server and volume.', type: str,
        sample: 5b6c0a4e-9f0a-5d0e-8a55-7b1f6a0c2d11}
    name: {description: 'SERVER:VOLUME, with their uuids.', type: str,
        sample: '8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d:0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11'}
    server: {description: 'The server, by name or uuid.', type: str, sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    volume: {description: 'The volume, by name or uuid.', type: str, sample: 0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11}
    device: {description: 'Device name such as C(vdb); chosen once when omitted. In a cloud the host chooses another
          name if this one is not possible, as in Nova; the answer has it. A guest finds a volume by its serial number,
          the first 20 characters of its uuid.', type: str, sample: vdb}
    bus: {description: Bus of the volume in the guest. Only C(virtio) and C(scsi) can be plugged into a running server.,
        type: str, sample: virtio}
    tag: {description: 'Device tag, shown to the guest in the config drive that is made with the server.', type: str}
    readonly: {description: Whether the guest may only read it., type: bool, sample: false}
    boot_index: {description: 'Position of this disk in the boot order; null or -1 for none. 0 is the root disk, which
          only a new server gets.', type: int}
    delete_on_termination: {description: Whether the volume is deleted with the server., type: bool, sample: false}
    replaces: {description: 'Volume of the server, by name or uuid, that this one replaces while the server runs:
          its content is copied over the content of this one, together with later writes of the guest. The guest
          then continues with this one, on the same device and with the same serial number, and the other volume
          is detached. It acts only when the volume is attached.', type: str}
    origin: {description: 'Location of another host''s volume: the origin that its volume_export shows, with the
          address.', type: dict}
    server_name: {description: The server's name., type: str, sample: web1}
    volume_name: {description: The volume's name., type: str, sample: data}
    serial: {description: 'Serial number in the guest: the first 20 characters of the volume''s uuid, or of the uuid
          of the volume that it replaced.', type: str, sample: 0b9f1a52-6ea0-4b9c-a}
    status: {description: Whether the server has it., type: str, sample: attached}
    fault: {description: '{code, message, created} of the last failure, until one succeeds.', type: raw}
    created_at: {description: 'When it was created, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    updated_at: {description: 'When it was last changed, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record, attach]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {delete_on_termination: {old: false, new: true}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the agent., returned: when the agent has answered,
    type: str, sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.attachment import VolumeAttachmentModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = VolumeAttachmentModule()

if __name__ == "__main__":
    run_module_process(MODULE)
