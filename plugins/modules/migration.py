#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: migration
version_added: "0.1.0"
short_description: Move a server to another host
description:
  - Makes a server be on the host of O(destination). It moves from the host of O(endpoint) with its disks, its config
    drive, its console log and its addresses; a running guest is paused for a short time only.
  - The two agents connect to each other over TLS, on the agent's port and no other. Each must trust the CA of the
    other's certificate, as it does where the role P(magnetar.compute.agent#role) installed them.
  - A migration that is not possible is refused before anything is changed. After a failure or a crash, run the task
    again, and it continues where it was.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.migration
  - magnetar.compute.connection
  - magnetar.compute.attributes
notes:
  - O(timeout) is the time that the task waits. O(time_limit) is the time that the migration of the guest may take.
    For a cold migration only O(on_time_limit=abort) has an effect, as the guest is off.
seealso:
  - module: magnetar.compute.migration_info
  - module: magnetar.compute.server
"""

EXAMPLES = r"""
- name: Move the server web1 to kvm2
  magnetar.compute.migration:
    server: web1
    endpoint: https://kvm1.example.org
    destination: https://kvm2.example.org
    ca_cert: /home/me/magnetar-pki/ca.pem
    client_cert: /home/me/magnetar-pki/clients/admin.pem
    client_key: /home/me/magnetar-pki/clients/admin.key

- name: Move a busy guest; after an hour it is paused until its memory is copied
  magnetar.compute.migration:
    server: db1
    endpoint: https://kvm1.example.org
    destination: https://kvm2.example.org
    type: live
    bandwidth: 500
    max_downtime: 200
    time_limit: 3600
    on_time_limit: pause
    timeout: 7200

- name: Shut it down, move it, and start it there
  magnetar.compute.migration:
    server: web1
    endpoint: https://kvm1.example.org
    destination: https://kvm2.example.org
    type: cold

- name: Abort the migration
  magnetar.compute.migration:
    server: web1
    endpoint: https://kvm1.example.org
    destination: https://kvm2.example.org
    state: absent
"""

RETURN = r"""
server:
  description: The server; V(host) is where it is.
  returned: on success
  type: dict
  sample:
    id: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d
    name: web1
    description: for the shop
    created_at: '2026-11-20T20:00:00Z'
    updated_at: '2026-11-20T20:00:00Z'
    flavor:
      name: small
      vcpus: 1
      ram: 512
      disk: 10
      ephemeral: 0
      swap: 0
    image:
      id: 0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11
      name: debian
    networks:
      - network: lan
        mac: '52:54:00:12:34:56'
        model: virtio
    block_device_mapping:
      - source_type: blank
        destination_type: volume
        volume_size: 10
        disk_bus: virtio
        device_name: vdb
        volume: 0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11
    key_name: me
    metadata:
      role: web
    tags:
      - shop
    availability_zone: nova
    config_drive: true
    power: running
    rescue: null
    restart_on_crash: false
    resume_on_host_boot: true
    root_format: qcow2
    virt_type: qemu
    machine: q35
    volumes_attached:
      - id: 0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11
        name: data
        device: vdb
        delete_on_termination: false
    status: ACTIVE
    power_state: running
    status_reason: the guest shut itself down
    fault: null
    host: kvm1
    addresses:
      lan:
        - addr: 192.168.100.57
          version: 4
          mac: '52:54:00:12:34:56'
          source: lease
    instance_name: magnetar-8c7d3c0e
    console_log: /var/lib/magnetar/servers/8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d/console.log
migration:
  description: The migration as the agent that was asked last sees it.
  returned: when something was done
  type: dict
  sample:
    id: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d
    name: web1
    description: for the shop
    created_at: '2026-11-20T20:00:00Z'
    updated_at: '2026-11-20T20:00:00Z'
    server: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d
    side: source
    peer: kvm2
    address: kvm2:6553
    type: live
    phase: settled
    manifest: null
    max_downtime: 300
    bandwidth: 100
    auto_converge: true
    time_limit: 600
    on_time_limit: abort
    status: completed
    progress:
      phase: memory
      done: 123456789
      total: 134217728
      remaining: 10760939
      dirty_rate: 1048576
      seconds_left: 1
    native_tls: false
    fault: null
    host: kvm1
actions:
  description: What was done, or would be in check mode.
  returned: on success
  type: list
  elements: str
  sample: [prepare, claim, move, settle, leave]
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

from ansible_collections.magnetar.compute.plugins.module_utils.modules.migration import MigrationModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run

MODULE = MigrationModule()

if __name__ == "__main__":
    run(MODULE)
