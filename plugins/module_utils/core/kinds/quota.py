# SPDX-License-Identifier: GPL-3.0-or-later
"""quota, limits and usage of a project of a cloud."""

from __future__ import annotations

from ..fields import READ, Field, Kind
from ..values import Integer, ListOf, Nullable, Text, Value

_MOST = Integer(-1)


def _of_service(doc: str, sample: int, *aliases: str) -> Field:
    """Return a field for a limit of the network or volume service. *doc*: the description of the field. *sample*: an
    example of its value. *aliases*: further names of the field in modules."""
    return Field(Nullable(_MOST), doc + " Null if another service than the cloud's own has it.", aliases=aliases,
                 sample=sample)


class Quota(Kind):
    """Limits of one project on servers, volumes and networks; -1 means no limit. Unset limits are the cloud's defaults.
    """

    noun, plural = "quota", "quotas"
    sample_changes = {"instances": (10, 20)}

    name = Field(Text(1, 255), "The id of the project.", on=READ,
                 sample="0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a")
    instances = Field(_MOST, "Limit of servers.", sample=10)
    cores = Field(_MOST, "Limit of the CPUs of all servers.", sample=20)
    ram = Field(_MOST, "Limit of the memory of all servers in MiB.", sample=51200)
    metadata_items = Field(_MOST, "Metadata keys of a server.", sample=128)
    key_pairs = Field(_MOST, "Key pairs of a user.", sample=100)
    server_groups = Field(_MOST, "Server groups.", sample=10)
    server_group_members = Field(_MOST, "Servers in a server group.", sample=10)
    volumes = _of_service("Volumes.", 10)
    snapshots = _of_service("Snapshots of volumes.", 10)
    gigabytes = _of_service("GiB of all volumes and snapshots.", 1000)
    per_volume_gigabytes = _of_service("GiB of one volume.", -1)
    backups = _of_service("Backups of volumes.", 10)
    backup_gigabytes = _of_service("GiB of all backups.", 1000)
    networks = _of_service("Networks.", 100, "network")
    subnets = _of_service("Subnets.", 100, "subnet")
    subnet_pools = _of_service("Subnet pools.", -1, "subnetpool")
    ports = _of_service("Ports.", 500, "port")
    routers = _of_service("Routers.", 10, "router")
    floating_ips = _of_service("Floating IPs.", 50, "floatingip", "compute_floating_ips", "network_floating_ips")
    security_groups = _of_service("Security groups.", 10, "security_group")
    security_group_rules = _of_service("Rules of all security groups.", 100, "security_group_rule")
    rbac_policies = _of_service("Policies that share networks and the like.", 10, "rbac_policy")
    instances_used = Field(Integer(), "Existing servers.", on=READ, sample=3)
    cores_used = Field(Integer(), "CPUs of the existing servers.", on=READ, sample=6)
    ram_used = Field(Integer(), "Memory of the existing servers in MiB.", on=READ, sample=6144)
    server_groups_used = Field(Integer(), "Existing server groups.", on=READ, sample=0)


class Limits(Kind):
    """The limits of the caller's project; -1 means no limit."""

    noun, plural = "limits", "limits"
    selectable = False
    report_doc = "The limits of the project, as the only item."

    name = Field(Text(), "The project.", on=READ, sample="shop")
    instances = Field(Integer(), "Limit of servers.", on=READ, sample=10)
    instances_used = Field(Integer(), "Existing servers.", on=READ, sample=3)
    cores = Field(Integer(), "Limit of the CPUs of all servers.", on=READ, sample=20)
    cores_used = Field(Integer(), "CPUs of the existing servers.", on=READ, sample=6)
    ram = Field(Integer(), "Limit of the memory of all servers in MiB.", on=READ, sample=51200)
    ram_used = Field(Integer(), "Memory of the existing servers in MiB.", on=READ, sample=6144)
    metadata_items = Field(Integer(), "Metadata keys of a server.", on=READ, sample=128)
    key_pairs = Field(Integer(), "Key pairs of a user.", on=READ, sample=100)
    server_groups = Field(Integer(), "Server groups.", on=READ, sample=10)
    server_groups_used = Field(Integer(), "Existing server groups.", on=READ, sample=0)
    server_group_members = Field(Integer(), "Members of a server group.", on=READ, sample=10)


class Usage(Kind):
    """The servers that a project had in a period, including deleted ones, and for how long."""

    noun, plural = "usage", "usages"
    report_doc = "The usage of each project; empty when none had a server."

    name = Field(Text(), "The id of the project.", on=READ, sample="0e5d0f4a2b9d0e0c6c8a1f2b3d4f1c9a")
    begin = Field(Text(), "When the period begins, in UTC.", on=READ, sample="2026-11-01T00:00:00Z")
    end = Field(Text(), "When it ends.", on=READ, sample="2026-12-01T00:00:00Z")
    hours = Field(Value(), "Hours of all servers.", on=READ, sample=72.5)
    vcpu_hours = Field(Value(), "The same, times the CPUs of each.", on=READ, sample=145.0)
    memory_mb_hours = Field(Value(), "The same, times the memory of each in MiB.", on=READ, sample=37120.0)
    disk_gb_hours = Field(Value(), "The same, times the disk of each in GiB.", on=READ, sample=725.0)
    servers = Field(ListOf(Value(), 2**31), "The servers: {id, name, flavor, vcpus, memory_mb, disk_gb, started_at, "
                    "ended_at, state, hours, uptime}, the last in seconds.", on=READ,
                    sample=[{"id": "8c7d3c0e-5d0f-4a2b-9d0e-0c6c8a1f2b3d", "name": "web1", "flavor": "small",
                             "vcpus": 2, "memory_mb": 512, "disk_gb": 10, "started_at": "2026-11-20T20:00:00Z",
                             "ended_at": None, "state": "active", "hours": 72.5, "uptime": 261000}])
