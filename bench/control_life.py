# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures memory, and the creation and deletion of servers: one by one, many at once, and on a full host."""

from __future__ import annotations

import contextlib
import statistics
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import orjson
from control_client import Wire, request
from control_cloud import Cloud
from figures import Figure, spread, timed
from sqlalchemy import insert, select

from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.schema import create_tables
from magnetar_control.store.engine.tables import CELL, actions, servers
from magnetar_core.http.client import Client

#: Seconds between two requests for a server's status.
LOOK = 0.004
#: Servers that are created at once, to the target in seconds until all are active.
MANY = {50: 1.0, 200: 4.0}
#: Number of servers on the full host.
FULL = 300
BY_AGENT = "by the agents alone"


def memory(cloud: Cloud, _rounds: int) -> list[Figure]:
    """Measure the resident memory before any work, and after many requests."""
    rest = cloud.rss()
    cloud.load([request("GET", "/v2.1/flavors/detail", cloud.token)], 8, 2000)
    return [Figure("API, conductor and services at rest, resident memory", rest, "MiB", limit=160,
                   notes=(f"{cloud.rss():.0f} MiB after 2,000 requests",))]


def one(cloud: Cloud, rounds: int) -> list[Figure]:
    """Measure servers one after the other: creation until the server is active, and deletion until it is gone."""
    cloud.made("first")
    answers, lives, ends, busy = [], [], [], []
    for _round in range(rounds):
        cpu, began = cloud.cpu(), time.perf_counter()
        id = cloud.ask("POST", "/v2.1/servers", cloud.want("bench"))["server"]["id"]
        answers.append((time.perf_counter() - began) * 1000)
        while cloud.state(id) != "ACTIVE":
            time.sleep(LOOK)
        lives.append((time.perf_counter() - began) * 1000)
        busy.append((cloud.cpu() - cpu) * 1000)
        ends.append(timed(partial(end, cloud, id)))
    written = floor_of_writing(cloud, rounds * 5)
    made, removed = floor_of_agent(cloud, rounds)
    return [Figure("POST /servers, until the answer", statistics.median(answers), floor=written, limit=8,
                   floor_name="two rows committed", spread=spread(answers)),
            Figure("the same, until ACTIVE", statistics.median(lives), floor=made, floor_name=BY_AGENT, limit=60,
                   spread=spread(lives), cpu=statistics.median(busy), notes=("CPU with looking at the server",)),
            Figure("DELETE /servers/{id}, until 404", statistics.median(ends), floor=removed, floor_name=BY_AGENT,
                   limit=50, spread=spread(ends))]


def end(cloud: Cloud, id: str) -> None:
    """Delete a server, and wait until it is gone."""
    cloud.ask("DELETE", f"/v2.1/servers/{id}")
    text = request("GET", f"/v2.1/servers/{id}", cloud.token).encode()
    wire = Wire(cloud.port)
    while True:
        wire.send(text)
        while not wire.read():
            pass
        if wire.status == 404:
            return
        time.sleep(LOOK)


def many(cloud: Cloud, _rounds: int) -> list[Figure]:
    """Measure the creation of many servers at the same time by eight clients, until all are active."""
    cloud.made("first")
    found = []
    for count, limit in MANY.items():
        cpu = cloud.cpu()
        asked = cloud.load([request("POST", "/v2.1/servers", cloud.token, cloud.want("bench"))], 8, count)
        while cloud.busy():
            time.sleep(0.02)
        taken, cpu = time.perf_counter() - asked["began"], (cloud.cpu() - cpu) * 1000 / count
        states = {one["status"] for one in cloud.ask("GET", "/v2.1/servers/detail")["servers"]}
        if states != {"ACTIVE"}:
            raise SystemExit(f"not all servers are active: {states}")
        floor = floor_of_agents(cloud, count)
        found.append(Figure(
            f"{count} servers at once, until all are ACTIVE", taken, "s", floor=floor, floor_name=BY_AGENT, limit=limit,
            cpu=cpu, notes=(f"all were answered after {asked['seconds']:.2f} s",)))
    return found


