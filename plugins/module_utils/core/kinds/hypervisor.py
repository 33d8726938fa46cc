# SPDX-License-Identifier: GPL-3.0-or-later
"""hypervisor: a compute host of a cloud with its capacity and claims; read only."""

from __future__ import annotations

from ..fields import READ, Field, Kind
from ..values import Boolean, Integer, ListOf, Nullable, Text, Value


class Hypervisor(Kind):
    """A compute host as the scheduler sees it."""

    noun, plural = "hypervisor", "hypervisors"

    id = Field(Text(1, 64), "The uuid.", on=READ, sample="8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d")
    name = Field(Text(1, 255), "The host's name.", on=READ, sample="kvm1")
    cell = Field(Text(), "Name of its cell.", on=READ, sample="cell1")
    zone = Field(Text(), "Its availability zone.", on=READ, sample="nova")
    up = Field(Boolean(), "Whether its agent reports.", on=READ, sample=True)
    disabled = Field(Boolean(), "Whether it gets no new servers.", on=READ, sample=False)
    disabled_reason = Field(Nullable(Text()), "Why.", on=READ, sample=None)
    forced_down = Field(Boolean(), "Whether an administrator has forced it down.", on=READ, sample=False)
    type = Field(Text(), "Type of the hypervisor.", on=READ, sample="QEMU")
    version = Field(Text(), "Its version.", on=READ, sample="7.2.22")
    vcpus = Field(Integer(), "Shared CPUs of the host.", on=READ, sample=16)
    vcpus_used = Field(Integer(), "CPUs that are claimed.", on=READ, sample=4)
    vcpus_limit = Field(Integer(), "CPUs that may be claimed, by the allocation ratio.", on=READ, sample=64)
    pcpus = Field(Integer(), "Dedicated CPUs of the host.", on=READ, sample=8)
    pcpus_used = Field(Integer(), "Those that are claimed.", on=READ, sample=2)
    pcpus_limit = Field(Integer(), "Those that may be claimed.", on=READ, sample=8)
    memory_mb = Field(Integer(), "Memory of the host in MiB.", on=READ, sample=65536)
    memory_mb_used = Field(Integer(), "Memory that is claimed in MiB.", on=READ, sample=8192)
    memory_mb_limit = Field(Integer(), "Memory that may be claimed in MiB.", on=READ, sample=65024)
    disk_gb = Field(Integer(), "Disk of the host in GiB.", on=READ, sample=900)
    disk_gb_used = Field(Integer(), "Disk that is claimed in GiB.", on=READ, sample=200)
    disk_gb_limit = Field(Integer(), "Disk that may be claimed in GiB.", on=READ, sample=900)
    servers = Field(Integer(), "Servers on it, and servers that move to it.", on=READ, sample=4)
    virt_types = Field(ListOf(Value()), "Kinds of virtualisation that work there, best first.", on=READ,
                       sample=["kvm", "qemu"])
