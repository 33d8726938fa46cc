#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: server_import
version_added: "0.2.0"
short_description: Make a server of an OVA
description:
  - Makes a server with the disks and the hardware of an OVA, as VMware, VirtualBox and others export them.
  - The first disk becomes an image with the server's name, and the server boots from it. Each further disk becomes a
    volume of the server; the volumes stay when the server is removed.
  - CPUs, memory, firmware, disk controllers and NIC models are those of the OVA. A device that servers do not have
    becomes a similar one, with a warning.
  - If a server has the name, nothing changes, and the OVA is not read. An import that was interrupted continues when
    the task is repeated.
  - Servers of a single host only. For another disk than that of an OVA, use M(magnetar.compute.image) and
    M(magnetar.compute.server).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.server_import
  - magnetar.compute.connection
  - magnetar.compute.attributes
seealso:
  - module: magnetar.compute.image
  - module: magnetar.compute.server
"""

EXAMPLES = r"""
- name: Make a server of an OVA of this machine
  magnetar.compute.server_import:
    name: shop
    filename: /srv/images/shop.ova
    networks:
      VM Network: lan
    timeout: 1800

- name: Make a server of an OVA of the host, smaller than it was, with virtio devices, and leave it off
  magnetar.compute.server_import:
    name: shop2
    host_path: /var/lib/magnetar/import/shop.ova
    networks:
      VM Network: lan
    vcpus: 1
    ram: 1024
    properties:
      hw_disk_bus: virtio
      hw_vif_model: virtio
    tags: [imported]
    state: stopped
"""

RETURN = r"""
server:
  description: 'The server after the task; in check mode, as it would be.'
  returned: on success
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
ovf:
  description: The guest that the OVA describes, see RV(magnetar.compute.image#module:image.ovf).
  returned: on success; null if the server existed
  type: dict
  sample: {guests: 1, name: shop, os: Debian GNU/Linux 12, vcpus: 2, ram: 4096, firmware: bios, secure_boot: false,
    nics: [{network: VM Network, model: vmxnet3}],
    disks: [{name: shop-disk1.vmdk, size: 42949672960, bus: scsi, controller: virtualscsi}]}
volumes:
  description: Names of the volumes that were made of further disks.
  returned: on success
  type: list
  elements: str
  sample: [shop-disk2]
actions:
  description: The steps that were done, in order; in check mode, the predicted steps.
  returned: on success
  type: list
  elements: str
  sample: ["image shop: record", "image shop: fetch", "server shop: record", "server shop: start"]
changes:
  description: Path of each field that changed, after the resource, to its V(old) and V(new) value.
  returned: on success
  type: dict
  sample: {server.shop.name: {old: null, new: shop}}
request_id:
  description: Name of the last request in the logs of the agent.
  returned: on success
  type: str
  sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.importing.server_import import (
    ServerImportModule,
)
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = ServerImportModule()

if __name__ == "__main__":
    run_module_process(MODULE)
