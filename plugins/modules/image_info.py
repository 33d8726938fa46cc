#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: image_info
version_added: "0.1.0"
short_description: Report images
description:
  - Reports the images of a host or a cloud. An empty result is not a failure.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.image_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.image
"""

EXAMPLES = r"""
- name: All images
  magnetar.compute.image_info:
  register: all

- name: One image
  magnetar.compute.image_info:
    name: one

- name: Some images, by pattern and field
  magnetar.compute.image_info:
    name: o*
    filters:
      disk_format: qcow2

- name: Names only, sorted
  magnetar.compute.image_info:
    fields: [id, name]
    sort: name
    limit: 100
"""

RETURN = r"""
images:
  description: The matching images; empty when there are none.
  returned: on success
  type: list
  elements: dict
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
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import Image
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(Image)

if __name__ == "__main__":
    run_module_process(MODULE)
