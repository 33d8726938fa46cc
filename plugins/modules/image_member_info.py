#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: image_member_info
version_added: "0.1.0"
short_description: Report with which projects images are shared
description:
  - Reports the members of the images of the login's project, and the images that are shared with it.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.image_member_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.image_member
"""

EXAMPLES = r"""
- name: All images that are shared with this project, or by it
  magnetar.compute.image_member_info:
    cloud: mycloud

- name: Images that wait for an answer
  magnetar.compute.image_member_info:
    cloud: mycloud
    filters:
      status: pending
"""

RETURN = r"""
image_members:
  description: The matching image members; empty when there are none.
  returned: on success
  type: list
  elements: dict
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
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import ImageMember
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(ImageMember)

if __name__ == "__main__":
    run_module_process(MODULE)
