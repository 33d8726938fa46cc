#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: volume_type_info
version_added: "0.1.0"
short_description: Report the volume types of a cloud
description:
  - Reports the volume types that the login may use, with their extra specs; to administrators all of them, and how
    their volumes are encrypted.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.volume_type_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.volume_type
"""

EXAMPLES = r"""
- name: All volume types
  magnetar.compute.volume_type_info:
    cloud: mycloud

- name: Those whose volumes several servers may have at once
  magnetar.compute.volume_type_info:
    cloud: mycloud
    filters:
      multiattach: true
"""

RETURN = r"""
volume_types:
  description: The volume types that fit; empty when there are none.
  returned: on success
  type: list
  elements: dict
  contains:
    id:
      description: The uuid; the cloud draws it.
      type: str
      sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d
    name:
      description: The name, by which volumes name it.
      type: str
      sample: fast
    description:
      description: Free text of at most 255 characters.
      type: str
      sample: for databases
    is_public:
      description: Whether all projects may use it.
      type: bool
      sample: false
    projects:
      description: Projects that may use one that is not public, by id or name; reported by id, to administrators.
      type: list
      elements: str
      sample:
        - 0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a
    extra_specs:
      description: 'Extra specs, keys to strings: C(pool_name), where its volumes lie; C(multiattach), whether several
        servers may have one at once. A volume is refused when no pool is as the others ask. They cannot change
        while volumes have the type. Others than administrators are told C(multiattach) only.'
      type: dict
      sample:
        pool_name: default
        multiattach: <is> True
    encryption:
      description: How its volumes are encrypted; empty for not at all. It cannot change while volumes have the
        type. Reported to administrators.
      type: dict
      sample:
        provider: luks
        cipher: aes-xts-plain64
        key_size: 256
    pool:
      description: The pool that its volumes lie in.
      type: str
      sample: default
    multiattach:
      description: Whether several servers may have one of its volumes at once.
      type: bool
      sample: true
error:
  description: "For programs: V(code) says what kind of failure it is, V(details) has the values."
  returned: on failure
  type: dict
  sample:
    code: invalid-field
    details:
      field: name
      rule: is required
    request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import CloudVolumeType
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run

MODULE = InfoModule(CloudVolumeType)

if __name__ == "__main__":
    run(MODULE)
