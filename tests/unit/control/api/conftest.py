# SPDX-License-Identifier: GPL-3.0-or-later
"""``compute``: the Compute API on SQLite and on PostgreSQL; ``small``: on SQLite only, for what no database decides."""

import psycopg
import pytest

from magnetar_control.store.engine.database import Database
from tests.unit.control.conftest import tables
from tools import postgres as server

from .compute import Compute, emptied

NAMES = ("api", "cell0", "cell1")


@pytest.fixture(scope="session")
def sqlite_three(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compute")
    found = {name: Database(f"sqlite:///{folder}/{name}.db", name) for name in NAMES}
    for database in found.values():
        tables(database)
    yield found
    for database in found.values():
        database.close()


@pytest.fixture(scope="session")
def postgres_three(cluster):
    found = {}
    with psycopg.connect(host=str(cluster), user=server.USER, dbname="postgres", autocommit=True) as connection:
        for name in NAMES:
            connection.execute(f"CREATE DATABASE compute_{name} TEMPLATE made")
            found[name] = Database(server.postgres_url(cluster, f"compute_{name}"), name)
    yield found
    for database in found.values():
        database.close()


@pytest.fixture
def computes(request, tmp_path, database_kind):
    """Makes clouds of so many cells, each on databases of its own."""
    opened = []

    def made(cells):
        found = {}
        for name in ("api", *(f"cell{at}" for at in range(cells + 1))):
            if database_kind == "sqlite":
                found[name] = Database(f"sqlite:///{tmp_path}/of{cells}-{name}.db", name)
                tables(found[name])
            else:
                folder = request.getfixturevalue("cluster")
                with psycopg.connect(host=str(folder), user=server.USER, dbname="postgres", autocommit=True) as one:
                    one.execute(f"CREATE DATABASE of{cells}_{name} TEMPLATE made")
                found[name] = Database(server.postgres_url(folder, f"of{cells}_{name}"), name)
            opened.append(found[name])
        return Compute(found, tmp_path)

    yield made
    for database in opened:
        database.close()
        if database_kind == "postgres":
            with psycopg.connect(host=str(request.getfixturevalue("cluster")), user=server.USER, dbname="postgres",
                                 autocommit=True) as one:
                one.execute(f"DROP DATABASE {database.url.database} WITH (FORCE)")


@pytest.fixture
def small(sqlite_three, tmp_path):
    yield Compute(sqlite_three, tmp_path)
    emptied(sqlite_three)


@pytest.fixture(params=["sqlite_three", "postgres_three"])
def compute(request, tmp_path):
    found = request.getfixturevalue(request.param)
    yield Compute(found, tmp_path)
    emptied(found)
