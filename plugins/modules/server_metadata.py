#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: server_metadata
version_added: "0.2.0"
short_description: Set or remove single metadata keys of a server
description:
  - Sets keys of the metadata of a server, or removes them. Other keys stay.
  - M(magnetar.compute.server) with O(magnetar.compute.server#module:metadata) manages all keys.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.server_metadata
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.server
  - module: magnetar.compute.server_info
"""

EXAMPLES = r"""
- name: Say what the server is for
  magnetar.compute.server_metadata:
    server: web1
    metadata:
      role: web
      tier: "1"

- name: Remove one key
  magnetar.compute.server_metadata:
    server: web1
    metadata:
      tier: ""
    state: absent
"""

RETURN = r"""
server:
  description: The server after the task, as M(magnetar.compute.server) returns it; in check mode, as it would be.
  returned: on success
  type: dict
  sample: {id: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d, name: web1, metadata: {role: web}}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value., returned: on success,
    type: dict, sample: {metadata.role: {old: null, new: web}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API was asked for a change,
    type: str, sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process
from ansible_collections.magnetar.compute.plugins.module_utils.twins.parts import ServerMetadataModule

MODULE = ServerMetadataModule()

if __name__ == "__main__":
    run_module_process(MODULE)
