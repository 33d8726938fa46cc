# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading: lists of servers and flavors, one server; alone, and under eight clients."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import orjson
from control_client import request
from control_cloud import Cloud
from figures import Figure, spread, timed
from sqlalchemy import select

from magnetar_control.store.database import Database
from magnetar_control.store.tables import flavors as flavor_table
from magnetar_control.store.tables import servers

FETCHED = "fetched, as JSON"
#: Servers of a list: the target in ms.
LISTS = {10: 3.0, 100: 6.0, 1000: 40.0}


def plain(database: Database, question: Any, rounds: int) -> float:
    """The floor: milliseconds to fetch rows with the driver alone and make JSON of them."""
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
    """What a request takes when it is the only one."""
    cloud.load([text], 1, max(5, count // 10))
    found = cloud.load([text], 1, count)
    return Figure(name, statistics.median(found["taken"]), floor=floor, floor_name=FETCHED, limit=limit,
                  spread=spread(found["taken"]), cpu=found["cpu"])


def together(cloud: Cloud, name: str, path: str, tokens: Sequence[str], count: int, floor: float,
             least: float | None = None) -> Figure:
    """How many are answered in a second when eight clients ask, with these tokens in turn."""
    texts = [request("GET", path, token) for token in tokens]
    cloud.load(texts, 8, max(16, count // 10))
    found = cloud.load(texts, 8, count)
    return Figure(name, count / found["seconds"], "per s", floor=1000 / floor, floor_name=FETCHED, least=least,
                  cpu=found["cpu"], notes=(f"median {statistics.median(found['taken']):.3g} ms",))


def clients(cloud: Cloud, name: str, path: str, token: str, count: int, floor: float, least: float) -> list[Figure]:
    """Eight clients with one token, who are answered together where they wait at the same moment, and with a token
    each, who are not."""
    each = [cloud.login(cloud.named[token]) for _client in range(8)]
    return [together(cloud, f"{name} of 8 clients", path, [token], count, floor, least),
            together(cloud, f"{name} of 8 clients, a token each", path, each, count, floor)]


def lists(cloud: Cloud, rounds: int) -> list[Figure]:
    """GET /servers/detail."""
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
    """GET /servers/{id}."""
    like = cloud.made("first")
    text = request("GET", f"/v2.1/servers/{like}", cloud.token)
    floor = plain(cloud.cell, select(servers).where(servers.c.id == like), rounds * 20)
    return [alone(cloud, "GET /servers/{id}", text, rounds * 20, floor, 1.5),
            *clients(cloud, "GET /servers/{id}", f"/v2.1/servers/{like}", cloud.token, rounds * 80, floor, 1500)]


def flavors(cloud: Cloud, rounds: int) -> list[Figure]:
    """GET /flavors/detail."""
    floor = plain(cloud.api, select(flavor_table).order_by(flavor_table.c.id), rounds * 20)
    return clients(cloud, "GET /flavors/detail", "/v2.1/flavors/detail", cloud.token, rounds * 80, floor, 2500)
