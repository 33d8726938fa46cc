# SPDX-License-Identifier: GPL-3.0-or-later
"""On PostgreSQL, where writers are not one after the other by themselves: no second server of a name."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from tests.support.control.cloud import Cloud
from tests.support.control.servers import WEB, ensure
from tools import postgres as server


@pytest.fixture
def cloud(cluster: Path) -> Iterator[Cloud]:
    name = f"native{uuid.uuid4().hex[:8]}"
    kinds = {"database_url": f"{name}api", "cell0_database_url": f"{name}cell0", "cell_database_url": f"{name}cell1"}
    with psycopg.connect(host=str(cluster), user=server.USER, dbname="postgres", autocommit=True) as connection:
        for database in kinds.values():
            connection.execute(f"CREATE DATABASE {database}".encode())
        with Cloud(hosts=1, databases={kind: server.postgres_url(cluster, name) for kind,
                                       name in kinds.items()}) as made:
            made.admin.image()
            yield made
        for database in kinds.values():
            connection.execute(f"DROP DATABASE {database} WITH (FORCE)".encode())


def test_never_two(cloud: Cloud) -> None:
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _at: ensure(cloud.admin, "server/once", WEB), range(6)))
    assert {reply.status for reply in found} == {200}, found
    assert len({reply.json["resource"]["id"] for reply in found}) == 1
    assert sorted(reply.json["changed"] for reply in found) == [False] * 5 + [True]
    assert len(cloud.admin.get("/v1/server").json["servers"]) == 1
    assert cloud.admin.delete("/v1/server/once").json["changed"]


def test_people(cloud: Cloud) -> None:
    """Each once, although several ask at the same time; and the lists."""
    paths = {"domain/farm": {}, "project/farm:field": {"properties": {"crop": "rye"}},
             "user/farm:joe": {"password": "x"}, "group/farm:hands": {"users": ["joe"]}, "role/ploughman": {},
             "role_assignment/role=ploughman:group=hands:project=field": {}, "application_credential/own": {}}
    for path, want in paths.items():
        with ThreadPoolExecutor(4) as pool:
            found = [*pool.map(ensure, [cloud.admin] * 4, [path] * 4, [want] * 4)]
        assert {reply.status for reply in found} == {200}, found
        assert sorted(reply.json["changed"] for reply in found) == [False] * 3 + [True], path
        kind = path.partition("/")[0]
        listed = cloud.admin.get(f"/v1/{kind}?id={found[0].json['resource']['id']}").json[f"{kind}s"]
        assert len(listed) == 1, listed
    for path in reversed(paths):
        assert cloud.admin.delete(f"/v1/{path}?wait=20").json["changed"], path
