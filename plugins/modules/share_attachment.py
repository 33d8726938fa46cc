#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: share_attachment
version_added: "0.1.0"
short_description: Give servers of a cloud shares
description:
  - Attaches a share to a server of a cloud, or detaches it. A share is a folder of the host, which the guest mounts
    through virtiofs by its tag.
  - The server must be off; a running server is refused. Its guest has the share after the next start.
  - A share with the status C(error), which the host could not provide, is attached again.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.share_attachment
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.share_attachment_info
"""

EXAMPLES = r"""
- name: The server is off during this time
  magnetar.compute.server:
    cloud: mycloud
    name: web1
    state: stopped

- name: Give it a share
  magnetar.compute.share_attachment:
    cloud: mycloud
    server: web1
    share: files
    tag: files

- name: Take it away
  magnetar.compute.share_attachment:
    cloud: mycloud
    server: web1
    share: files
    state: absent

- name: It runs again
  magnetar.compute.server:
    cloud: mycloud
    name: web1
    state: running
"""

RETURN = r"""
share_attachment:
  description: 'The share attachment after the task; in check mode, as it would be. With O(state=absent), the last known
      share attachment, or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
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
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record, attach]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {tag: {old: null, new: files}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.attachment import ShareAttachmentModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = ShareAttachmentModule()

if __name__ == "__main__":
    run_module_process(MODULE)
