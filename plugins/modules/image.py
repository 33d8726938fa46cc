#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: image
version_added: "0.1.0"
short_description: Manage images, which servers boot from
description:
  - Makes an image be present as described, or absent.
  - The content comes from a file where the module runs (O(filename)), from a URL (O(url)), or from a file of the host
    (O(host_path)).
  - The agent detects the format from the content. It refuses content that refers to other files.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.image
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.image_info
  - module: magnetar.compute.server
"""

EXAMPLES = r"""
- name: Send a file of this machine
  magnetar.compute.image:
    name: debian
    filename: /srv/images/debian-12.qcow2

- name: Let the agent load it, with all options
  magnetar.compute.image:
    name: debian
    description: Debian 12
    url: https://cloud.example.org/debian-12.qcow2
    checksum: sha256:2f1c5d9b8f3f0a6f7f0b4b7d3d2f8a0c9e1b6a5d4c3b2a190f8e7d6c5b4a3928
    disk_format: qcow2
    min_disk: 2
    min_ram: 256
    properties:
      os_distro: debian
    timeout: 1800

- name: Change the memory that it needs
  magnetar.compute.image:
    name: debian
    min_ram: 512

- name: A kernel from a file of the host
  magnetar.compute.image:
    name: kernel
    host_path: /var/lib/magnetar/import/vmlinuz
    disk_format: aki

- name: Remove it
  magnetar.compute.image:
    name: debian
    state: absent
"""

RETURN = r"""
image:
  description:
    - The image as it is afterwards, or as it would be in check mode.
    - With O(state=absent) it is the last that was known of it, or V(null) if there was none.
  returned: on success, unless a list or a running operation is returned
  type: dict
  sample:
    id: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d
    name: web1
    description: for the shop
    created_at: '2026-11-20T20:00:00Z'
    updated_at: '2026-11-20T20:00:00Z'
    checksum: sha256:0000000000000000000000000000000000000000000000000000000000000000
    disk_format: qcow2
    kernel: null
    ramdisk: null
    cmdline: null
    min_disk: 1
    min_ram: 64
    properties:
      os_distro: debian
    status: active
    size: 20971520
    virtual_size: 1073741824
actions:
  description: What was done, or would be in check mode, in order.
  returned: on success
  type: list
  elements: str
  sample: [record, receive]
changes:
  description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden.
  returned: on success
  type: dict
  sample: {min_ram: {old: 64, new: 128}}
operation:
  description: The work that goes on, when it was not waited for.
  returned: when O(wait=false) and the work takes longer than a moment
  type: dict
  sample:
    id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10
    status: running
request_id:
  description: Name of the request in the agent's logs.
  returned: when the agent has answered
  type: str
  sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11
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

from ansible_collections.magnetar.compute.plugins.module_utils.modules.image import ImageModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run

MODULE = ImageModule()

if __name__ == "__main__":
    run(MODULE)
