# SPDX-License-Identifier: GPL-3.0-or-later
"""host: the machine that an agent manages, read only. adoption: a libvirt domain of the host that Magnetar did not
make, and the server that it becomes."""

from __future__ import annotations

from ..fields import FIXED, READ, Field, Kind
from ..values import Boolean, Choices, Integer, ListOf, MapOf, Nullable, Text, Uuid, Value
from .common import NAME

#: Values of ``status``.
ADOPTABLE, HINDERED, ADOPTED = "adoptable", "hindered", "adopted"


class Host(Kind):
    """The agent's host: its identity, its capacity and usage, and its orphans: libvirt domains and files that belong to
    no resource.
    """

    noun, plural = "host", "hosts"
    selectable = False
    report_doc = "The host of the agent, as the only item."

    id = Field(Text(1, 64), "The host's uuid in libvirt.", on=READ, sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    name = Field(Text(1, 255), "The host's name.", on=READ, sample="kvm1")
    hypervisor_type = Field(Text(), "Type of the hypervisor.", on=READ, sample="QEMU")
    hypervisor_version = Field(Text(), "Version of QEMU.", on=READ, sample="7.2.22")
    libvirt_version = Field(Text(), "Version of libvirt.", on=READ, sample="9.0.0")
    agent_version = Field(Text(), "Version of the agent.", on=READ, sample="0.1.0")
    capabilities = Field(ListOf(Text()), "What the agent can do that agents of an earlier release cannot.", on=READ,
                         sample=["announcement"])
    architecture = Field(Text(), "The machine's architecture, in libvirt's words.", on=READ, sample="x86_64")
    emulated_architectures = Field(ListOf(Text()), "Other architectures that guests can have here, by emulation.",
                                   on=READ, sample=["aarch64"])
    machine_types = Field(MapOf(Text(), ListOf(Text())), "Machine types that servers can have here, by architecture.",
                          on=READ, sample={"x86_64": ["pc-q35-7.2"]})
    virt_types = Field(ListOf(Text()), "Kinds of virtualisation that really work here, best first.", on=READ,
                       sample=["kvm", "qemu"])
    kvm = Field(Value(), "{usable, reason, checked_at}: outcome of starting a tiny guest under KVM.", on=READ,
                sample={"usable": True, "reason": "a guest started in 0.1 s", "checked_at": "2026-11-20T20:00:00Z"})
    firmware = Field(ListOf(Text()), "Firmware that guests can boot with here.", on=READ, sample=["uefi"])
    secure_boot = Field(Boolean(), "Whether guests can have secure boot.", on=READ, sample=True)
    tpm_versions = Field(ListOf(Text()), "Versions of TPM that guests can have.", on=READ, sample=["2.0"])
    disk_encryption = Field(ListOf(Text()), "Formats for the encryption of servers' own disks.", on=READ,
                            sample=["luks"])
    memory_encryption = Field(MapOf(Text(), Value()), "Methods of memory encryption, to {guests (how many at the same "
                              "time), cbitpos, reduced_phys_bits}.", on=READ,
                              sample={"amd-sev": {"guests": 15, "cbitpos": 47, "reduced_phys_bits": 1}})
    pci_devices = Field(MapOf(Text(), Value()), "PCI devices for servers, {total, free, numa_policy (if the alias has "
                        "one)} by alias; a device with several aliases counts for each.", on=READ,
                        sample={"gpu": {"total": 2, "free": 1}})
    pci_pools = Field(Value(), "The same, each once: {aliases, numa_node (-1: unknown), total, free, "
                               "resource_class, provider}.", on=READ,
                      sample=[{"aliases": ["gpu"], "numa_node": 0, "total": 1, "free": 1, "provider": "0000:c1:00.0",
                               "resource_class": "CUSTOM_PCI_10DE_1EB8"}])
    mdevs = Field(Value(), "Devices that can be divided into virtual GPUs: {parent (PCI address), type, numa_node, "
                  "total, free, provider, traits (if it has some)}.", on=READ,
                  sample=[{"parent": "0000:81:00.0", "type": "nvidia-35", "numa_node": 0, "total": 8, "free": 7,
                           "provider": "pci_0000_81_00_0"}])
    pmem = Field(MapOf(Text(), Value()), "Persistent memory that servers can have: {total, free, sizes_mb} of the "
                 "namespaces of each label.", on=READ,
                 sample={"6GB": {"total": 1, "free": 1, "sizes_mb": [6144]}})
    providers = Field(Value(), "Parts of the host that are child resource providers in a cloud, NUMA cells first: "
                      "{name, parent (its name; empty: the host), inventories (total, reserved, max_unit by resource "
                      "class), traits, held (claims of servers, by uuid and resource class)}.", on=READ,
                      sample=[{"name": "0000:c1:00.0", "parent": "NUMA0", "traits": [],
                               "inventories": {"CUSTOM_PCI_10DE_1EB8": {"total": 1, "reserved": 0, "max_unit": 1}},
                               "held": {"b6c1f4f0-5d0e-4c64-8d6b-3a0a6a0b9a11": {"CUSTOM_PCI_10DE_1EB8": 1}}}])
    vcpus = Field(Integer(), "Shared CPUs of the host.", on=READ, sample=16)
    pcpus = Field(Integer(), "Dedicated CPUs of the host.", on=READ, sample=0)
    vcpus_used = Field(Integer(), "Virtual CPUs of running servers that share them.", on=READ, sample=4)
    memory_mb = Field(Integer(), "Memory of the host in MiB.", on=READ, sample=65536)
    memory_mb_used = Field(Integer(), "Memory of running servers in MiB.", on=READ, sample=8192)
    disk_gb = Field(Integer(), "Size of the file system or volume group with the servers' disks in GiB.", on=READ,
                    sample=900)
    disk_gb_free = Field(Integer(), "Free GiB of it.", on=READ, sample=700)
    local_disks = Field(Value(), "{format, pool, reason}: format and pool of new servers' disks, or the reason for "
                        "none.",
                        on=READ, sample={"format": "qcow2", "pool": "", "reason": ""})
    disk_folder = Field(Value(), "{path, id, owner, reason}: folder of servers' disks on shared storage "
                        "(instances_path), null without one. V(id) is the same on each host that reaches it, V(owner) "
                        "names this host in it, V(reason) says why it cannot be used.", on=READ,
                        sample={"path": "/srv/servers", "id": "0d1c6a8e-0f0b-4f5a-9d3e-6a1f0c2b7e44", "reason": "",
                                "owner": "7b1f7d52-8f0c-4a0e-9f39-2d5a0b9d1c11"})
    disk_pool = Field(Value(), "{pool, id, owner, reason, others}: pool of Ceph for servers' disks (root_pool), null "
                      "without one. V(id) is the same on each host that reaches it, V(owner) names this host in it, "
                      "V(reason) says why it cannot be used, V(others) are servers whose disks lie elsewhere.", on=READ,
                      sample={"pool": "ceph", "id": "rbd:5d1c6a8e-0f0b-4f5a-9d3e-6a1f0c2b7e44/vms", "reason": "",
                              "owner": "7b1f7d52-8f0c-4a0e-9f39-2d5a0b9d1c11", "others": []})
    pools = Field(Value(), "Pools of volumes, and the target of backups (of the kind V(backup)), by name: {name, kind, "
                  "identity (the same on each host that reaches it; null until it was read), shared (whether other "
                  "hosts can reach it), total_gb, free_gb, state (V(up), V(down)), reason (why it is down)}.", on=READ,
                  sample=[{"name": "ceph", "kind": "rbd", "shared": True, "total_gb": 9000, "free_gb": 7200,
                           "identity": "rbd:5d1c6a8e-0f0b-4f5a-9d3e-6a1f0c2b7e44/volumes", "state": "up",
                           "reason": ""}])
    injection = Field(Value(), "{partition, reason}: partition for file injection (inject_partition), or the reason "
                      "for none.",
                      on=READ, sample={"partition": -1, "reason": ""})
    image_cache_gb = Field(Integer(), "GiB of it that a cloud reserves for images.", on=READ,
                           sample=12)
    numa_cells = Field(Value(), "NUMA cells: {id, cpus_shared, cpus_dedicated, memory_mb (of small pages), pages "
                                "(large ones by KiB), free (of the last three), threads (of each core that has "
                                "several), sockets, networks (those whose cards are near it)}.", on=READ,
                       sample=[{"id": 0, "cpus_shared": "0-15", "cpus_dedicated": "", "memory_mb": 64512, "pages": {},
                                "free": {"cpus_dedicated": "", "memory_mb": 64512, "pages": {}}, "threads": [],
                                "sockets": [0], "networks": []}])
    cpu_model = Field(Text(), "CPU model.", on=READ, sample="EPYC-Rome")
    cpu_info = Field(Value(), "{arch, model, vendor, topology, features}: the CPU, the model the nearest "
                              "that libvirt knows.", on=READ,
                     sample={"arch": "x86_64", "model": "EPYC-Rome", "vendor": "AMD", "features": ["avx2"],
                             "topology": {"cells": 1, "sockets": 1, "cores": 8, "threads": 2}})
    traits = Field(ListOf(Text()), "Properties of the host, by the names that flavors and images require or forbid "
                   "(trait:NAME).", on=READ, sample=["HW_CPU_X86_AVX2"])
    resources = Field(MapOf(Text(), Value()), "Custom resources of the host for servers of a cloud, by resource "
                      "class: {total, reserved, min_unit, max_unit, step_size, allocation_ratio}.", on=READ,
                      sample={"CUSTOM_LICENSE": {"total": 8, "reserved": 0, "min_unit": 1, "max_unit": 2147483647,
                                                 "step_size": 1, "allocation_ratio": 1.0}})
    bandwidths = Field(MapOf(Text(), Value()), "{egress, ingress} in kbit/s that ports may be promised, by NETWORK, "
                       "NETWORK/CARD, rp_tunnelled.",
                       on=READ, sample={"physnet0": {"egress": 10000000, "ingress": 10000000}})
    provider_config = Field(Value(), "{files, problems}: the valid files with these resources, and the errors in "
                            "others.", on=READ,
                            sample={"files": ["provider.yaml"], "problems": []})
    address = Field(Text(), "IP address of the host in a cloud; empty where it has no route.", on=READ,
                    sample="192.0.2.11")
    metrics = Field(MapOf(Text(), Value()), "Metrics of the CPUs, with Nova's names: times in ns, shares (0 to 1) of "
                    "the sampling interval.", on=READ, sample={"cpu.percent": 0.25})
    images = Field(ListOf(Text()), "Ids of the images in the host's cache.", on=READ,
                   sample=["5e8a0c54-6a0b-4d0e-9f43-2a2f3b1c0d9e"])
    servers = Field(Integer(), "Servers with a document.", on=READ, sample=4)
    cloud_servers = Field(Integer(), "Servers among them that belong to a cloud; only the cloud moves and changes "
                          "them.",
                          on=READ, sample=0)
    running = Field(Integer(), "Running servers.", on=READ, sample=3)
    connected = Field(Boolean(), "Whether libvirt answers.", on=READ, sample=True)
    link_name = Field(Nullable(Text(0, 255)), "Common name of its certificate, which identifies it to other agents. "
                      "null: it has no TLS.", on=READ, sample="kvm1")
    link_port = Field(Nullable(Integer()), "Port for other agents.", on=READ, sample=6553)
    metadata_service = Field(Value(), "{bridges, reason}: bridges with guests that get answers at 169.254.169.254, "
                             "and why others get none; empty when all do, or when no guest runs.", on=READ,
                             sample={"bridges": ["magbr0"], "reason": ""})
    shares = Field(ListOf(Text()), "Shares for servers of a cloud, by the names in the agent's setting shares.",
                   on=READ, sample=["scratch"])
    consoles = Field(ListOf(Text()), "Kinds of consoles of newly started servers.", on=READ,
                     sample=["vnc"])
    port_security = Field(Value(), "{ports, reason}: number of filtered NICs, and the reason if filtering is "
                          "incomplete.", on=READ, sample={"ports": 4, "reason": ""})
    ovn = Field(Value(), "{bridge, datapath, chassis, reason}: the bridge for ports of OVN, the datapath of Open "
                "vSwitch (V(system): in the kernel, V(netdev): in a process), the host's name in OVN, and why it "
                "cannot plug in ports; empty if it can.", on=READ,
                sample={"bridge": "br-int", "datapath": "system", "chassis": "kvm1", "reason": ""})
    orphans = Field(MapOf(Text(), ListOf(Text())), "Leftovers without a document: domains, files; on Ceph C(shared), "
                    "which are leftovers if no host knows them.", on=READ,
                    sample={"domains": [], "files": []})


class Adoption(Kind):
    """A libvirt domain that another program has defined. The resource exists if the agent or the cloud
    manages the domain as a server. Neither changes the domain's definition or its disks.
    """

    noun, plural = "adoption", "adoptions"
    sample_actions = ("record", "mark_domain")
    sample_changes = {"status": ("adoptable", "adopted")}
    report_doc = ("The domains of the host that Magnetar did not make, sorted by name; with C(status), those that it "
                  "has adopted. Of a cloud, the domains of all hosts that are up, or of the host in O(filters).")
    of_clouds = frozenset(("host", "project", "user", "flavor", "make_flavor", "networks", "addresses",
                           "without_ports"))

    id = Field(Uuid(), "The uuid of the domain. Its server has the same uuid.", on=FIXED,
               sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    name = Field(Text(1, 255), "The name of the libvirt domain. It stays.", on=FIXED, required=True,
                 aliases=("domain",), sample="web1")
    server_name = Field(NAME, "The name of the server; the name of the domain when omitted.", on=FIXED, sample="web1")
    host = Field(Nullable(Text(1, 255)), "The host of the domain; in a cloud, required to adopt.", on=FIXED,
                 sample="kvm1")
    project = Field(Text(1, 255), "In a cloud: name or id of the project that gets the server; by default that of the "
                    "login.", on="create", compared=False, sample="web")
    user = Field(Text(1, 255), "In a cloud: id of the user that gets the server; by default that of the login.",
                 on="create", compared=False, sample="3b5c1d6a0e4f4f0c9d5a6b7c8d9e0f1a")
    flavor = Field(Text(1, 255), "In a cloud: name or id of the server's flavor, which must have the domain's CPUs and "
                   "memory at least. By default a flavor of equal CPUs, memory and disk.", on="create", compared=False,
                   sample="m1.small")
    make_flavor = Field(Boolean(), "In a cloud: whether a private flavor is made if none is equal.", on="create",
                        compared=False, sample=False)
    networks = Field(MapOf(Text(1, 255), Text(1, 255)), "In a cloud: name or id of the network that each bridge or "
                     "libvirt network of the domain's NICs is. The server gets ports there, with the MAC addresses and "
                     "addresses of the NICs. Not needed for networks of the cloud itself.", on="create",
                     compared=False, sample={"br0": "office"})
    addresses = Field(MapOf(Text(1, 17), ListOf(Text(1, 64))), "In a cloud: addresses of NICs by MAC address; by "
                      "default those that the host has leased to them.", on="create show list", compared=False,
                      sample={"52:54:00:12:34:56": ["192.0.2.7"]})
    without_ports = Field(Boolean(), "In a cloud: whether the server has no ports, whatever NICs its domain has.",
                          on="create", compared=False, sample=False)
    status = Field(Choices(ADOPTABLE, HINDERED, ADOPTED), "Whether the domain can be adopted, something hinders its "
                   "adoption, or it is adopted.", on=READ, sample=ADOPTED)
    power_state = Field(Text(), "The power state of the domain.", on=READ, sample="running")
    autostart = Field(Boolean(), "Whether libvirt starts the domain when the host boots. It stays so.", on=READ,
                      sample=True)
    server = Field(Value(), "The fields of the server, as it is or would be: {name, flavor, networks, machine, "
                   "virt_type, power, resume_on_host_boot}; in a cloud also project_id, user_id and ports.", on=READ,
                   sample={"name": "web1", "flavor": {"vcpus": 2, "ram": 2048, "disk": 20, "ephemeral": 0, "swap": 0},
                           "networks": [{"network": "default", "mac": "52:54:00:12:34:56", "model": "virtio"}],
                           "machine": "pc-q35-7.2", "virt_type": "kvm", "power": "running",
                           "resume_on_host_boot": True})
    disks = Field(ListOf(Value(), 2**31), "The disks, which stay where they are: {device, bus, kind, format, path, "
                  "size in bytes, readonly, shareable, backing}. C(backing) has path and format of each backing file.",
                  on=READ, sample=[{"device": "vda", "bus": "virtio", "kind": "disk", "format": "qcow2",
                                    "path": "/var/lib/libvirt/images/web1.qcow2", "size": 21474836480,
                                    "readonly": False, "shareable": False,
                                    "backing": [{"path": "/var/lib/libvirt/images/base.qcow2", "format": "qcow2"}]}])
    stays = Field(ListOf(Value(), 2**31), "The parts of the definition that a server has no fields for, and that stay "
                  "as they are: {part, value}.", on=READ,
                  sample=[{"part": "firmware", "value": "UEFI, variables in /var/lib/libvirt/qemu/nvram/web1_VARS.fd"}])
    hindrances = Field(ListOf(Value(), 2**31), "What hinders the adoption: {reason, message}. The message says what to "
                       "do.", on=READ,
                       sample=[])
