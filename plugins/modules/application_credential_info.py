#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: application_credential_info
version_added: "0.2.0"
short_description: Report application credentials of a user of a cloud
description:
  - Reports application credentials of the user of the login, without their secrets. Administrators see those of another
    user with the filter C(user_id).
  - Only for clouds with the embedded identity service. A cloud with a Keystone of its own refuses the task, and names
    the module of openstack.cloud to use.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.application_credential_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.application_credential
"""

EXAMPLES = r"""
- name: The credential backup
  magnetar.compute.application_credential_info:
    cloud: mycloud
    name: backup

- name: The credentials of the login's user, the next to end first
  magnetar.compute.application_credential_info:
    cloud: mycloud
    sort: expires_at
"""

RETURN = r"""
application_credentials:
  description: The matching application credentials; empty when there are none.
  returned: on success
  type: list
  elements: dict
  contains:
    id: {description: The id; the cloud generates it., type: str, sample: 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a}
    name: {description: 'The name, unique for the user.', type: str, sample: backup}
    description: {description: Free text., type: str, sample: nightly backup}
    roles: {description: 'Roles that it has, by name or id, or as mappings with C(name) or C(id). They must be among the
          roles of the login; by default, all of these. Reported by name.', type: list, elements: raw, sample: [member]}
    expires_at: {description: 'The time at which it ends, ISO 8601, in UTC unless it has a zone. By default it never
          ends.', type: str, sample: '2030-01-31T12:00:00Z'}
    unrestricted: {description: Whether logins with it may create and remove application credentials., type: bool,
        sample: false}
    secret: {description: 'The secret, generated if omitted. Only the result of the task that creates the credential has
          it.', type: str, sample: gO5n8QW0c3vXqYb6yQkTt1yJk0vX2c9x}
    user: {description: 'The user for whom it logs in, by name.', type: str, sample: ann}
    user_id: {description: The id of the user., type: str, sample: 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a}
    project: {description: 'The project with which it logs in, by name.', type: str, sample: shop}
    project_id: {description: The id of the project., type: str, sample: 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import ApplicationCredential
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(ApplicationCredential)

if __name__ == "__main__":
    run_module_process(MODULE)
