#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: keypair_info
version_added: "0.1.0"
short_description: Report keypairs
description:
  - Reports the keypairs of a host or a cloud. An empty result is not a failure.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.keypair_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.keypair
"""

EXAMPLES = r"""
- name: All keypairs
  magnetar.compute.keypair_info:
  register: all

- name: One keypair
  magnetar.compute.keypair_info:
    name: one

- name: Some keypairs, by pattern and field
  magnetar.compute.keypair_info:
    name: o*
    filters:
      type: ssh

- name: Names only, sorted
  magnetar.compute.keypair_info:
    fields: [id, name]
    sort: name
    limit: 100
"""

RETURN = r"""
keypairs:
  description: The matching keypairs; empty when there are none.
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
    public_key: {description: 'The public key, one line as in authorized_keys.', type: str, sample: ssh-ed25519
          AAAAC3NzaC1lZDI1NTE5AAAAIJ... me@example}
    type: {description: Type of the key., type: str, sample: ssh}
    fingerprint: {description: 'SHA256 fingerprint, as ssh-keygen -l shows it.', type: str, sample: 'SHA256:uJ0r...'}
    fingerprint_md5: {description: 'MD5 fingerprint, as Nova shows it.', type: str,
        sample: '35:9d:d0:c3:4a:80:d3:d8:86:f1:ca:f7:df:c4:f9:d8'}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import Keypair
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(Keypair)

if __name__ == "__main__":
    run_module_process(MODULE)
