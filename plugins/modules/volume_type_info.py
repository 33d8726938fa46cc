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
  - Reports the volume types that the login may use, with their extra specs; to administrators all types, with their
    encryption.
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

- name: Types with volumes that several servers may use at the same time
  magnetar.compute.volume_type_info:
    cloud: mycloud
    filters:
      multiattach: true
"""

RETURN = r"""
volume_types:
  description: The matching volume types; empty when there are none.
  returned: on success
  type: list
  elements: dict
  contains:
    id: {description: The uuid; the cloud generates it., type: str, sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The name; volumes refer to it., type: str, sample: fast}
    description: {description: Free text of at most 255 characters., type: str, sample: for databases}
    is_public: {description: Whether all projects may use it., type: bool, sample: false}
    projects: {description: 'Projects that may use a type that is not public, by id or name; reported by id, to
          administrators.', type: list, elements: str, sample: [0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a]}
    extra_specs: {description: 'Extra specs, keys to strings: C(pool_name), the pool of its volumes; C(multiattach),
          whether several servers may use one at the same time; C(volume_backend_name) and C(capabilities:KEY),
          by which each volume gets the pool with the most free space among those that match. A volume is refused
          when no pool matches. They cannot change while volumes have the type. Users without the role admin see
          C(multiattach) only.', type: dict, sample: {pool_name: default, multiattach: <is> True}}
    encryption: {description: Encryption of its volumes; empty for none. It cannot change while volumes have the type.
          Reported to administrators., type: dict, sample: {provider: luks, cipher: aes-xts-plain64, key_size: 256}}
    pool: {description: The pool that its volumes lie in; empty if the extra specs choose one for each volume.,
        type: str, sample: default}
    multiattach: {description: Whether several servers may use one of its volumes at the same time., type: bool,
        sample: true}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import CloudVolumeType
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(CloudVolumeType)

if __name__ == "__main__":
    run_module_process(MODULE)
