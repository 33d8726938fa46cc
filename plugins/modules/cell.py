#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cell
version_added: "0.1.0"
short_description: Manage cells, the parts of a cloud
description:
  - Creates, updates or removes a cell of the cloud, and creates the tables in its database. A database that does not
    answer is refused.
  - The conductors of a cell add its hosts. A cell that has hosts or servers is not removed. The database of a removed
    cell stays.
  - Needs the role V(admin).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.cell
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.cell_info
"""

EXAMPLES = r"""
- name: A second cell
  magnetar.compute.cell:
    cloud: mycloud
    name: cell2
    database_url: "postgresql+psycopg://magnetar:{{ vault_password }}@db2/cell2"

- name: Create no new servers in it
  magnetar.compute.cell:
    cloud: mycloud
    name: cell2
    disabled: true

- name: Remove it
  magnetar.compute.cell:
    cloud: mycloud
    name: cell2
    state: absent
"""

RETURN = r"""
cell:
  description: 'The cell after the task; in check mode, as it would be. With O(state=absent), the last known cell, or
      V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
  contains:
    id: {description: The uuid., type: str, sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The name., type: str, sample: cell2}
    disabled: {description: 'Whether it gets no new servers. Its servers stay in lists and quotas, as in Nova.',
        type: bool, sample: false}
    database: {description: Its database without user and password., type: str, sample: 'postgresql://db2/cell2'}
    hosts: {description: Number of its hosts., type: int, sample: 4}
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {disabled: {old: false, new: true}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.cell import CellModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = CellModule()

if __name__ == "__main__":
    run_module_process(MODULE)
