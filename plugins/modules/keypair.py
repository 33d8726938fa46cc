#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: keypair
version_added: "0.1.0"
short_description: Manage keypairs, the public SSH keys that servers are given
description:
  - Creates, updates or removes a keypair.
  - Private keys are never generated or stored. Generate a pair with C(ssh-keygen) and give the public key.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.keypair
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.keypair_info
  - module: magnetar.compute.server
"""

EXAMPLES = r"""
- name: Give a public key
  magnetar.compute.keypair:
    name: me
    public_key: "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIO0VvMS9bZk0jSAlPS4gCcVmXkGQhWeS3VUN0Zz5bBNJ me@example"

- name: Give a file with a public key
  magnetar.compute.keypair:
    name: me
    description: key of the operator
    public_key_file: /home/me/.ssh/id_ed25519.pub

- name: Put another key in its place
  magnetar.compute.keypair:
    name: me
    public_key_file: /home/me/.ssh/id_new.pub
    on_immutable: recreate

- name: Remove it
  magnetar.compute.keypair:
    name: me
    state: absent
"""

RETURN = r"""
keypair:
  description: 'The keypair after the task; in check mode, as it would be. With O(state=absent), the last known keypair,
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
    public_key: {description: 'The public key, one line as in authorized_keys.', type: str, sample: ssh-ed25519
          AAAAC3NzaC1lZDI1NTE5AAAAIJ... me@example}
    type: {description: Type of the key., type: str, sample: ssh}
    fingerprint: {description: 'SHA256 fingerprint, as ssh-keygen -l shows it.', type: str, sample: 'SHA256:uJ0r...'}
    fingerprint_md5: {description: 'MD5 fingerprint, as Nova shows it.', type: str,
        sample: '35:9d:d0:c3:4a:80:d3:d8:86:f1:ca:f7:df:c4:f9:d8'}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {public_key: {old: null, new: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ... me@example}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the agent., returned: when the agent has answered,
    type: str, sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.keypair import KeypairModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = KeypairModule()

if __name__ == "__main__":
    run_module_process(MODULE)
