#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: volume_transfer
version_added: "0.1.0"
short_description: Give a volume to another project of a cloud
description:
  - Offers a volume to other projects, accepts such an offer, or withdraws it. The content stays in place.
  - The result of the task that creates a transfer has RV(volume_transfer.auth_key). No later task reports it. Give it
    and the uuid to the other project, and use C(no_log) for tasks whose output others can read.
  - With O(state=accepted), also give the uuid of the volume as O(volume). Otherwise the task fails when it runs again,
    because an accepted transfer no longer exists.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.volume_transfer
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.volume_transfer_info
  - module: magnetar.compute.volume
"""

EXAMPLES = r"""
- name: Offer the volume data
  magnetar.compute.volume_transfer:
    cloud: mycloud
    name: handover
    volume: data
  register: offer

- name: Accept it in the project that gets it
  magnetar.compute.volume_transfer:
    cloud: mycloud
    id: "{{ offer.volume_transfer.id }}"
    auth_key: "{{ offer.volume_transfer.auth_key }}"
    volume: "{{ offer.volume_transfer.volume }}"
    state: accepted

- name: Withdraw the offer, if no project has accepted it
  magnetar.compute.volume_transfer:
    cloud: mycloud
    name: handover
    state: absent
"""

RETURN = r"""
volume_transfer:
  description: 'The volume transfer after the task; in check mode, as it would be. With O(state=absent), the last known
      volume transfer, or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
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
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {volume: {old: null, new: 0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.volume_transfer import VolumeTransferModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = VolumeTransferModule()

if __name__ == "__main__":
    run_module_process(MODULE)
