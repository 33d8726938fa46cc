# SPDX-License-Identifier: GPL-3.0-or-later
"""host: the machine that an agent manages; read only."""

from __future__ import annotations

from ..fields import READ, Field, Kind
from ..values import Boolean, Integer, ListOf, MapOf, Nullable, Text, Value


class Host(Kind):
    """The host of the agent: what it is, what it has, what is used, and what no document knows."""

    noun, plural = "host", "hosts"
    selectable = False

    id = Field(Text(1, 64), "The host's uuid in libvirt.", on=READ, sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    name = Field(Text(1, 255), "The host's name.", on=READ, sample="kvm1")
    hypervisor_type = Field(Text(), "Type of the hypervisor.", on=READ, sample="QEMU")
    hypervisor_version = Field(Text(), "Version of QEMU.", on=READ, sample="7.2.22")
    libvirt_version = Field(Text(), "Version of libvirt.", on=READ, sample="9.0.0")
    agent_version = Field(Text(), "Version of the agent.", on=READ, sample="0.1.0")
    architecture = Field(Text(), "The machine's architecture, in libvirt's words.", on=READ, sample="x86_64")
    virt_types = Field(ListOf(Text()), "Kinds of virtualisation that really work here, best first.", on=READ,
                       sample=["kvm", "qemu"])
    kvm = Field(Value(), "{usable, reason, checked_at}: outcome of starting a tiny guest under KVM.", on=READ,
                sample={"usable": True, "reason": "a guest started in 0.1 s", "checked_at": "2026-11-20T20:00:00Z"})
    vcpus = Field(Integer(), "CPUs of the host.", on=READ, sample=16)
    vcpus_used = Field(Integer(), "CPUs of running servers.", on=READ, sample=4)
    memory_mb = Field(Integer(), "Memory of the host in MiB.", on=READ, sample=65536)
    memory_mb_used = Field(Integer(), "Memory of running servers in MiB.", on=READ, sample=8192)
    disk_gb = Field(Integer(), "Size of the file system with the servers' disks in GiB.", on=READ, sample=900)
    disk_gb_free = Field(Integer(), "What is free of it in GiB.", on=READ, sample=700)
    cpu_model = Field(Text(), "CPU model.", on=READ, sample="EPYC-Rome")
    servers = Field(Integer(), "Servers with a document.", on=READ, sample=4)
    cloud_servers = Field(Integer(), "Servers among them that a cloud has made here: move and change them through the "
                                     "cloud, which would not know of it else.", on=READ, sample=0)
    running = Field(Integer(), "Servers that run.", on=READ, sample=3)
    connected = Field(Boolean(), "Whether libvirt answers.", on=READ, sample=True)
    link_name = Field(Nullable(Text(0, 255)), "Name by which other agents know this one: the common name of its "
                                              "certificate. null: no TLS, so no links and no migrations.", on=READ,
                      sample="kvm1")
    link_port = Field(Nullable(Integer()), "Port on which other agents reach it.", on=READ, sample=6553)
    metadata_service = Field(Value(), "{bridges, reason}: bridges on which guests are answered at 169.254.169.254, and "
                                      "why they are not; empty where they are, or where no guest runs.", on=READ,
                             sample={"bridges": ["magbr0"], "reason": ""})
    shares = Field(ListOf(Text()), "Folders that servers of a cloud may be given, by the names of the agent's setting "
                                   "shares.", on=READ, sample=["scratch"])
    consoles = Field(ListOf(Text()), "Kinds of consoles that servers which start now have.", on=READ,
                     sample=["serial", "vnc"])
    port_security = Field(Value(), "{ports, reason}: how many NICs are filtered, and why they are not as they should "
                                   "be; empty where they are.", on=READ, sample={"ports": 4, "reason": ""})
    ovn = Field(Value(), "{bridge, datapath, chassis, reason}: the bridge for ports of OVN, how Open vSwitch forwards "
                         "(V(system): the kernel, V(netdev): in a process), the host's name in OVN, and why it cannot "
                         "plug in ports; empty where it can.", on=READ,
                sample={"bridge": "br-int", "datapath": "system", "chassis": "kvm1", "reason": ""})
    orphans = Field(MapOf(Text(), ListOf(Text())), "Things of Magnetar that no document knows: domains, files.",
                    on=READ, sample={"domains": [], "files": []})
