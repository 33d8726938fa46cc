#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: volume_attachment_info
version_added: "0.1.0"
short_description: Report volume attachments
description:
  - Reports the volume attachments that an agent knows. That there are none is no failure.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.volume_attachment_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.volume_attachment
"""

EXAMPLES = r"""
- name: All volume attachments
  magnetar.compute.volume_attachment_info:
  register: all

- name: Volumes of a server
  magnetar.compute.volume_attachment_info:
    server: web1

- name: Servers that have a volume
  magnetar.compute.volume_attachment_info:
    volume: data
    fields: [server_name, device]
"""

RETURN = r"""
volume_attachments:
  description: The volume attachments that fit; empty when there are none.
  returned: on success
  type: list
  elements: dict
  sample:
    - id: 5b6c0a4e-9f0a-5d0e-8a55-7b1f6a0c2d11
      name: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d:0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11
      server: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d
      volume: 0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11
      device: vdb
      bus: virtio
      tag: null
      readonly: false
      boot_index: null
      delete_on_termination: false
      origin: null
      server_name: web1
      volume_name: data
      serial: 0b9f1a52-6ea0-4b9c-a
      status: attached
      fault: null
      created_at: '2026-11-20T20:00:00Z'
      updated_at: '2026-11-20T20:00:00Z'
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

from ansible_collections.magnetar.compute.plugins.module_utils.modules.attachment import VolumeAttachmentInfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run

MODULE = VolumeAttachmentInfoModule()

if __name__ == "__main__":
    run(MODULE)
