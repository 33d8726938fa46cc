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
  - Reports the servers of a host or a cloud. An empty result is not a failure.
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
  description: The matching servers; empty when there are none.
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
    flavor: {description: 'A flavor by name or uuid, or its sizes {vcpus, ram, disk, ephemeral, swap}; omitted sizes
          stay as they are. A new server needs vcpus and ram.', type: dict, sample: {name: small, vcpus: 1, ram: 512,
          disk: 10, ephemeral: 0, swap: 0}}
    image: {description: 'Image to boot from, by name or uuid; null (in a module C(none)) for a blank root disk.',
        type: str, sample: {id: 0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11, name: debian}}
    networks: {description: 'NICs in order. Each names a network, a bridge, a port or a physical network.', type: list,
        elements: dict, sample: [{network: lan, mac: '52:54:00:12:34:56', model: virtio}]}
    block_device_mapping: {description: 'Nova''s block device mapping v2: volumes that the server boots
          from or is made with, and tags of its local disks.', type: list, elements: dict, sample: [{
            source_type: blank, destination_type: volume, volume_size: 10, disk_bus: virtio, device_name: vdb,
            volume: 0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11}]}
    key_name: {description: Keypair whose public key the guest is given., type: str, sample: me}
    adopt_disks: {description: 'From a cloud: the former owner (disk_folder or disk_pool of the host) of disks on shared
          storage, which an evacuated server keeps.', type: str}
    metadata: {description: 'Keys and values, 255 characters each at most.', type: dict, sample: {role: web}}
    tags: {description: 'Tags, at most 50 of 60 characters.', type: list, elements: str, sample: [shop]}
    availability_zone: {description: Availability zone in the guest's metadata., type: str, sample: nova}
    config_drive: {description: Whether the guest gets a config drive., type: bool, sample: true}
    power: {description: Desired power state; C(shelved) is for servers of a cloud., type: str, sample: running}
    rescue: {description: 'Boot from another image, with the root disk as second disk; null for none.', type: dict}
    restart_on_crash: {description: Start the guest again when its QEMU dies., type: bool, sample: false}
    resume_on_host_boot: {description: 'Start the guest again after the host has rebooted, if it ran.', type: bool,
        sample: true}
    shutdown_timeout: {description: 'Seconds for the guest to power itself off, when it is stopped, before its power
          is cut; 0 cuts it immediately. Null (in a module C(none)) means the image''s property C(os_shutdown_timeout),
          or the agent''s setting.', type: int}
    root_format: {description: 'Root disk: C(qcow2) on the image, a copy (C(raw), C(copy) as qcow2), C(lvm), C(rbd),
          C(auto).', type: str, sample: qcow2}
    virt_type: {description: 'kvm, qemu (emulated), or auto: the best that the host can do.', type: str, sample: qemu}
    machine: {description: 'Machine type: C(q35), C(pc), C(virt), a version of these, or C(auto). Its version stays.',
        type: str, sample: pc-q35-7.2}
    hardware: {description: Hardware in addition to sizes. It overrides flavor and image., type: dict, sample: {
          watchdog: reset}}
    placement: {description: 'Dedicated CPUs, NUMA cells and pages of the host that it has, empty for none: cells, for
          each of its own host, memory_mb, page (KiB) and pins (CPU of the host by virtual CPU); and emulator (a CPU).
          Of a single host.', type: dict, sample: {}}
    pci_devices: {description: 'PCI devices of the host that it has: address to the alias of the request, or to the
          MAC address of the NIC. Of a single host.', type: dict, sample: {}}
    nic_devices: {description: 'MAC address of a NIC that is a device of its host to {pci_slot, pci_vendor_info,
          physical_network}, and more of whole cards and SmartNICs. Of a single host.', type: dict, sample: {}}
    mdev: {description: 'The virtual GPU that it has: {uuid, parent, type}. Of a single host.', type: raw}
    pmem_namespaces: {description: Namespaces of persistent memory that it has. Of a single host., type: list,
        elements: str, sample: []}
    volumes_attached: {description: 'The volumes that it has: {id, name, device, delete_on_termination}.',
        type: list, elements: dict, sample: [{id: 0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11, name: data, device: vdb,
            delete_on_termination: false}]}
    status: {description: Nova's status word., type: str, sample: ACTIVE}
    power_state: {description: The observed power state., type: str, sample: running}
    status_reason: {description: The reason of a state that the user did not request., type: str, sample: the guest shut
          itself down}
    guest_password: {description: 'The password that the guest has left, encrypted with its user''s key.', type: str,
        sample: ''}
    fault: {description: '{code, message, created} of the last failure, until one succeeds.', type: raw}
    locked: {description: Whether users are kept from changing the server (action lock). In a cloud only., type: bool,
        sample: false}
    locked_reason: {description: Why it is locked., type: str}
    host: {description: The host., type: str, sample: kvm1}
    addresses: {description: 'Network name to a list of {addr, version, mac, source}.', type: dict, sample: {lan: [
            {addr: 192.168.100.57, version: 4, mac: '52:54:00:12:34:56', source: lease}]}}
    adopted: {description: 'The libvirt domain that the server was made of, which another program has defined: {domain,
          disks, adopted_at}; null for other servers. Of a single host.', type: raw}
    instance_name: {description: Name of the libvirt domain., type: str, sample: magnetar-8c7d3c0e}
    console_log: {description: Path of the console log on the host., type: str,
        sample: /var/lib/magnetar/servers/8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d/console.log}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import Server
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(Server)

if __name__ == "__main__":
    run_module_process(MODULE)