def full(cloud: Cloud, rounds: int) -> list[Figure]:
    """Measure the creation of a server on a host with many servers, next to the time on an empty host."""
    cloud.made("first")
    empty, empty_cpu = lives(cloud, rounds)
    cloud.load([request("POST", "/v2.1/servers", cloud.token, cloud.want("bench"))], 8, FULL)
    while cloud.busy():
        time.sleep(0.05)
    filled, filled_cpu = lives(cloud, rounds)
    return [Figure(f"a server made on a host that has {FULL}", filled, floor=empty, floor_name="on a host that has few",
                   ratio=1.1, cpu=filled_cpu, notes=(f"CPU on a host that has few: {empty_cpu:.3g} ms",))]


def lives(cloud: Cloud, rounds: int) -> tuple[float, float]:
    """Return the median milliseconds until a new server is active, and the median CPU milliseconds of the server's
    processes for it. No client requests the server meanwhile."""
    times, busy = [], []
    for _round in range(rounds):
        cpu, began = cloud.cpu(), time.perf_counter()
        cloud.ask("POST", "/v2.1/servers", cloud.want("bench"))
        while cloud.busy():
            time.sleep(LOOK)
        times.append((time.perf_counter() - began) * 1000)
        busy.append((cloud.cpu() - cpu) * 1000)
    return statistics.median(times), statistics.median(busy)


# Floors ---------------------------------------------------------------------------------------------------------
def floor_of_writing(cloud: Cloud, rounds: int) -> float:
    """Return the milliseconds to write a server and its action to unused tables of the same database engine."""
    with cloud.cell.read() as connection:
        row = dict(connection.execute(select(servers).limit(1)).mappings().one())
        action = dict(connection.execute(select(actions).limit(1)).mappings().one())
    action.pop("id")
    with contextlib.closing(Database(cloud.spare_url(), "spare")) as database:
        with database.write() as connection:
            create_tables(connection, CELL)

        def once() -> None:
            id = str(uuid.uuid4())
            with database.write() as connection:
                connection.execute(insert(servers), row | {"id": id})
                connection.execute(insert(actions), action | {"server_id": id})

        return statistics.median([timed(once) for _round in range(rounds)])


def wishes(cloud: Cloud) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield pairs of key and document, such as the conductor sends to agents for new servers."""
    with cloud.cell.read() as connection:
        row = connection.execute(select(servers).where(servers.c.deleted_at.is_(None)).limit(1)).one()
    flavor, nic = orjson.loads(row.flavor), orjson.loads(row.interfaces)[0]["on_host"]
    nic.pop("address", None)
    while True:
        cloud.drawn += 1
        at = cloud.drawn
        yield str(uuid.uuid4()), {
            "name": "floor", "flavor": {name: flavor[name] for name in ("vcpus", "ram", "disk", "ephemeral", "swap")},
            "image": row.image_id, "power": "running", "metadata": {}, "availability_zone": "nova",
            "networks": [nic | {"mac": f"52:54:00:fe:{at // 256:02x}:{at % 256:02x}"}]}


def floor_of_agent(cloud: Cloud, rounds: int) -> tuple[float, float]:
    """Return the milliseconds in which an agent creates a server, and in which it removes one."""
    made, removed, wanted = [], [], wishes(cloud)
    with Client(f"unix:{cloud.host_with_image()}") as client:
        for _round in range(rounds):
            key, want = next(wanted)
            made.append(timed(partial(client.ensure, "server", key, want)))
            removed.append(timed(partial(client.delete, "server", key)))
    return statistics.median(made), statistics.median(removed)


def floor_of_agents(cloud: Cloud, count: int) -> float:
    """Return the seconds in which the agents create *count* servers, requested by eight threads."""
    items = [item for item, _at in zip(wishes(cloud), range(count), strict=False)]
    paths = [path for path in cloud.agents.values() if cloud.has_image(path)]

    def part(at: int) -> None:
        with Client(f"unix:{paths[at % len(paths)]}") as client:
            for key, want in items[at::8]:
                client.ensure("server", key, want)

    began = time.perf_counter()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(part, range(8)))
    return time.perf_counter() - began
