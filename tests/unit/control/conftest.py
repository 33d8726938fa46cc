# SPDX-License-Identifier: GPL-3.0-or-later
"""Databases for tests of the control plane: ``sqlite``, ``postgres``, and ``database``, which is each in turn.

PostgreSQL is one temporary cluster for the session; each test gets a database of its own, copied from one with tables.
"""

import itertools
from pathlib import Path

import psycopg
import pytest

from magnetar_control.store.database import Database
from magnetar_control.store.tables import API, CELL
from tools import postgres as server

NUMBERS = itertools.count(1)


#: Tests here start agents, or whole clouds, and take their time.
SLOW = ("access/", "attachments/", "consoles/", "faults/", "moves/", "native/", "shelve/", "signatures/",
        "api/test_sdk.py", "api/test_personality.py", "test_slice.py", "test_spread.py", "identity/test_sdk.py",
        "volume/")
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """Mark the slow ones."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.path.relative_to(HERE).as_posix().startswith(SLOW):
            item.add_marker(pytest.mark.slow)


def tables(database):
    """Make the tables of both kinds."""
    with database.write() as connection:
        API.create_all(connection)
        CELL.create_all(connection)


@pytest.fixture(scope="session")
def cluster():
    """The folder of a PostgreSQL server that ends with the session; its database ``made`` has the tables."""
    if server.programs() is None:
        pytest.skip("PostgreSQL's server is not installed (Debian's package postgresql)")
    with server.cluster() as folder:
        with psycopg.connect(host=str(folder), user=server.USER, dbname="postgres", autocommit=True) as connection:
            connection.execute("CREATE DATABASE made")
        made = Database(server.url(folder, "made"))
        tables(made)
        made.close()
        yield folder


@pytest.fixture
def sqlite(tmp_path):
    """A SQLite database with the tables of both kinds."""
    database = Database(f"sqlite:///{tmp_path}/api.db")
    tables(database)
    yield database
    database.close()


@pytest.fixture
def postgres(cluster):
    """A PostgreSQL database with the tables of both kinds."""
    name = f"t{next(NUMBERS)}"
    with psycopg.connect(host=str(cluster), user=server.USER, dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE made")
        database = Database(server.url(cluster, name))
        yield database
        database.close()
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def databases(request):
    """URLs of three databases, as a ``Cloud`` takes them; of each engine in turn."""
    if request.param == "sqlite":
        return {}
    folder, found = request.getfixturevalue("cluster"), {}
    with psycopg.connect(host=str(folder), user=server.USER, dbname="postgres", autocommit=True) as connection:
        for name in ("database_url", "cell0_database_url", "cell_database_url"):
            made = f"cloud{next(NUMBERS)}"
            connection.execute(f"CREATE DATABASE {made}")
            found[name] = server.url(folder, made)
    return found


@pytest.fixture(params=["sqlite", "postgres"])
def database_kind(request):
    """The name of each engine's fixture in turn."""
    return request.param


@pytest.fixture
def database(request, database_kind):
    """A database of each engine in turn."""
    return request.getfixturevalue(database_kind)
