#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: migration_info
version_added: "0.1.0"
short_description: Report migrations
description:
  - 'Reports the migrations from and to the host of an agent: the running ones, and the last thousand finished ones.'
  - In a cloud, reports the last thousand migrations of all hosts, as their sources see them, to administrators.
    Fields that only an agent knows are empty there, and V(status) is the word of the Compute API.
  - An empty result is not a failure.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.migration_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.migration
"""

EXAMPLES = r"""
- name: All migrations from and to this host
  magnetar.compute.migration_info:
  register: all

- name: Progress of the migration of one server
  magnetar.compute.migration_info:
    name: web1
    filters:
      status: running
    fields: [id, name, status, progress]
"""

RETURN = r"""
migrations:
  description: The matching migrations; empty when there are none.
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
    server: {description: The uuid of the server., type: str, sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    side: {description: Whether this host is the source or the target., type: str, sample: source}
    peer: {description: Common name in the certificate of the other agent., type: str, sample: kvm2}
    address: {description: 'host:port of the other agent; the source needs it, and the target for volumes.', type: str,
        sample: 'kvm2:6553'}
    type: {description: 'live: the guest runs on; cold: it is off while its disks are copied.', type: str, sample: live}
    phase: {description: The phase that it must reach., type: str, sample: settled}
    manifest: {description: 'Sizes, networks and disks of the server, as the source shows them. The target needs it.',
        type: raw}
    max_downtime: {description: Milliseconds that the guest may stand still., type: int, sample: 300}
    downtime_steps: {description: Steps that raise the permitted downtime from max_downtime / downtime_steps to
          max_downtime; needs downtime_delay., type: int, sample: 10}
    downtime_delay: {description: Seconds between two such steps; needs downtime_steps., type: int, sample: 75}
    bandwidth: {description: Limit in MiB per second., type: int, sample: 100}
    auto_converge: {description: Slow the guest down when it writes memory faster than the network transfers it. Never
          together with post-copy., type: bool, sample: true}
    post_copy: {description: 'Whether the event force_complete may switch to post-copy: the guest runs at the target
          while the rest of its memory follows. Otherwise the guest is paused until all memory is transferred.',
        type: bool, sample: false}
    time_limit: {description: 'Seconds of copying before on_time_limit acts. A cold migration can only be aborted, since
          the guest is off.', type: int, sample: 600}
    on_time_limit: {description: 'abort: the server stays where it is; pause: the guest is paused until all
          memory is transferred; post_copy: it runs at the target while the rest of its memory follows.', type: str,
        sample: abort}
    status: {description: Progress of the migration., type: str, sample: completed}
    progress: {description: '{phase, done, total, remaining, dirty_rate, seconds_left} in bytes, while it runs.',
        type: dict, sample: {phase: memory, done: 123456789, total: 134217728, remaining: 10760939, dirty_rate: 1048576,
          seconds_left: 1}}
    native_tls: {description: 'Whether memory and disks go straight from QEMU to QEMU, as the setting native_tls of both
          hosts says, and not through the agents; null until that is known.', type: bool, sample: false}
    fault: {description: '{code, message, created} of the last failure, until one succeeds.', type: raw}
    host: {description: The host of this half., type: str, sample: kvm1}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import Migration
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(Migration)

if __name__ == "__main__":
    run_module_process(MODULE)
