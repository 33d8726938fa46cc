#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: volume_transfer_info
version_added: "0.1.0"
short_description: Report the offers of volumes to other projects
description:
  - Reports the open transfers of the login's project. An accepted transfer no longer exists.
  - The keys of transfers are never reported.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.volume_transfer_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.volume_transfer
"""

EXAMPLES = r"""
- name: All open transfers
  magnetar.compute.volume_transfer_info:
    cloud: mycloud
  register: all

- name: The transfer of one volume
  magnetar.compute.volume_transfer_info:
    cloud: mycloud
    filters:
      volume: 0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11
"""

RETURN = r"""
volume_transfers:
  description: The matching volume transfers; empty when there are none.
  returned: on success
  type: list
  elements: dict
  contains:
    id: {description: The uuid; generated when the transfer is created., type: str,
        sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The name of the transfer., type: str, sample: handover}
    volume: {description: 'The volume, by name or uuid. It must be available.', type: str,
        sample: 0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11}
    no_snapshots: {description: Whether the volume's snapshots stay in their project., type: bool, sample: false}
    auth_key: {description: The key with which another project accepts the transfer. Only the result of the task that
          creates the transfer has it., type: str, sample: 31f1a9c0de77e34f6d6b9c1b4c7f5d0e}
    created_at: {description: 'When it was created, ISO 8601 in UTC.', type: str, sample: '2026-11-20T20:00:00Z'}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import VolumeTransfer
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(VolumeTransfer)

if __name__ == "__main__":
    run_module_process(MODULE)
