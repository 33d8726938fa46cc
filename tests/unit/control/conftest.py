# SPDX-License-Identifier: GPL-3.0-or-later
"""Databases for tests of the control plane: ``sqlite``, ``postgres``, and ``database``, which is each in turn.

PostgreSQL is one temporary cluster for the session, on a unix socket only; each test gets a database of its own.
"""

import itertools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import psycopg
import pytest

from magnetar_control.store.database import Database
from magnetar_control.store.tables import API, CELL

FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "listen_addresses=", "max_connections=60",
        "shared_buffers=32MB", "logging_collector=off")
NUMBERS = itertools.count(1)


def programs():
    """The folder of PostgreSQL's programs, the newest; None without."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    return found[-1].parent if found else None


def as_user(*command):
    """*command*, as a user that PostgreSQL agrees to be started by."""
    given = [] if os.getuid() else ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    return [*given, *map(str, command)]


@pytest.fixture(scope="session")
def cluster():
    """The folder of the socket of a PostgreSQL server that ends with the session."""
    bin = programs()
    if bin is None:
        pytest.skip("PostgreSQL's server is not installed (package postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))
    server = None
    try:
        if not os.getuid():
            shutil.chown(folder, "postgres", "postgres")
        subprocess.run(as_user(bin / "initdb", "-D", folder / "d", "-A", "trust", "-U", "postgres", "-N", "-E", "UTF8",
                               "--locale=C.UTF-8"), check=True, cwd=folder, stdout=subprocess.DEVNULL)
        settings = [word for one in (*FAST, f"unix_socket_directories={folder}") for word in ("-c", one)]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(as_user(bin / "postgres", "-D", folder / "d", *settings), cwd=folder, stdout=log,
                                      stderr=log, start_new_session=True)
        ready = subprocess.run(["sh", "-c", 'for _ in $(seq 200); do "$0" -q -h "$1" -U postgres && exit 0; '
                                'kill -0 "$2" || exit 1; sleep 0.05; done; exit 1',
                                str(bin / "pg_isready"), str(folder), str(server.pid)], check=False)
        assert not ready.returncode, (folder / "log").read_text()
        yield folder
    finally:
        if server:
            server.send_signal(2)  # fast: clients are cut off
            server.wait(20)
        shutil.rmtree(folder)


@pytest.fixture
def sqlite(tmp_path):
    """A SQLite database with the tables of both kinds."""
    database = Database(f"sqlite:///{tmp_path}/api.db")
    _tables(database)
    yield database
    database.close()


@pytest.fixture
def postgres(cluster):
    """A PostgreSQL database with the tables of both kinds."""
    name = f"t{next(NUMBERS)}"
    with psycopg.connect(host=str(cluster), user="postgres", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        database = Database(f"postgresql+psycopg://postgres@/{name}?host={cluster}")
        _tables(database)
        yield database
        database.close()
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgres"])
def database_kind(request):
    """The name of each engine's fixture in turn."""
    return request.param


@pytest.fixture
def database(request, database_kind):
    """A database of each engine in turn."""
    return request.getfixturevalue(database_kind)


def _tables(database):
    with database.write() as connection:
        API.create_all(connection)
        CELL.create_all(connection)
