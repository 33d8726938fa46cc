# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans of lists other than servers, of sums over hosts and of the queue, on both engines. Nothing is timed."""

from pathlib import Path

import pytest
import yaml
from sqlalchemy import insert

from magnetar_control.services import Context, Page
from magnetar_control.services.network import EmbeddedNetworks
from magnetar_control.services.network import tables as network
from magnetar_control.services.volume import rows as volume_rows
from magnetar_control.services.volume import tables as volume
from magnetar_control.services.volume.backups import backup_documents
from magnetar_control.services.volume.rows import VolumeListing
from magnetar_control.store.actions.actions import lease_next_actions, renew_action_leases
from magnetar_control.store.claims.allocations import fetch_device_claims
from magnetar_control.store.engine import tables as table
from magnetar_control.store.engine.database import Database
from magnetar_control.store.hosts import hosts, services
from magnetar_control.store.servers import migrations, server_groups, usage
from magnetar_control.store.store import Store
from tests.support.control.plans import many_rows_tables, new_database_url, plan_faults, recorded_plans
from tests.unit.control.conftest import tables

CASES = yaml.safe_load((Path(__file__).parents[3] / "cases" / "statements" / "lists.yml").read_text())
pytestmark = pytest.mark.slow
#: Rows of each table, and of the tables that a list of a project reads for a few of them only.
MANY, CELL = 4000, "11111111-1111-1111-1111-111111111111"
ADMIN = Context("root", "operators", frozenset({"admin", "member", "reader"}))
OWNER = Context("alice", "project3", frozenset({"member", "reader"}))


def _id(kind, number):
    return f"{kind:08x}-0000-4000-8000-{number:012x}"


def _moment(number):
    return f"2026-{1 + number * 10 // MANY:02d}-{1 + number % 28:02d}T00:00:00.{number:06d}"


def _common(kind, number):
    return {"id": _id(kind, number), "project_id": f"project{number % 20}", "name": f"n{number}",
            "created_at": _moment(number)}


def _network_rows(number):
    """Yield (table, row) of the network service."""
    common, net = _common(1, number), _id(1, number)
    mac = "02:00:" + ":".join(f"{number >> shift & 255:02x}" for shift in (24, 16, 8, 0))
    yield network.networks, {**common, "type": "nat"}
    yield network.subnets, {**common, "id": _id(2, number), "network_id": net, "cidr": "10.0.0.0/24",
                            "allocation_pools": [], "dns_nameservers": [], "host_routes": []}
    yield network.ports, {**common, "id": _id(3, number), "network_id": _id(1, 7 if number % 3 else number),
                          "mac_address": mac, "status": "ACTIVE", "device_id": f"server{number}"}
    yield network.addresses, {"subnet_id": _id(2, number), "number": number, "port_id": _id(3, number),
                              "ip_address": f"10.0.{number >> 8}.{number & 255}"}
    yield network.security_groups, {**common, "id": _id(4, number)}
    yield network.security_group_rules, {
        **{key: value for key, value in common.items() if key != "name"}, "id": _id(5, number),
        "security_group_id": _id(4, number), "direction": "ingress", "ethertype": "IPv4"}
    yield network.floating_ips, {**common, "id": _id(6, number), "network_id": net, "own_port_id": _id(3, number),
                                 "floating_ip_address": "192.0.2.1"}
    yield network.rbac_policies, {
        "id": _id(7, number), "project_id": common["project_id"], "object_type": "network", "object_id": net,
        "action": "access_as_shared", "target_project": "project3" if number < 30 else f"other{number}",
        "created_at": common["created_at"]}


def _other_rows(number):
    """Yield (table, row) of volumes, hosts, claims and the cell."""
    common, server, host = _common(8, number), _id(9, number), f"kvm{number % 50}"
    thing = {**common, "user_id": "alice", "size": 1, "status": "available", "volume_type": "default"}
    yield volume.volumes, {**thing, "availability_zone": "nova"}
    yield volume.snapshots, {**thing, "volume_id": _id(8, number)}
    yield volume.backups, {**thing, "volume_id": _id(8, number), "parent_id": _id(12, number),
                           "data_timestamp": common["created_at"]}
    yield volume.transfers, {**common, "volume_id": _id(8, number), "salt": "00", "key_hash": "00"}
    yield table.server_groups, {**common, "user_id": "alice", "policy": "affinity"}
    yield table.allocations, {"consumer_id": server, "host_id": _id(10, number % 50), "server_id": server, "vcpus": 1,
                              "memory_mb": 1, "disk_gb": 1, "created_at": common["created_at"]}
    yield table.migrations, {
        "uuid": _id(11, number), "server_id": server, "project_id": common["project_id"], "user_id": "alice",
        "type": "migration", "status": "running" if number % 200 == 0 else "completed", "source": host,
        "target": f"kvm{(number + 1) % 50}", "created_at": common["created_at"]}
    for state in ("done", "failed", "queued")[:3 if number % 200 == 0 else 2]:
        yield table.actions, {
            "request_id": f"req-{number}-{state}", "server_id": server, "action": "stop", "project_id": "project3",
            "user_id": "alice", "start_time": common["created_at"], "state": state, "host": host}
    for kind, ended in ((9, None), (12, _moment(min(MANY - 1, number + 100)))):
        yield table.servers, {
            **common, "id": _id(kind, number), "user_id": "alice", "vm_state": "deleted" if ended else "active",
            "task_state": "rebooting" if number % 500 == 0 and not ended else None, "host": host, "flavor_id": "1",
            "flavor": "{}", "launched_at": common["created_at"], "terminated_at": ended, "deleted_at": ended}


