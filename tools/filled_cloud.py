# SPDX-License-Identifier: GPL-3.0-or-later
"""Filling of a database with hosts, claims and ports for the servers of ``filled``, for tests of query plans and for
measurements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import orjson
from sqlalchemy import select, update

from magnetar_control.services.network import tables as network
from magnetar_control.store.claims.allocations import claimable_amounts
from magnetar_control.store.engine.database import Database, format_moment, utc_now
from magnetar_control.store.engine.tables import allocations, column_defaults, host_states, hosts, servers
from tools.filled import FIRST_CREATED, analyze_database, fill_mappings, insert_rows

#: The amounts of a host, and of a server's claim.
HOST_AMOUNTS = {"vcpus": 64, "memory_mb": 524288, "disk_gb": 8000}
CLAIM = {"vcpus": 1, "memory_mb": 2048, "disk_gb": 20}
#: The longest parts of an agent's report.
REPORT = {
    "hypervisor_type": "QEMU", "hypervisor_version": "7.2.22", "architecture": "x86_64", "connected": True,
    "cpu_info": {"arch": "x86_64", "model": "EPYC-Rome", "vendor": "AMD",
                 "features": [f"feature-{at}" for at in range(100)],
                 "topology": {"cells": 1, "sockets": 1, "cores": 32, "threads": 2}},
    "traits": ["COMPUTE_NODE", "HW_CPU_X86_AVX2", *(f"CUSTOM_ABILITY_{at}" for at in range(50))],
    "providers": [{"name": "NUMA0", "parent": "", "traits": ["HW_NUMA_ROOT"], "held": {}, "inventories": {
        "NUMA_MEMORY_MB": {"total": HOST_AMOUNTS["memory_mb"], "reserved": 0,
                           "max_unit": HOST_AMOUNTS["memory_mb"]}}}]}


def fill_cloud(database: Database, cell_id: str, host_count: int) -> None:
    """Add cell mappings and ports for the servers in *database*, and *host_count* hosts with claims for these servers.
    *database* has the tables of the API and of the cell *cell_id*."""
    with database.read() as connection:
        rows = connection.execute(select(*servers.c["id", "project_id", "host", "created_at"]).where(
            servers.c.deleted_at.is_(None)).order_by(servers.c.created_at)).mappings().all()
    fill_mappings(database, cell_id, rows)
    _fill_hosts(database, cell_id, host_count)
    _fill_claims(database, rows)
    _fill_ports(database, rows)
    if database.kind == "postgresql":  # SQLite has no statistics unless somebody runs ANALYZE
        analyze_database(database)


def _host_id(name: str) -> str:
    return str(uuid5(NAMESPACE_OID, name))


def _fill_hosts(database: Database, cell_id: str, count: int) -> None:
    names = [f"kvm{at:04}" for at in range(count)]
    limits = claimable_amounts({**column_defaults(hosts), **HOST_AMOUNTS})._asdict()
    columns = {**HOST_AMOUNTS, **{f"{name}_limit": amount for name, amount in limits.items()}, "cell_id": cell_id,
               "disk_gb_free": 4000, "created_at": format_moment(FIRST_CREATED)}
    insert_rows(database, hosts, (
        {**columns, "id": _host_id(name), "name": name, "number": at, "endpoint": f"https://{name}.example:6553",
         "info": orjson.dumps({**REPORT, **HOST_AMOUNTS, "name": name}).decode()} for at, name in enumerate(names, 1)))
    insert_rows(database, host_states, ({"host": name, "seen_at": utc_now()} for name in names))


def _fill_claims(database: Database, rows: Sequence[Mapping[Any, Any]]) -> None:
    insert_rows(database, allocations, (
        {**CLAIM, "consumer_id": row["id"], "server_id": row["id"], "host_id": _host_id(row["host"]),
         "created_at": row["created_at"]} for row in rows))
    with database.write() as connection:
        connection.exec_driver_sql(
            "UPDATE hosts SET servers = (SELECT count(*) FROM allocations WHERE host_id = hosts.id)")
        connection.execute(update(hosts).values(
            {f"{name}_used": hosts.c.servers * amount for name, amount in CLAIM.items()}))


def _fill_ports(database: Database, rows: Sequence[Mapping[Any, Any]]) -> None:
    """Insert a port with an address for each server in *rows*, in the network and the security group of its project."""
    objects: dict[tuple[str, str], str] = {
        (kind, project): str(uuid5(NAMESPACE_OID, f"{kind} of {project}"))
        for project in sorted({row["project_id"] for row in rows}) for kind in ("network", "subnet", "group")}
    for table, kind, columns in (
            (network.networks, "network", {"type": "nat"}),
            (network.subnets, "subnet", {"cidr": "10.0.0.0/8", "allocation_pools": "[]", "dns_nameservers": "[]",
                                         "host_routes": "[]"}),
            (network.security_groups, "group", {"revision": 1})):
        more = "network_id" in table.c
        insert_rows(database, table, (
            {**columns, **({"network_id": objects["network", project]} if more else {}), "id": id, "tags": "[]",
             "project_id": project, "name": "default", "created_at": format_moment(FIRST_CREATED)}
            for (of, project), id in objects.items() if of == kind))
    first = int(ip_address("10.0.0.2"))
    insert_rows(database, network.ports, (
        {"id": _port_id(row), "project_id": row["project_id"], "name": "", "created_at": row["created_at"],
         "network_id": objects["network", row["project_id"]], "status": "ACTIVE", "device_id": row["id"],
         "mac_address": f"fa:16:{at >> 24:02x}:{at >> 16 & 255:02x}:{at >> 8 & 255:02x}:{at & 255:02x}",
         "device_owner": "compute:nova", "host": row["host"], "made_for_server": True, "place": 0, "tags": "[]",
         "security_groups": f'["{objects["group", row["project_id"]]}"]'} for at, row in enumerate(rows)))
    insert_rows(database, network.addresses, (
        {"subnet_id": objects["subnet", row["project_id"]], "number": first + at, "port_id": _port_id(row),
         "ip_address": str(ip_address(first + at))} for at, row in enumerate(rows)))


def _port_id(row: Mapping[Any, Any]) -> str:
    return str(uuid5(NAMESPACE_OID, f"port of {row['id']}"))
