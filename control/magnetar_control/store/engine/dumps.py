# SPDX-License-Identifier: GPL-3.0-or-later
"""Dumps of one database: written while the cloud runs, and restored into an empty database, or in place of another.

A dump of SQLite is a database file; one of PostgreSQL has the custom format of ``pg_dump``, which needs Debian's
package postgresql-client. Each is a consistent snapshot of its database. The programs read passwords from their
environment.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import text

from magnetar_core.errors import MagnetarError

from .ownership import give_to_owner_of_folder, make_private_folders

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sqlalchemy import URL

    from .database import Database

#: Endings of the names of dumps, by engine.
ENDINGS = {"sqlite": ".db", "postgresql": ".dump"}
#: Removes all tables and functions of a PostgreSQL database, except those of extensions.
EMPTY = """
DO $$
DECLARE statement text;
BEGIN
    FOR statement IN
        SELECT format('DROP TABLE IF EXISTS %I CASCADE', relname) FROM pg_class
        WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p')
        UNION ALL
        SELECT format('DROP FUNCTION IF EXISTS %s CASCADE', oid::regprocedure) FROM pg_proc
        WHERE pronamespace = current_schema()::regnamespace
        AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = pg_proc.oid AND deptype = 'e')
    LOOP
        EXECUTE statement;
    END LOOP;
END $$
"""


class DumpFailed(MagnetarError):
    """A dump that cannot be written or restored."""

    code = "dump-failed"
    status = 500


def write_dump(database: Database, path: Path) -> None:
    """Write a dump of *database* to the new file *path*, which only its owner can read. Raises ``DumpFailed``."""
    path.touch(mode=0o600, exist_ok=False)
    if database.kind == "sqlite":
        with _open_sqlite(Path(str(database.url.database)), "ro") as source, _open_sqlite(path, "rw") as target:
            source.backup(target)
    else:
        words = ["--format=custom", "--no-owner", "--no-privileges", "--no-comments", f"--file={path}"]
        _run_program("pg_dump", words, database.url)
    _sync_file(path)


def restore_dump(database: Database, path: Path) -> None:
    """Replace the tables of *database* by the tables in the dump at *path*. After a failure the database has its former
    tables, or none. Raises ``DumpFailed``."""
    if database.kind == "sqlite":
        file = Path(str(database.url.database))
        if not file.exists():
            make_private_folders(file.parent)
            file.touch(mode=0o600)
            give_to_owner_of_folder(file)
        with _open_sqlite(path, "ro") as source, _open_sqlite(file, "rw") as target:
            source.backup(target)
        return
    with database.write() as connection:
        connection.execute(text("SET LOCAL lock_timeout = '10s'"))
        connection.execute(text(EMPTY))
    words = ["--exit-on-error", "--single-transaction", "--no-owner", "--no-privileges", str(path)]
    _run_program("pg_restore", words, database.url)
    with database.read() as connection:
        connection.execute(text("ANALYZE"))


@contextlib.contextmanager
def _open_sqlite(path: Path, mode: str) -> Iterator[sqlite3.Connection]:
    """Yield a connection to the existing SQLite file *path*. *mode*: ``ro`` or ``rw``. Raises ``DumpFailed`` for errors
    of SQLite inside of the ``with`` block."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise DumpFailed(f"SQLite failed for {path}: {error}. See that the file exists, that its disk has room, and "
                         "that no process of the cloud uses a database that is restored.", path=str(path)) from error


def _run_program(name: str, words: Sequence[str], url: URL) -> None:
    """Run ``pg_dump`` or ``pg_restore`` with the arguments *words* for the database at *url*. Raises ``DumpFailed``
    with the program's message."""
    if shutil.which(name) is None:
        raise DumpFailed(f"{name} is not installed. Install PostgreSQL's client programs (Debian: apt install "
                         "postgresql-client), of the server's version or newer.")
    address = url.set(drivername="postgresql", password=None).render_as_string(hide_password=False)
    environment: Mapping[str, str] = {**os.environ, **({"PGPASSWORD": str(url.password)} if url.password else {})}
    done = subprocess.run(  # noqa: S603 - a program of PostgreSQL
        [name, f"--dbname={address}", *words], env=environment, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, check=False)
    if done.returncode:
        raise DumpFailed(f"{name} failed for the database {url.database}: {' '.join(done.stderr.split())}. See that "
                         f"the server answers, that {name} is not older than it, and that the disk has room.")


def _sync_file(path: Path) -> None:
    """Write a file's content to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