def _fill(database):
    rows = {table.hosts: [{"id": _id(10, at), "name": f"kvm{at}", "number": at + 1, "cell_id": CELL, "endpoint": "x",
                           "created_at": _moment(0)} for at in range(50)]}
    for number in range(MANY):
        for rows_of in (_network_rows, _other_rows):
            for each, row in rows_of(number):
                rows.setdefault(each, []).append(row)
    with database.write() as connection:
        for each, many in rows.items():
            connection.execute(insert(each), many)
    if database.kind == "postgresql":  # SQLite has no statistics unless somebody runs ANALYZE
        with database.reading.connect() as connection:
            connection.exec_driver_sql("VACUUM ANALYZE")


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def store(request):
    """A store whose only database is that of the API and of a cell, and full."""
    database = Database(new_database_url(request, request.param, "list_plans"))
    tables(database)
    store = Store(database)
    store.add_cell("cell1", database.url.render_as_string(hide_password=False), CELL)
    store._open[CELL] = database
    _fill(database)
    yield store
    store.close()


@pytest.fixture(scope="module")
def big_tables(store):
    return many_rows_tables(store.api)


def _of_network(store, name, context=OWNER, **page):
    return EmbeddedNetworks(store.api, None).resources[name].list(context, Page(limit=50, **page))


def _of_volumes(store, of, context, **listing):
    with store.api.read() as connection:
        return volume_rows.select_listing_page(connection, context, of, VolumeListing(limit=50, **listing))[0]


def _of_backups(store, context, **listing):
    with store.api.read() as connection:
        rows = volume_rows.select_listing_page(connection, context, volume.backups, VolumeListing(limit=50, **listing))[
            0]
        return backup_documents(connection, rows)


def _migrations(store, host=None, marker=None, **equal):
    return migrations.fetch_migration_rows(store, equal, host, None, None, newest=True, limit=50, marker=marker)[0]


def _usage(store, project=None, marker=None, begin=2000, end=3000):
    return usage.fetch_servers_of_period(store, _moment(begin), _moment(end), project=project, limit=50, marker=marker,
                                         timeout=60.0)


def _groups(store, project):
    with store.api.read() as connection:
        return server_groups.fetch_server_group_rows(connection, project, 50)


def _statistics(store):
    with store.api.read() as connection:
        return [hosts.sum_host_resources(connection), hosts.count_move_claims(connection),
                services.count_busy_servers(store)]


def _devices(store):
    with store.api.read() as connection:
        return [fetch_device_claims(connection)]


CALLS = {
    "network": _of_network,
    "all of network": lambda store, name, **page: _of_network(store, name, ADMIN, **page),
    "volumes": lambda store: _of_volumes(store, volume.volumes, OWNER),
    "all volumes": lambda store: _of_volumes(store, volume.volumes, ADMIN, everywhere=True),
    "snapshots": lambda store: _of_volumes(store, volume.snapshots, OWNER),
    "backups": lambda store: _of_backups(store, OWNER),
    "all backups": lambda store: _of_backups(store, ADMIN, everywhere=True),
    "transfers": lambda store: _of_volumes(store, volume.transfers, OWNER),
    "all transfers": lambda store: _of_volumes(store, volume.transfers, ADMIN, everywhere=True),
    "all snapshots": lambda store, **listing: _of_volumes(store, volume.snapshots, ADMIN, everywhere=True, **listing),
    "migrations": _migrations, "usage": _usage, "server groups": _groups, "statistics": _statistics,
    "servers of hosts in a period": lambda store: [usage.count_servers_by_host(store, _moment(2000), _moment(3000))],
    "devices": _devices,
    "lease": lambda store: lease_next_actions(store.api, "nobody", 2, {"act": 1}).rows,
    "renew": lambda store: [renew_action_leases(store.api, "nobody")],
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_lists_have_plans_of_a_page(store, big_tables, case):
    with recorded_plans(store.api) as plans:
        shown = CALLS[case["call"]](store, **case.get("with", {}))
    assert len(shown) >= case.get("rows", 1) and plans
    # SQLite does not tell how many rows it sorts, and it sorts those of a page: there the steps are the limit. For many
    # keys PostgreSQL reads a table of this size faster than by an index.
    tables_by_index = big_tables.difference(case.get("scans", ()) if store.api.kind == "postgresql" else ())
    faults = [fault for plan in plans for fault in plan_faults(
        plan, tables_by_index, case["indexes"], sorts=plan.kind == "sqlite", work=case.get("work", {}).get(plan.kind))]
    assert not faults, "\n\n".join(faults)
