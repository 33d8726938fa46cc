#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: storage_pool_info
version_added: "0.1.0"
short_description: Report the storage pools of a cloud
description:
  - Reports each pool of volumes once, with the hosts that reach it, its size, and the number of its volumes.
  - There is no module that creates a pool. The settings of a host's agent name its pools, and
    P(magnetar.compute.agent#role) writes them.
  - Needs the role V(admin).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.storage_pool_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.host_info
  - module: magnetar.compute.volume_type
  - module: magnetar.compute.volume
"""

EXAMPLES = r"""
- name: All pools, least free space first
  magnetar.compute.storage_pool_info:
    cloud: mycloud
    sort: free_gb
  register: all

- name: Stop when a pool is down on one of its hosts
  ansible.builtin.assert:
    that: all.storage_pools | map(attribute='hosts') | flatten | rejectattr('state', 'eq', 'up') | length == 0

- name: Pools that several hosts reach
  magnetar.compute.storage_pool_info:
    cloud: mycloud
    filters:
      shared: true
"""

RETURN = r"""
storage_pools:
  description: The matching storage pools; empty when there are none.
  returned: on success
  type: list
  elements: dict
  contains:
    id: {description: 'The uuid, the same for all hosts that reach the pool.', type: str,
        sample: 2b1f0c7e-3a53-5c0e-9b0e-5f1d2a7c4e91}
    name: {description: The pool's name in the settings of the first of its hosts., type: str, sample: ceph}
    type: {description: The type of its storage., type: str, sample: rbd}
    identity: {description: 'The storage itself, as all its hosts report it.', type: str,
        sample: 'rbd:5d1c6a8e-0f0b-4f5a-9d3e-6a1f0c2b7e44/volumes'}
    shared: {description: Whether several hosts can reach it., type: bool, sample: true}
    state: {description: C(up) if at least one of its hosts can use it now., type: str, sample: up}
    total_gb: {description: Its size in GiB; null until a host could read it., type: int, sample: 9000}
    free_gb: {description: Its free GiB., type: int, sample: 7200}
    volumes: {description: Number of volumes in it., type: int, sample: 12}
    volumes_gb: {description: The GiB that these volumes have together; thin volumes use less., type: int, sample: 240}
    hosts: {description: 'The hosts that reach it: {host, name, state, reason}. C(name) is the pool''s name in
          the settings of the host''s agent, C(reason) says why it is down there.', type: list, elements: dict,
        sample: [{host: kvm1, name: ceph, state: up, reason: ''}]}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import CloudStoragePool
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(CloudStoragePool)

if __name__ == "__main__":
    run_module_process(MODULE)
