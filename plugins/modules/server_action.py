#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: server_action
version_added: "0.1.0"
short_description: Reboot, rebuild, rescue a server, make an image of it, and the like
description:
  - Runs one action on a server, such as a reboot.
  - Actions that are lasting states (V(rescue), V(unrescue), V(start), V(stop), V(pause), V(unpause), V(suspend),
    V(resume), V(shelve), V(unshelve)) change nothing on a server that is in that state.
  - V(create_image) copies the state of the root disk at one instant, while the guest runs. If a guest agent
    (C(qemu-guest-agent)) answers, file systems are frozen for that instant, see RV(consistency). While an earlier
    task makes the image, it waits for that task, or returns RV(operation) with O(wait=false).
  - V(create_backup) makes such an image of a cloud's server, one in a series of its type. When the new one has its
    content, the oldest beyond O(rotation) are deleted; a failed backup deletes none.
  - V(restore) and V(force_delete) are for clouds that keep deleted servers for a while. V(restore) changes nothing on
    a server that is not deleted, V(force_delete) nothing if the server does not exist.
  - V(lock) and V(unlock) are for clouds, and change nothing on a server that is locked (with that reason), or is not
    locked. They take effect immediately, also while another action runs.
  - V(evacuate) is for a host that is certainly dead. A root disk on the host is made again from its image, so its
    data is lost; a volume on another host is kept, and so are disks in a folder that hosts share. A server that ran
    runs again. While the host is up, the action fails and changes nothing.
  - V(rebuild) powers the guest off and loses its root disk, swap, and ephemeral disk unless O(preserve_ephemeral).
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.server_action
  - magnetar.compute.connection
  - magnetar.compute.attributes.action
seealso:
  - module: magnetar.compute.server
  - module: magnetar.compute.server_info
"""

EXAMPLES = r"""
- name: Ask the guest to restart
  magnetar.compute.server_action:
    name: web1
    action: reboot

- name: Restart the machine of a guest that hangs
  magnetar.compute.server_action:
    name: web1
    action: reboot_hard

- name: Restart it, with the kind of reboot as an option
  magnetar.compute.server_action:
    name: web1
    action: reboot
    reboot_type: hard

- name: Make an image of the running server, with properties
  magnetar.compute.server_action:
    name: web1
    action: create_image
    image_name: web1-before-upgrade
    metadata:
      purpose: rollback
    timeout: 600

- name: Rebuild the root disk from an image; name, uuid and MACs stay
  magnetar.compute.server_action:
    name: web1
    action: rebuild
    image: debian
    preserve_ephemeral: true

- name: Boot from another image to repair the root disk, which is the second disk then
  magnetar.compute.server_action:
    name: web1
    action: rescue
    image: debian

- name: Boot from the root disk again
  magnetar.compute.server_action:
    name: web1
    action: unrescue

- name: Set the password of root by the guest agent
  magnetar.compute.server_action:
    name: web1
    action: change_password
    password: "{{ vault_password | default('correct horse battery staple') }}"
  no_log: true

- name: Read the end of the console log
  magnetar.compute.server_action:
    name: web1
    action: console_output
    length: 20
  register: said

- name: Make a guest that hangs write a crash dump
  magnetar.compute.server_action:
    name: web1
    action: crash_dump

- name: Delete a server of a cloud, see that it was the wrong one, and have it back
  magnetar.compute.server_action:
    name: web1
    action: restore

- name: Keep users of a cloud from changing a server
  magnetar.compute.server_action:
    name: web1
    action: lock
    locked_reason: see https://wiki.example.org/audit

- name: Let them change it again
  magnetar.compute.server_action:
    name: web1
    action: unlock

- name: The options of openstack.cloud
  magnetar.compute.server_action:
    server: web1
    action: reboot_soft
    timeout: 60
"""

RETURN = r"""
server:
  description: 'The server after the action; its last state, when V(force_delete) has deleted it.'
  returned: 'on success, if the server exists'
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
actions:
  description: The steps that were done; in check mode, the predicted steps.
  returned: on success
  type: list
  elements: str
  sample: [reboot_soft]
image:
  description: The new or existing image.
  returned: with O(action=create_image), but in check mode only if it exists; when O(action=create_backup) is done
  type: dict
  sample: {id: 0b9f1a52-6ea0-4b9c-a4f6-0e0f9f0c3c11, name: web1-before-upgrade}
consistency:
  description:
    - 'State of the file systems in the image. V(frozen): the guest agent had flushed and frozen them;
      V(crash-consistent): as after a power failure; V(stopped): the server was off.'
  returned: with O(action=create_image), and when O(action=create_backup) has made one
  type: str
  sample: frozen
console:
  description: The end of the console log.
  returned: with O(action=console_output)
  type: str
  sample: "web1 login: "
changes:
  description: Path of each field that changed to its V(old) and V(new) value.
  returned: with an action that is a state
  type: dict
  sample: {power: {old: "off", new: running}}
operation:
  description: The operation that continues after the task.
  returned: when O(wait=false) and the work takes longer than a moment; in check mode when it makes the image of
    O(action=create_image)
  type: dict
  sample: {id: 0d0b3c1e-8f5c-4c3a-9b53-1d0b5f1f5f10, status: running}
request_id:
  description: Name of the request in the logs of the agent.
  returned: when it was done
  type: str
  sample: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.server_action import ServerActionModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = ServerActionModule()

if __name__ == "__main__":
    run_module_process(MODULE)
