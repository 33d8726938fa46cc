# SPDX-License-Identifier: GPL-3.0-or-later
"""What tests of moves look at: flavors, and whether claims, hosts and rows say the same."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

import orjson
from sqlalchemy import insert, select

from magnetar_control.scheduler.request_spec import claimed_amounts
from magnetar_control.store.claims import allocations, host_counters
from magnetar_control.store.engine import tables
from magnetar_control.store.hosts import hosts
from magnetar_core.errors import NotFound
from tests.support.control.cloud import Cloud

#: id: vcpus, ram, disk, ephemeral, swap.
FLAVORS = {"small": (1, 128, 1, 0, 0), "large": (2, 512, 2, 0, 0), "thin": (1, 64, 1, 0, 0),
           "scratch": (1, 128, 1, 1, 0)}


def flavors(cloud: Cloud) -> None:
    """Flavors of several sizes."""
    with cloud.parts.api_database.write() as connection:
        for name, (vcpus, ram, disk, ephemeral, swap) in FLAVORS.items():
            connection.execute(insert(tables.flavors).values(
                id=name, name=name, vcpus=vcpus, ram=ram, disk=disk, ephemeral=ephemeral, swap=swap,
                created_at="2026-11-21T00:00:00.000000"))


def row(cloud: Cloud, id: str) -> Any:
    """The server's row."""
    with cloud.parts.working.database.read() as connection:
        return connection.execute(select(tables.servers).where(tables.servers.c.id == id)).one()


def moves(cloud: Cloud, id: str) -> list[Any]:
    """Its migrations."""
    with cloud.parts.working.database.read() as connection:
        return list(connection.execute(select(tables.migrations).where(
            tables.migrations.c.server_id == id).order_by(tables.migrations.c.id)))


def claims(cloud: Cloud, id: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """By consumer (``server`` or ``migration``): the host, and what is held of it."""
    with cloud.parts.api_database.read() as connection:
        held = allocations.fetch_server_claims(connection, id)
    return {"server" if one.consumer_id == id else "migration": (
        one.host, tuple(getattr(one, name) for name in allocations.RESOURCES)) for one in held}


def at(cloud: Cloud, id: str) -> dict[str, dict[str, Any]]:
    """The server as each host that has it shows it."""
    found = {}
    for name, endpoint in cloud.hosts.items():
        with cloud.parts.agents.client(endpoint) as client, contextlib.suppress(NotFound):
            found[name] = client.get("server", id)
    return found


def check(cloud: Cloud, id: str, waits: bool = False) -> dict[str, Any]:
    """The server is on one host, its own; no task is left; claims are what hosts have, and the counters their sum.
    *waits*: a move waits for a word. Returns the agent's server."""
    server, found = row(cloud, id), at(cloud, id)
    assert server.task_state is None
    assert list(found) == [server.host]
    have, held, flavor = found[server.host], claims(cloud, id), orjson.loads(server.flavor)
    amounts, rescue = claimed_amounts(flavor), int(have["rescue"] is not None)  # whose image has less than a GiB
    assert held["server"] == (server.host, tuple(amounts._replace(disk_gb=amounts.disk_gb + rescue)))
    assert ("migration" in held) is waits
    assert (have["flavor"]["vcpus"], have["flavor"]["ram"]) == (flavor["vcpus"], flavor["ram"])
    with cloud.parts.api_database.write() as connection:
        assert host_counters.audit_host_counters(connection) == []
    for name in cloud.hosts:
        with cloud.parts.agents.client(cloud.hosts[name]) as client:
            assert [one for one in client.list("migration") if one["status"] != "completed"] == []
            assert client.get("host")["orphans"] == {"domains": [], "files": []}
    with cloud.parts.working.database.read() as connection:
        assert connection.execute(select(tables.actions.c.action).where(
            tables.actions.c.server_id == id, tables.actions.c.state.in_(("queued", "running")))).all() == []
    return have


def remove(cloud: Cloud, ids: Collection[str]) -> None:
    """Delete servers, all of them before any is waited for."""
    for id in ids:
        cloud.admin.delete(f"/v2.1/servers/{id}")
    for id in ids:
        assert cloud.admin.settled(id) is None


@contextlib.contextmanager
def disabled(cloud: Cloud, name: str) -> Iterator[None]:
    """A host takes no new servers meanwhile."""
    def set_to(value: bool) -> None:
        with cloud.parts.api_database.write() as connection:
            hosts.update_host_row(connection, name, cloud.parts.working.ratios, disabled=value)
        cloud.parts.working.read_hosts()

    set_to(True)
    try:
        yield
    finally:
        set_to(False)
