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
  - Creates, updates or removes an image.
  - The content comes from a file where the module runs (O(filename)), from a URL (O(url)), or from a file of the host
    (O(host_path)).
  - The agent detects the format from the content. It refuses content that refers to other files.
  - A host converts C(vmdk), C(vhd) and C(vhdx) to C(qcow2).
  - The agent of a host also takes an OVA, and makes the image of its disk, or of the one that O(ova_disk) names.
    RV(image.ovf) tells the hardware that the OVA describes. A cloud takes none.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.image
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.image_info
  - module: magnetar.compute.server
  - module: magnetar.compute.server_import
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
  description: 'The image after the task; in check mode, as it would be. With O(state=absent), the last known image,
      or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    id: {description: 'The uuid; generated when the resource is created, unless given.', type: str,
        sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The name., type: str, sample: web1}
    description: {description: Free text of at most 255 characters., type: str, sample: for the shop}
    created_at: {description: 'When it was created, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    updated_at: {description: 'When it was last changed, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    checksum: {description: 'Digest of the content as delivered, sha256:HEX or sha512:HEX.', type: str,
        sample: 'sha256:0000000000000000000000000000000000000000000000000000000000000000'}
    disk_format: {description: 'Format; it is always found from the content, and a wrong claim is refused.', type: str,
        sample: qcow2}
    ova_disk: {description: File of the disk to take out of an OVA that has several., type: str}
    kernel: {description: Image of format aki that servers of this image boot., type: str}
    ramdisk: {description: Image of format ari for the kernel., type: str}
    cmdline: {description: 'Kernel command line; needs a kernel, or is of format aki itself.', type: str}
    min_disk: {description: Smallest root disk in GiB that a server of this image may have., type: int, sample: 1}
    min_ram: {description: Smallest memory in MiB that a server of this image may have., type: int, sample: 64}
    properties: {description: 'Image properties as in Glance, such as img_config_drive=mandatory.', type: dict,
        sample: {os_distro: debian}}
    visibility: {description: 'Projects of a cloud that may use it: all (C(public), set by administrators), its own
          (C(private)), or also those that it is shared with (C(shared), of a new image when omitted); a C(community)
          image is for all, by uuid.', type: str, sample: shared}
    is_protected: {description: Whether a cloud refuses to remove it., type: bool, sample: false}
    status: {description: Whether the content is complete., type: str, sample: active}
    consistency: {description: State of the file systems in an image that C(create_image) made of a server; null for
          other images., type: str}
    size: {description: Bytes stored., type: int, sample: 20971520}
    virtual_size: {description: Bytes that a guest sees., type: int, sample: 1073741824}
    ovf: {description: 'The guest that the OVA describes: C(guests) (their number), C(name), C(os), C(vcpus), C(ram),
          C(firmware), C(secure_boot), C(nics) and C(disks). null for an image that does not come from an OVA.',
        type: dict}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record, receive]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {min_ram: {old: 64, new: 128}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the agent., returned: when the agent has answered,
    type: str, sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.image import ImageModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = ImageModule()

if __name__ == "__main__":
    run_module_process(MODULE)
