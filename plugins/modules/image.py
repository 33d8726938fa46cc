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
  contains:
    id:
      description: The uuid; drawn when the resource is made, unless given.
      type: str
      sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d
    name:
      description: The name.
      type: str
      sample: web1
    description:
      description: Free text of at most 255 characters.
      type: str
      sample: for the shop
    created_at:
      description: When it was made, ISO 8601 in UTC.
      type: str
      sample: '2026-11-20T20:00:00Z'
    updated_at:
      description: When it was last changed, ISO 8601 in UTC.
      type: str
      sample: '2026-11-20T20:00:00Z'
    checksum:
      description: Digest of the content as delivered, sha256:HEX or sha512:HEX.
      type: str
      sample: sha256:0000000000000000000000000000000000000000000000000000000000000000
    disk_format:
      description: Format; it is always found from the content, and a wrong claim is refused.
      type: str
      sample: qcow2
    kernel:
      description: Image of format aki with which a server of this image boots.
      type: str
    ramdisk:
      description: Image of format ari that goes with the kernel.
      type: str
    cmdline:
      description: Kernel command line; needs a kernel, or is of format aki itself.
      type: str
    min_disk:
      description: Smallest root disk in GiB that a server of this image may have.
      type: int
      sample: 1
    min_ram:
      description: Smallest memory in MiB that a server of this image may have.
      type: int
      sample: 64
    properties:
      description: Image properties as in Glance, such as img_config_drive=mandatory.
      type: dict
      sample:
        os_distro: debian
    status:
      description: Whether the content is there.
      type: str
      sample: active
    consistency:
      description: Of an image of a server that C(create_image) made, the state of its file systems; null of others.
      type: str
    size:
      description: Bytes stored.
      type: int
      sample: 20971520
    virtual_size:
      description: Bytes that a guest sees.
      type: int
      sample: 1073741824
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
