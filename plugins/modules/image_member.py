#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: image_member
version_added: "0.1.0"
short_description: Share an image with a project of a cloud
description:
  - Shares an image with another project, ends that, or accepts or rejects a shared image.
  - Only the owner of an image shares it, and only images of visibility C(shared), as those of M(magnetar.compute.image)
    are.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.image_member
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.image_member_info
  - module: magnetar.compute.image
"""

EXAMPLES = r"""
- name: Share an image with the project that has this id
  magnetar.compute.image_member:
    cloud: mycloud
    image: debian
    project: 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a

- name: Accept a shared image, in the project with which it is shared
  magnetar.compute.image_member:
    cloud: mycloud
    image: 5b6c0a4e-9f0a-4d0e-8a55-7b1f6a0c2d11
    state: accepted

- name: Share it no longer
  magnetar.compute.image_member:
    cloud: mycloud
    image: debian
    project: 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a
    state: absent
"""

RETURN = r"""
image_member:
  description: 'The image member after the task; in check mode, as it would be. With O(state=absent), the last known
      image member, or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    id: {description: 'The uuid, derived from project and image.', type: str,
        sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: 'PROJECT:IMAGE, with their ids.', type: str,
        sample: '0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a:5b6c0a4e-9f0a-4d0e-8a55-7b1f6a0c2d11'}
    image: {description: 'The image, by name or uuid; by uuid for a project that has not accepted it. Reported
          by uuid.', type: str, sample: 5b6c0a4e-9f0a-4d0e-8a55-7b1f6a0c2d11}
    project: {description: 'The project, by id; for administrators also by name. The login''s own when omitted,
          to accept or reject an image.', type: str, sample: 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a}
    status: {description: The answer of the project. Lists of images have only accepted ones., type: str,
        sample: pending}
    created_at: {description: 'When it was shared, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
    updated_at: {description: 'When the project last answered, ISO 8601 in UTC.', type: str,
        sample: '2026-11-20T20:00:00Z'}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {image: {old: null, new: 5b6c0a4e-9f0a-4d0e-8a55-7b1f6a0c2d11}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.sharing import ImageMemberModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = ImageMemberModule()

if __name__ == "__main__":
    run_module_process(MODULE)
