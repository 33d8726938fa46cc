#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: server_info
version_added: "0.1.0"
short_description: Report servers
description:
  - Reports the servers of a host. That there are none is no failure.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.server_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.server
  - module: magnetar.compute.server_action
"""

EXAMPLES = r"""
- name: All servers
  magnetar.compute.server_info:
  register: all

- name: One server
  magnetar.compute.server_info:
    name: web1

- name: Servers that are off, names and addresses only
  magnetar.compute.server_info:
    name: web*
    filters:
      status: SHUTOFF
    fields: [name, addresses]

- name: The five newest servers
  magnetar.compute.server_info:
    sort: -created_at
    limit: 5
"""

RETURN = r"""
servers:
  description: The servers that fit; empty when there are none.
  returned: on success
  type: list
  elements: dict
  sample:
    - id: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d
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

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import Server
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run

MODULE = InfoModule(Server)

if __name__ == "__main__":
    run(MODULE)
