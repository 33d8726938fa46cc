#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: server
version_added: "0.1.0"
short_description: Manage servers, the virtual machines of a host
description:
  - 'Creates, updates or removes a server, and sets its power state: running, stopped, paused, suspended, or (in a
    cloud) shelved.'
  - Omitted options stay as they are. An option that cannot change on an existing server is never ignored silently,
    see O(on_immutable).
  - O(servers) manages many servers with one call.
  - Playbooks written for C(openstack.cloud.server) run with this module.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.server
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.server_info
  - module: magnetar.compute.server_action
  - module: magnetar.compute.server_metadata
  - module: magnetar.compute.flavor
  - module: magnetar.compute.image
  - module: magnetar.compute.volume
  - module: magnetar.compute.volume_attachment
"""

EXAMPLES = r"""
- name: Make a server from an image
  magnetar.compute.server:
    name: web1
    flavor: small
    image: debian
    networks: [lan]

- name: Make a server with a keypair, user data, metadata, tags and a watchdog
  magnetar.compute.server:
    name: web2
    description: second web server
    vcpus: 2
    ram: 2048
    disk: 20
    image: debian
    hardware: {cpu_sockets: 1, watchdog: reset}
    networks: [{name: lan, mac: "52:54:00:12:34:56", tag: front}, {bridge: br1}]
    key_name: me
    userdata: {packages: [nginx]}
    metadata: {role: web}
    tags: [shop]

- name: Make a server whose root disk is a volume that is deleted with it, and attach an existing volume
  magnetar.compute.server:
    name: db1
    flavor: small
    image: debian
    boot_from_volume: true
    volume_size: 20
    terminate_volume: true
    volumes: [records]
    networks: [lan]
    timeout: 600

- name: Do the same, and more, with Nova's block device mapping
  magnetar.compute.server:
    name: db2
    flavor: small
    networks: [lan]
    block_device_mapping:
      - {source_type: image, destination_type: volume, uuid: debian, boot_index: 0, volume_size: 20,
         delete_on_termination: true}
      - {source_type: blank, destination_type: volume, volume_size: 5, tag: logs}
    timeout: 600

- name: Change its description and add one key to its metadata
  magnetar.compute.server: {name: web2, description: the shop, metadata: {owner: me}, purge_metadata: false}

- name: Stop it
  magnetar.compute.server: {name: web2, state: stopped}

- name: Resize it; a running server is stopped and started again for that
  magnetar.compute.server: {name: web2, vcpus: 4, ram: 4096, disk: 40, allow_reboot: true}

- name: Rebuild its root disk from another image, unless it was made from that image
  magnetar.compute.server:
    name: web2
    image: debian
    on_immutable: rebuild
    preserve_ephemeral: true

- name: Many servers in one call; options next to the list are defaults of all items
  magnetar.compute.server:
    flavor: small
    image: debian
    networks: [lan]
    servers:
      - name: web3
      - {name: web4, metadata: {role: spare}}
      - name: web5
        state: absent

- name: Remove a server with its disks
  magnetar.compute.server: {name: web2, state: absent}
"""

RETURN = r"""
server:
  description: 'The server after the task; in check mode, as it would be. With O(state=absent), the last known server,
      or V(null) if there was none.'
  returned: 'on success, unless a list or a running operation is returned'
  type: dict
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
actions: {description: 'The steps that were done, in order; in check mode, the predicted steps.', returned: on success,
    type: list, elements: str, sample: [record, disks, define, drive, start]}
changes: {description: Path of each field that changed to its V(old) and V(new) value. Secrets are hidden., returned: on
      success, type: dict, sample: {description: {old: '', new: for the shop}}}
operation: {description: The operation that continues after the task., returned: when O(wait=false) and the work takes
      longer than a moment, type: dict, sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}}
request_id: {description: Name of the request in the logs of the agent., returned: when the agent has answered,
    type: str, sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
results:
  description: One entry for each item of O(servers), in their order.
  returned: with O(servers)
  type: list
  elements: dict
  contains:
    name:
      description: Name of the item, or its uuid where it has no name.
      type: str
      returned: always
      sample: web1
    changed:
      description: Whether this item changed.
      type: bool
      returned: always
      sample: true
    failed:
      description: Whether this item failed.
      type: bool
      returned: always
      sample: false
    msg:
      description: Why it failed; empty otherwise.
      type: str
      returned: always
      sample: ""
    server:
      description: As RV(server).
      type: dict
      returned: when the item has not failed
      sample: {id: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d, name: web1, status: ACTIVE}
    actions:
      description: As RV(actions).
      type: list
      elements: str
      returned: when the item has not failed
      sample: [record, start]
    changes:
      description: As RV(changes).
      type: dict
      returned: when the item has not failed
      sample: {power: {old: "off", new: running}}
    error:
      description: As RV(error).
      type: dict
      returned: when the item has failed
      sample: {code: not-found, details: {}}
changed_ids:
  description: Uuids of the items that changed; the name where there is no uuid.
  returned: with O(servers)
  type: list
  elements: str
  sample: [8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d]
floating_ips:
  description: Addresses of the server's floating IPs.
  returned: when O(auto_ip), O(floating_ips) or O(floating_ip_pools) is given, but in check mode
  type: list
  elements: str
  sample: [192.0.2.10]
failed_ids:
  description: Uuids of the items that failed; the name where there is no uuid.
  returned: with O(servers)
  type: list
  elements: str
  sample: []
"""

from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process
from ansible_collections.magnetar.compute.plugins.module_utils.twins.server import CloudServerModule

MODULE = CloudServerModule()

if __name__ == "__main__":
    run_module_process(MODULE)
