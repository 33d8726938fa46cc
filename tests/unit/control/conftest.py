# SPDX-License-Identifier: GPL-3.0-or-later
"""Databases for tests of the control plane: ``sqlite``, ``postgres``, and ``database``, which is each in turn.

PostgreSQL is one temporary cluster for the session, whose database ``made`` has tables and is copied. Tests have one
copy in turn, emptied in between: to make one takes PostgreSQL a fifth of a second of the CPU.
"""

import itertools
import secrets
import shutil

import psycopg
import pytest

from magnetar_control.conductor.hosts import watch_loop
from magnetar_control.services.network.subnets import ipam
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.schema import create_tables
from magnetar_control.store.engine.tables import API, CELL
from tests.conftest import is_slow
from tools import postgres as server

NUMBERS = itertools.count(1)


def pytest_collection_modifyitems(items):
    """Mark the slow ones."""
    for item in items:
        if is_slow(item.path):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def random_addresses_are_high():
    """Draw random addresses from the upper half of an allocation pool: tests name addresses of the lower one. Does not
    use the fixture ``monkeypatch``, which ends after the fixtures that are set up later: they would be taken down with
    what the test has patched.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ipam, "draw_offset", lambda size: size - 1 - secrets.randbelow((size + 1) // 2))
        yield


@pytest.fixture(scope="session", autouse=True)
def silent_hosts_are_tried_often():
    """Try hosts that do not answer once a second: the pause of up to a minute is nothing that a test waits for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch_loop, "LONGEST", watch_loop.PAUSE)
        yield


def tables(database):
    """Make the tables of both kinds."""
    with database.write() as connection:
        for metadata in (API, CELL):
            create_tables(connection, metadata)


@pytest.fixture(scope="session")
def cluster():
    """The folder of a PostgreSQL server that ends with the session; its database ``made`` has the tables."""
    if server.postgres_programs() is None:
        pytest.skip("PostgreSQL's server is not installed (Debian's package postgresql)")
    with server.postgres_cluster() as folder:
        with psycopg.connect(host=str(folder), user=server.USER, dbname="postgres", autocommit=True) as connection:
            connection.execute("CREATE DATABASE made")
        made = Database(server.postgres_url(folder, "made"))
        tables(made)
        made.close()
        yield folder


@pytest.fixture(scope="session")
def copy(cluster):
    """The database that tests have in turn."""
    with psycopg.connect(host=str(cluster), user=server.USER, dbname="postgres", autocommit=True) as connection:
        yield Copy(cluster, connection)


class Copy:
    """A copy of the database ``made`` of the cluster in *folder*; *connection* is to another one."""

    def __init__(self, folder, connection):
        self.folder, self.connection = folder, connection
        self.columns = None

    def anew(self):
        """Its URL, when its tables are as they were made; whoever had it is cut off."""
        self.connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'copy'")
        if self.columns is None or not self.emptied():
            self.connection.execute("DROP DATABASE IF EXISTS copy WITH (FORCE)")
            self.connection.execute("CREATE DATABASE copy TEMPLATE made")
            with self.inside() as inside:
                self.columns = columns(inside)
        return server.postgres_url(self.folder, "copy")

    def emptied(self):
        """Whether a test has left its tables as they were; then they have no row any more."""
        with self.inside() as inside:
            if columns(inside) != self.columns:
                return False
            with inside.transaction():
                inside.execute("; ".join(f'DELETE FROM "{table.name}"' for table in (
                    *reversed(CELL.sorted_tables), *reversed(API.sorted_tables))))
            for (name,) in inside.execute("SELECT sequencename FROM pg_sequences WHERE last_value > 0").fetchall():
                inside.execute(f'ALTER SEQUENCE "{name}" RESTART')
        return True

    def inside(self):
        """A connection to it."""
        return psycopg.connect(host=str(self.folder), user=server.USER, dbname="copy", autocommit=True)


def columns(inside):
    """A number that changes with the tables and their columns."""
    return inside.execute("SELECT sum(hashtext(attrelid || attname)::bigint) FROM pg_attribute").fetchone()[0]


@pytest.fixture(scope="session")
def file_with_tables(tmp_path_factory):
    """The file of a SQLite database with the tables of both kinds, which tests copy."""
    file = tmp_path_factory.mktemp("tables") / "api.db"
    made = Database(f"sqlite:///{file}")
    tables(made)
    made.close()
    return file


@pytest.fixture
def sqlite(tmp_path, file_with_tables):
    """A SQLite database with the tables of both kinds."""
    shutil.copy(file_with_tables, tmp_path)
    database = Database(f"sqlite:///{tmp_path}/api.db")
    yield database
    database.close()


@pytest.fixture
def postgres(copy):
    """A PostgreSQL database with the tables of both kinds."""
    database = Database(copy.anew())
    yield database
    database.close()


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
            found[name] = server.postgres_url(folder, made)
    return found


@pytest.fixture(params=["sqlite", "postgres"])
def database_kind(request):
    """The name of each engine's fixture in turn."""
    return request.param


@pytest.fixture
def database(request, database_kind):
    """A database of each engine in turn."""
    return request.getfixturevalue(database_kind)
