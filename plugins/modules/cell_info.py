#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cell_info
version_added: "0.1.0"
short_description: Report the cells of a cloud
description:
  - Reports the cells, their databases without user and password, and how many hosts each has.
  - Needs the role V(admin).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.cell_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.cell
"""

EXAMPLES = r"""
- name: All cells
  magnetar.compute.cell_info:
    cloud: mycloud
  register: all

- name: Cells that get no new servers
  magnetar.compute.cell_info:
    cloud: mycloud
    filters:
      disabled: true
"""

RETURN = r"""
cells:
  description: The matching cells; empty when there are none.
  returned: on success
  type: list
  elements: dict
  contains:
    id: {description: The uuid., type: str, sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The name., type: str, sample: cell2}
    disabled: {description: 'Whether it gets no new servers. Its servers stay in lists and quotas, as in Nova.',
        type: bool, sample: false}
    database: {description: Its database without user and password., type: str, sample: 'postgresql://db2/cell2'}
    hosts: {description: Number of its hosts., type: int, sample: 4}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import Cell
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(Cell)

if __name__ == "__main__":
    run_module_process(MODULE)
