#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: volume_type
version_added: "0.1.0"
short_description: Manage volume types of a cloud
description:
  - Creates, updates or removes a volume type.
  - Given O(extra_specs), O(encryption) and O(projects) replace the existing ones.
  - A type in use by volumes or snapshots cannot be removed, and its extra specs and encryption cannot change.
  - The types of pools come from the settings of the cloud, and cannot be changed or removed.
  - Needs the role V(admin).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.volume_type
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.volume_type_info
  - module: magnetar.compute.volume
"""

EXAMPLES = r"""
- name: Volumes that several servers may use at the same time
  magnetar.compute.volume_type:
    cloud: mycloud
    name: shared-disks
    extra_specs:
      pool_name: default
      multiattach: "<is> True"

- name: Volumes that are encrypted on their hosts, for one project
  magnetar.compute.volume_type:
    cloud: mycloud
    name: hidden
    is_public: false
    projects: [0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a]
    encryption:
      provider: luks
      key_size: 256

- name: Remove it
  magnetar.compute.volume_type:
    cloud: mycloud
    name: hidden
    state: absent
"""

RETURN = r"""
volume_type:
  description: 'The volume type after the task; in check mode, as it would be. With O(state=absent), the last known
      volume type, or V(null) if there was none.'
  returned: 'on success, unless a running operation is returned'
  type: dict
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
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {description: {old: '', new: for databases}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the API., returned: when the API has answered, type: str,
    sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import CloudVolumeType
from ansible_collections.magnetar.compute.plugins.module_utils.modules.resource import ResourceModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = ResourceModule(CloudVolumeType)

if __name__ == "__main__":
    run_module_process(MODULE)
