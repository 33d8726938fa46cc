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
  - Moves a server from the host of O(endpoint) to the host of O(destination), with its disks, its config drive, its
    console log and its addresses. A running guest is paused for a short time only.
  - The two agents connect to each other over TLS, on the agent's port only. Each must trust the CA of the other's
    certificate; the role P(magnetar.compute.agent#role) provides that.
  - An impossible migration is refused before any change. After a failure or a crash, run the task again to continue.
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
    {server: web1, endpoint: "https://kvm1.example.org", destination: "https://kvm2.example.org", type: cold}

- name: Abort the migration
  magnetar.compute.migration:
    {server: web1, endpoint: "https://kvm1.example.org", destination: "https://kvm2.example.org", state: absent}
"""

RETURN = r"""
server:
  description: The server; V(host) is where it is.
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
migration:
  description: 'The migration, from the agent that was asked last.'
  returned: when something was done
  type: dict
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
actions:
  description: The steps that were done; in check mode, the predicted steps.
  returned: on success
  type: list
  elements: str
  sample: [prepare, claim, move, settle, leave]
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.modules.migration import MigrationModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = MigrationModule()

if __name__ == "__main__":
    run_module_process(MODULE)
