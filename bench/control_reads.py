# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures reads: lists of servers and flavors, and one server, by one client and by eight clients."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import orjson
from control_client import request
from control_cloud import Cloud
from figures import Figure, spread, timed
from sqlalchemy import select

from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.tables import flavors as flavor_table
from magnetar_control.store.engine.tables import servers

FETCHED = "fetched, as JSON"
#: Number of servers in a list to the target in ms.
LISTS = {10: 3.0, 100: 6.0, 1000: 40.0}


def plain(database: Database, question: Any, rounds: int) -> float:
    """Return the floor: the milliseconds to fetch the rows of *question* with the database driver alone, and to make
    JSON of them."""
    compiled = question.compile(database.engine, compile_kwargs={"literal_binds": True})
    raw = database.engine.raw_connection()
    cursor = raw.cursor()

    def once() -> None:
        cursor.execute(str(compiled))
        names = [one[0] for one in cursor.description]
        orjson.dumps([dict(zip(names, row, strict=True)) for row in cursor.fetchall()])

    taken = [timed(once) for _round in range(rounds + 1)][1:]
    raw.close()
    return statistics.median(taken)


def alone(cloud: Cloud, name: str, text: str, count: int, floor: float, limit: float) -> Figure:
    """Measure the time of the request *text* when no other request runs: the median of *count*. *floor*: milliseconds
    without Magnetar; *limit*: the target in milliseconds."""
    cloud.load([text], 1, max(5, count // 10))
    found = cloud.load([text], 1, count)
    return Figure(name, statistics.median(found["taken"]), floor=floor, floor_name=FETCHED, limit=limit,
                  spread=spread(found["taken"]), cpu=found["cpu"])


def together(cloud: Cloud, name: str, path: str, tokens: Sequence[str], count: int, floor: float,
             least: float | None = None) -> Figure:
    """Measure the answers per second when eight clients send GET *path* at once, with these *tokens* in turn. *floor*:
    the milliseconds of one answer without Magnetar; *least*: the target in answers per second."""
    texts = [request("GET", path, token) for token in tokens]
    cloud.load(texts, 8, max(16, count // 10))
    found = cloud.load(texts, 8, count)
    return Figure(name, count / found["seconds"], "per s", floor=1000 / floor, floor_name=FETCHED, least=least,
                  cpu=found["cpu"], notes=(f"median {statistics.median(found['taken']):.3g} ms",))


def clients(cloud: Cloud, name: str, path: str, token: str, count: int, floor: float, least: float) -> list[Figure]:
    """Measure eight clients that share the *token*, so that one answer may serve several waiting requests, and eight
    clients with a token each. The other parameters are those of ``together``."""
    each = [cloud.login(cloud.named[token]) for _client in range(8)]
    return [together(cloud, f"{name} of 8 clients", path, [token], count, floor, least),
            together(cloud, f"{name} of 8 clients, a token each", path, each, count, floor)]


def lists(cloud: Cloud, rounds: int) -> list[Figure]:
    """Measure GET /servers/detail."""
    like, found = cloud.made("first"), []
    for count, limit in LISTS.items():
        token = cloud.project(count, like)
        project = cloud.projects[token]
        text = request("GET", "/v2.1/servers/detail", token)
        question = select(servers).where(servers.c.project_id == project, servers.c.deleted_at.is_(None)).order_by(
            servers.c.created_at.desc(), servers.c.id.desc()).limit(1000)
        floor = plain(cloud.cell, question, rounds)
        times = rounds * 10 if count < 1000 else rounds
        found.append(alone(cloud, f"GET /servers/detail, {count} servers", text, times, floor, limit))
        if count == 100:
            found += clients(cloud, f"GET /servers/detail, {count} servers,", "/v2.1/servers/detail", token,
                             rounds * 10, floor, 250)
    return found


def show(cloud: Cloud, rounds: int) -> list[Figure]:
    """Measure GET /servers/{id}."""
    like = cloud.made("first")
    text = request("GET", f"/v2.1/servers/{like}", cloud.token)
    floor = plain(cloud.cell, select(servers).where(servers.c.id == like), rounds * 20)
    return [alone(cloud, "GET /servers/{id}", text, rounds * 20, floor, 1.5),
            *clients(cloud, "GET /servers/{id}", f"/v2.1/servers/{like}", cloud.token, rounds * 80, floor, 1500)]


def flavors(cloud: Cloud, rounds: int) -> list[Figure]:
    """Measure GET /flavors/detail."""
    floor = plain(cloud.api, select(flavor_table).order_by(flavor_table.c.id), rounds * 20)
    return clients(cloud, "GET /flavors/detail", "/v2.1/flavors/detail", cloud.token, rounds * 80, floor, 2500)


#: Requests with a query, and others that are no hot path: a name, the path, how many servers the project has, and how
#: many requests a round asks. Under 8 clients none may be answered more slowly than alone.
CLASSES = (
    ("GET /servers/detail?limit=20", "/v2.1/servers/detail?limit=20", 100, 10),
    ("GET /servers?limit=1000", "/v2.1/servers?limit=1000", 1000, 5),
    ("GET /servers/detail?status=ACTIVE&limit=20", "/v2.1/servers/detail?status=ACTIVE&limit=20", 100, 10),
    ("GET /servers?name=server7", "/v2.1/servers?name=server7", 100, 10),
    ("GET /flavors/detail?minRam=1", "/v2.1/flavors/detail?minRam=1", 100, 20),
    ("GET /os-hypervisors/detail", "/v2.1/os-hypervisors/detail", 100, 10),
    ("GET /limits", "/v2.1/limits", 100, 10),
    ("GET /v1/server", "/v1/server", 100, 3),
)


def queries(cloud: Cloud, rounds: int) -> list[Figure]:
    """Measure the answers per second to each class of requests, for eight clients with a token each, next to one
    client."""
    like, found = cloud.made("first"), []
    tokens = {count: cloud.project(count, like) for count in sorted({one[2] for one in CLASSES})}
    for name, path, count, times in CLASSES:
        token = tokens[count]
        texts = [request("GET", path, one) for one in (token, *(cloud.login(cloud.named[token]) for _at in range(7)))]
        rates: dict[int, list[float]] = {1: [], 8: []}
        for at in range(6):  # in turns, so that a drift of the machine meets both; the first turn warms up
            for clients_ in (1, 8) if at % 2 else (8, 1):
                done = cloud.load(texts, clients_, rounds * times // 2)
                if at:
                    rates[clients_].append(rounds * times // 2 / done["seconds"])
        one, eight = (statistics.median(rates[clients_]) for clients_ in (1, 8))
        found.append(Figure(f"{name}, {count} servers, 8 clients", eight, "per s", floor=one, floor_name="one client",
                            least=round(0.95 * one, 1)))  # runs differ by that much
    return found
