# SPDX-License-Identifier: GPL-3.0-or-later
"""Filling of simulated hosts with many servers: guests through the agents, and database rows in bulk, as if the API had
created them."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, NamedTuple

import orjson
from sqlalchemy import bindparam, select, update

from magnetar_control.store.claims.allocations import RESOURCES
from magnetar_control.store.engine.database import format_moment
from magnetar_control.store.engine.tables import allocations, hosts, server_mappings, servers
from magnetar_core.http.client import Client
from tools.filled import FIRST_CREATED, analyze_database, insert_rows

from .cloud import DayCloud

#: Guests in one request to an agent, and agents that work at the same time.
BATCH, PARALLEL = 50, 4


class FilledServer(NamedTuple):
    """A server that is added without the API."""

    id: str
    name: str
    host: str
    project: str


def fill_hosts(cloud: DayCloud, count: int, projects: Sequence[str]) -> list[str]:
    """Add *count* servers without NICs, spread over the hosts and *projects*; return their uuids. The control plane is
    stopped meanwhile."""
    template = cloud.ask("POST", "/v2.1/servers", {"server": {
        **cloud.want("template")["server"], "networks": "none"}})["server"]["id"]
    cloud._await(lambda: cloud.state(template) == "ACTIVE", "the first server")  # noqa: SLF001 - of our class
    cloud.stop_serve()
    names = sorted(cloud.agents)
    filled = [FilledServer(str(uuid.uuid4()), f"filled-{at:06}", names[at % len(names)], projects[at % len(projects)])
              for at in range(count)]
    _create_guests(cloud, filled, template)
    _insert_filled(cloud, filled, template)
    cloud.start_serve()
    return [server.id for server in filled]


def _create_guests(cloud: DayCloud, filled: Sequence[FilledServer], template: str) -> None:
    with cloud.cell.read() as connection:
        flavor = orjson.loads(connection.execute(select(servers.c.flavor).where(
            servers.c.id == template)).scalar_one())
    fields = {"flavor": {name: flavor[name] for name in ("vcpus", "ram", "disk", "ephemeral", "swap")}, "image": None,
              "networks": [], "power": "running", "metadata": {}}
    by_host: dict[str, list[FilledServer]] = {}
    for server in filled:
        by_host.setdefault(server.host, []).append(server)

    def fill_host(name: str) -> None:
        with Client(f"unix:{cloud.agents[name]}", timeout=600) as client:
            mine = by_host[name]
            for at in range(0, len(mine), BATCH):
                outcomes = client.ensure_many("server", [
                    {"key": server.id, "want": {"name": server.name, **fields}} for server in mine[at:at + BATCH]])
                for outcome in outcomes["results"]:
                    if outcome.get("error"):
                        raise SystemExit(f"{name} cannot be filled: {outcome['error']}")

    with ThreadPoolExecutor(PARALLEL) as pool:
        list(pool.map(fill_host, by_host))


def _insert_filled(cloud: DayCloud, filled: Sequence[FilledServer], template: str) -> None:
    """Insert rows like those of the server *template*, with their claims, for the servers *filled*."""
    with cloud.cell.read() as connection:
        row = dict(connection.execute(select(servers).where(servers.c.id == template)).mappings().one())
    with cloud.api.read() as connection:
        claim = dict(connection.execute(select(allocations).where(
            allocations.c.server_id == template)).mappings().one())
        mapping = dict(connection.execute(select(server_mappings).where(
            server_mappings.c.server_id == template)).mappings().one())
        host_ids: dict[str, str] = dict(connection.execute(select(hosts.c.name, hosts.c.id)).all())  # type: ignore[arg-type]

    def server_rows() -> Iterator[dict[str, Any]]:
        for at, server in enumerate(filled):
            created = format_moment(FIRST_CREATED + timedelta(seconds=3 * at))
            yield {**row, "id": server.id, "name": server.name, "hostname": server.name, "host": server.host,
                   "project_id": server.project, "image_id": None, "image": "{}", "created_at": created,
                   "launched_at": created, "updated_at": created}

    insert_rows(cloud.cell, servers, server_rows())
    insert_rows(cloud.api, server_mappings, (
        {**mapping, "server_id": server.id, "project_id": server.project} for server in filled))
    insert_rows(cloud.api, allocations, (
        {**claim, "consumer_id": server.id, "server_id": server.id, "host_id": host_ids[server.host]}
        for server in filled))
    counts = Counter(server.host for server in filled)
    with cloud.api.write() as connection:
        connection.execute(update(hosts).where(hosts.c.name == bindparam("host_name")).values(
            {name: hosts.c[name] + bindparam("more") * factor for name, factor in (
                ("servers", 1), *((f"{resource}_used", claim[resource]) for resource in RESOURCES))}),
            [{"host_name": name, "more": count} for name, count in counts.items()])
    for database in (cloud.api, cloud.cell):
        analyze_database(database)
