#!/usr/bin/python
# Copyright: (c) 2026, Magnetar contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_info
version_added: "0.1.0"
short_description: Report the host of an agent
description:
  - Reports the hypervisor, the CPUs, memory and disk of the host with their usage, and whether KVM works.
author:
  - Magnetar contributors (@magnetar)
extends_documentation_fragment:
  - magnetar.compute.options.host_info
  - magnetar.compute.connection
  - magnetar.compute.attributes.info
seealso:
  - module: magnetar.compute.server_info
"""

EXAMPLES = r"""
- name: The host that the play runs on
  magnetar.compute.host_info:
  register: result

- name: A host over the network, from the controller
  magnetar.compute.host_info:
    endpoint: https://kvm1.example.org:6553
    token: "{{ vault_token }}"
  delegate_to: localhost

- name: Stop when libvirt does not answer the agent
  ansible.builtin.assert: {that: "result.hosts[0].connected"}
"""

RETURN = r"""
hosts:
  description: 'The host of the agent, as the only item.'
  returned: on success
  type: list
  elements: dict
  contains:
    id: {description: The host's uuid in libvirt., type: str, sample: 8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d}
    name: {description: The host's name., type: str, sample: kvm1}
    hypervisor_type: {description: Type of the hypervisor., type: str, sample: QEMU}
    hypervisor_version: {description: Version of QEMU., type: str, sample: 7.2.22}
    libvirt_version: {description: Version of libvirt., type: str, sample: 9.0.0}
    agent_version: {description: Version of the agent., type: str, sample: 0.1.0}
    capabilities: {description: What the agent can do that agents of an earlier release cannot., type: list,
        elements: str, sample: [announcement]}
    architecture: {description: 'The machine''s architecture, in libvirt''s words.', type: str, sample: x86_64}
    emulated_architectures: {description: 'Other architectures that guests can have here, by emulation.', type: list,
        elements: str, sample: [aarch64]}
    machine_types: {description: 'Machine types that servers can have here, by architecture.', type: dict, sample: {
          x86_64: [pc-q35-7.2]}}
    virt_types: {description: 'Kinds of virtualisation that really work here, best first.', type: list, elements: str,
        sample: [kvm, qemu]}
    kvm: {description: '{usable, reason, checked_at}: outcome of starting a tiny guest under KVM.', type: dict,
        sample: {usable: true, reason: a guest started in 0.1 s, checked_at: '2026-11-20T20:00:00Z'}}
    firmware: {description: Firmware that guests can boot with here., type: list, elements: str, sample: [uefi]}
    secure_boot: {description: Whether guests can have secure boot., type: bool, sample: true}
    tpm_versions: {description: Versions of TPM that guests can have., type: list, elements: str, sample: ['2.0']}
    disk_encryption: {description: Formats for the encryption of servers' own disks., type: list, elements: str,
        sample: [luks]}
    memory_encryption: {description: 'Methods of memory encryption, to {guests (how many at the same time), cbitpos,
          reduced_phys_bits}.', type: dict, sample: {amd-sev: {guests: 15, cbitpos: 47, reduced_phys_bits: 1}}}
    pci_devices: {description: 'PCI devices for servers, {total, free, numa_policy (if the alias has one)} by alias;
          a device with several aliases counts for each.', type: dict, sample: {gpu: {total: 2, free: 1}}}
    pci_pools: {description: 'The same, each once: {aliases, numa_node (-1: unknown), total, free, resource_class,
          provider}.', type: raw, sample: [{aliases: [gpu], numa_node: 0, total: 1, free: 1, provider: '0000:c1:00.0',
            resource_class: CUSTOM_PCI_10DE_1EB8}]}
    mdevs: {description: 'Devices that can be divided into virtual GPUs: {parent (PCI address), type,
          numa_node, total, free, provider, traits (if it has some)}.', type: raw, sample: [{parent: '0000:81:00.0',
            type: nvidia-35, numa_node: 0, total: 8, free: 7, provider: pci_0000_81_00_0}]}
    pmem: {description: 'Persistent memory that servers can have: {total, free, sizes_mb} of the namespaces of each
          label.', type: dict, sample: {6GB: {total: 1, free: 1, sizes_mb: [6144]}}}
    providers: {description: 'Parts of the host that are child resource providers in a cloud, NUMA cells first:
          {name, parent (its name; empty: the host), inventories (total, reserved, max_unit by resource class),
          traits, held (claims of servers, by uuid and resource class)}.', type: raw, sample: [{name: '0000:c1:00.0',
            parent: NUMA0, traits: [], inventories: {CUSTOM_PCI_10DE_1EB8: {total: 1, reserved: 0, max_unit: 1}},
            held: {b6c1f4f0-5d0e-4c64-8d6b-3a0a6a0b9a11: {CUSTOM_PCI_10DE_1EB8: 1}}}]}
    vcpus: {description: Shared CPUs of the host., type: int, sample: 16}
    pcpus: {description: Dedicated CPUs of the host., type: int, sample: 0}
    vcpus_used: {description: Virtual CPUs of running servers that share them., type: int, sample: 4}
    memory_mb: {description: Memory of the host in MiB., type: int, sample: 65536}
    memory_mb_used: {description: Memory of running servers in MiB., type: int, sample: 8192}
    disk_gb: {description: Size of the file system or volume group with the servers' disks in GiB., type: int,
        sample: 900}
    disk_gb_free: {description: Free GiB of it., type: int, sample: 700}
    local_disks: {description: '{format, pool, reason}: format and pool of new servers'' disks, or the reason for
          none.', type: dict, sample: {format: qcow2, pool: '', reason: ''}}
    disk_folder: {description: '{path, id, owner, reason}: folder of servers'' disks on shared storage
          (instances_path), null without one. C(id) is the same on each host that reaches it, C(owner)
          names this host in it, C(reason) says why it cannot be used.', type: dict, sample: {path: /srv/servers,
          id: 0d1c6a8e-0f0b-4f5a-9d3e-6a1f0c2b7e44, reason: '', owner: 7b1f7d52-8f0c-4a0e-9f39-2d5a0b9d1c11}}
    disk_pool: {description: '{pool, id, owner, reason, others}: pool of Ceph for servers'' disks (root_pool), null
          without one. C(id) is the same on each host that reaches it, C(owner) names this host in it, C(reason) says
          why it cannot be used, C(others) are servers whose disks lie elsewhere.', type: dict, sample: {pool: ceph,
          id: 'rbd:5d1c6a8e-0f0b-4f5a-9d3e-6a1f0c2b7e44/vms', reason: '', owner: 7b1f7d52-8f0c-4a0e-9f39-2d5a0b9d1c11,
          others: []}}
    pools: {description: 'Pools of volumes, and the target of backups (of the kind C(backup)), by name:
          {name, kind, identity (the same on each host that reaches it; null until it was read), shared
          (whether other hosts can reach it), total_gb, free_gb, state (C(up), C(down)), reason (why it
          is down)}.', type: raw, sample: [{name: ceph, kind: rbd, shared: true, total_gb: 9000, free_gb: 7200,
            identity: 'rbd:5d1c6a8e-0f0b-4f5a-9d3e-6a1f0c2b7e44/volumes', state: up, reason: ''}]}
    injection: {description: '{partition, reason}: partition for file injection (inject_partition), or the reason for
          none.', type: dict, sample: {partition: -1, reason: ''}}
    image_cache_gb: {description: GiB of it that a cloud reserves for images., type: int, sample: 12}
    numa_cells: {description: 'NUMA cells: {id, cpus_shared, cpus_dedicated, memory_mb (of small pages),
          pages (large ones by KiB), free (of the last three), threads (of each core that has several),
          sockets, networks (those whose cards are near it)}.', type: raw, sample: [{id: 0, cpus_shared: 0-15,
            cpus_dedicated: '', memory_mb: 64512, pages: {}, free: {cpus_dedicated: '', memory_mb: 64512,
              pages: {}}, threads: [], sockets: [0], networks: []}]}
    cpu_model: {description: CPU model., type: str, sample: EPYC-Rome}
    cpu_info: {description: '{arch, model, vendor, topology, features}: the CPU, the model the nearest that libvirt
          knows.', type: dict, sample: {arch: x86_64, model: EPYC-Rome, vendor: AMD, features: [avx2], topology: {
            cells: 1, sockets: 1, cores: 8, threads: 2}}}
    traits: {description: 'Properties of the host, by the names that flavors and images require or forbid
          (trait:NAME).', type: list, elements: str, sample: [HW_CPU_X86_AVX2]}
    resources: {description: 'Custom resources of the host for servers of a cloud, by resource class: {total,
          reserved, min_unit, max_unit, step_size, allocation_ratio}.', type: dict, sample: {CUSTOM_LICENSE: {
            total: 8, reserved: 0, min_unit: 1, max_unit: 2147483647, step_size: 1, allocation_ratio: 1.0}}}
    bandwidths: {description: '{egress, ingress} in kbit/s that ports may be promised, by NETWORK, NETWORK/CARD,
          rp_tunnelled.', type: dict, sample: {physnet0: {egress: 10000000, ingress: 10000000}}}
    provider_config: {description: '{files, problems}: the valid files with these resources, and the errors in others.',
        type: dict, sample: {files: [provider.yaml], problems: []}}
    address: {description: IP address of the host in a cloud; empty where it has no route., type: str,
        sample: 192.0.2.11}
    metrics: {description: 'Metrics of the CPUs, with Nova''s names: times in ns, shares (0 to 1) of the sampling
          interval.', type: dict, sample: {cpu.percent: 0.25}}
    images: {description: Ids of the images in the host's cache., type: list, elements: str, sample: [
          5e8a0c54-6a0b-4d0e-9f43-2a2f3b1c0d9e]}
    servers: {description: Servers with a document., type: int, sample: 4}
    cloud_servers: {description: Servers among them that belong to a cloud; only the cloud moves and changes them.,
        type: int, sample: 0}
    running: {description: Running servers., type: int, sample: 3}
    connected: {description: Whether libvirt answers., type: bool, sample: true}
    link_name: {description: 'Common name of its certificate, which identifies it to other agents. null: it has
          no TLS.', type: str, sample: kvm1}
    link_port: {description: Port for other agents., type: int, sample: 6553}
    metadata_service: {description: '{bridges, reason}: bridges with guests that get answers at 169.254.169.254,
          and why others get none; empty when all do, or when no guest runs.', type: dict, sample: {bridges: [magbr0],
          reason: ''}}
    shares: {description: 'Shares for servers of a cloud, by the names in the agent''s setting shares.', type: list,
        elements: str, sample: [scratch]}
    consoles: {description: Kinds of consoles of newly started servers., type: list, elements: str, sample: [vnc]}
    port_security: {description: '{ports, reason}: number of filtered NICs, and the reason if filtering is incomplete.',
        type: dict, sample: {ports: 4, reason: ''}}
    ovn: {description: '{bridge, datapath, chassis, reason}: the bridge for ports of OVN, the datapath of Open vSwitch
          (C(system): in the kernel, C(netdev): in a process), the host''s name in OVN, and why it cannot plug in ports;
          empty if it can.', type: dict, sample: {bridge: br-int, datapath: system, chassis: kvm1, reason: ''}}
    orphans: {description: 'Leftovers without a document: domains, files; on Ceph C(shared), which are leftovers if
          no host knows them.', type: dict, sample: {domains: [], files: []}}
error: {description: 'The failure in a form for programs: V(code) names its kind, V(details) has the values.',
    returned: on failure, type: dict, sample: {code: invalid-field, details: {field: name, rule: is required},
      request_id: req-5f9c1f0e-3a3c-4c8e-8e0a-2f4f6c1d7b11}}
"""

from ansible_collections.magnetar.compute.plugins.module_utils.core.kinds import Host
from ansible_collections.magnetar.compute.plugins.module_utils.modules.info import InfoModule
from ansible_collections.magnetar.compute.plugins.module_utils.run import run_module_process

MODULE = InfoModule(Host)

if __name__ == "__main__":
    run_module_process(MODULE)
