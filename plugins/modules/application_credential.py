#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: application_credential
version_added: "0.2.0"
short_description: Manage application credentials of the user of the login
description:
  - Creates or removes an application credential, with which programs log in without the user's password.
  - The result of the task that creates the credential has RV(application_credential.secret) and RV(cloud). No later
    task reports them. Use C(no_log) for this task if others can read its output.
  - A credential cannot change, so a task that asks for other roles or another end fails; see O(on_immutable).
  - The credential is for the user and the project of the login, which must not itself be a restricted credential.
    Administrators remove the credentials of other users by O(id).
  - Only for clouds with the embedded identity service. A cloud with a Keystone of its own refuses the task, and names
    the module of openstack.cloud to use.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.application_credential
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.application_credential_info
  - module: magnetar.compute.user
"""

EXAMPLES = r"""
- name: The backup logs in by itself
  magnetar.compute.application_credential:
    cloud: mycloud
    name: backup
    description: nightly backup
    roles: [member]
    expires_at: "2036-01-31T12:00:00Z"
  register: backup

- name: Write the file that the backup reads
  ansible.builtin.copy:
    content: "{{ {'clouds': {'mycloud': backup.cloud}} | to_nice_yaml }}"
    dest: "{{ folder }}/clouds-backup.yaml"
    mode: "0600"
  when: backup.cloud is defined

- name: No backup any more
  magnetar.compute.application_credential:
    cloud: mycloud
    name: backup
    state: absent
"""

RETURN = r"""
cloud:
  description: An entry of C(clouds.yaml) that logs in with the new credential.
  returned: if the credential was created, and the task named a cloud
  type: dict
  sample:
    auth_type: v3applicationcredential
    auth:
      auth_url: https://cloud.example.com:8774/identity/v3
      application_credential_id: 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a
      application_credential_secret: gO5n8QW0c3vXqYb6yQkTt1yJk0vX2c9x
    region_name: RegionOne
    interface: public
application_credential:
  description: 'The application credential after the task; in check mode, as it would be. With O(state=absent), the last
      known application credential, or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
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
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {roles: {old: null, new: [member]}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.identity import ApplicationCredentialModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = ApplicationCredentialModule()

if __name__ == "__main__":
    run_module_process(MODULE)
