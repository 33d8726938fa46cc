#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: share_attachment_info
version_added: "0.1.0"
short_description: Report the shares of servers of a cloud
description:
  - Reports the shares that servers of the project have. An empty result is not a failure.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.share_attachment_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.share_attachment
"""

EXAMPLES = r"""
- name: Shares of a server
  magnetar.compute.share_attachment_info:
    cloud: mycloud
    server: web1

- name: Servers that have a share
  magnetar.compute.share_attachment_info:
    cloud: mycloud
    share: files
    fields: [server_name, tag]
"""

RETURN = r"""
share_attachments:
  description: The matching share attachments; empty when there are none.
  returned: on success
  type: list
  elements: dict
  contains:
    id: {description: 'The uuid, which follows from server and share.', type: str,
        sample: 1b6c0a4e-9f0a-5d0e-8a55-7b1f6a0c2d11}
    server: {description: 'The server, by name or uuid.', type: str, sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    share: {description: 'The share, by its uuid or its name in the cloud''s setting C(shares).', type: str,
        sample: e8debdc0-447a-4376-a10a-4cd9122d7986}
    tag: {description: Tag for the guest's mount command; the share's uuid when omitted., type: str, sample: files}
    server_name: {description: The server's name., type: str, sample: web1}
    share_name: {description: The share's name in the cloud's settings., type: str, sample: files}
    status: {description: 'C(active) while the guest is on, C(inactive) while it is off; C(error) if the host could
          not provide it.', type: str, sample: inactive}
    export_location: {description: 'HOST:FOLDER, for administrators.', type: str, sample: 'kvm1:/srv/files'}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.attachment import ShareAttachmentInfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = ShareAttachmentInfoModule()

if __name__ == "__main__":
    run_module_process(MODULE)
