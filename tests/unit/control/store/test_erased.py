# SPDX-License-Identifier: GPL-3.0-or-later
"""What is erased in SQLite, as the passwords of actions are, is in no file any more, while the database is in use."""

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar_control.conductor.periodic.periodic import empty_logs
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.sqlite import empty_log
from magnetar_control.store.store import CELL0

SECRET = "Adm1n-Pass-of-a-server"


@pytest.mark.parametrize("size", [1, 2000])
@pytest.mark.parametrize("erase", ["DELETE FROM actions", "UPDATE actions SET args = '{}'", "DROP TABLE actions"])
def test_it_is_in_no_file(tmp_path, erase, size):
    def held():
        return [path.name for path in tmp_path.iterdir() if SECRET.encode() in path.read_bytes()]

    with contextlib.closing(Database(f"sqlite:///{tmp_path}/cell.db")) as database:
        with database.write() as connection:
            connection.exec_driver_sql("CREATE TABLE actions (args TEXT)")
            connection.exec_driver_sql("INSERT INTO actions VALUES (?)", (SECRET * size,))
        assert held() == ["cell.db-wal"]
        with database.read() as connection:
            assert empty_log(connection)
        assert held() == ["cell.db"]
        with database.write() as connection:
            connection.exec_driver_sql(erase)
        with database.read() as connection:
            assert empty_log(connection)
            assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 30000
        assert not held()


def test_who_reads_is_not_kept_waiting(tmp_path):
    """Nor is the log emptied then; its turn comes again."""
    with contextlib.closing(Database(f"sqlite:///{tmp_path}/cell.db")) as database:
        with database.write() as connection:
            connection.exec_driver_sql("CREATE TABLE actions (args TEXT)")
        with database.engine.connect() as reader:
            reader.exec_driver_sql("INSERT INTO actions VALUES ('a')")  # in a transaction
            with database.read() as connection:
                assert not empty_log(connection)
            reader.commit()
        with database.read() as connection:
            assert empty_log(connection)


def test_conductors_empty_the_logs_of_their_cell_and_of_cell0(tmp_path):
    with contextlib.ExitStack() as ending:
        cells = {name: ending.enter_context(contextlib.closing(Database(f"sqlite:///{tmp_path}/{name}.db")))
                 for name in ("cell1", CELL0)}
        for database in cells.values():
            with database.write() as connection:
                connection.exec_driver_sql("CREATE TABLE actions (args TEXT)")
        assert all((tmp_path / f"{name}.db-wal").stat().st_size for name in cells)
        conductor: Any = SimpleNamespace(database=cells["cell1"], store=SimpleNamespace(cell=cells.__getitem__))
        empty_logs(conductor)
        assert not any((tmp_path / f"{name}.db-wal").stat().st_size for name in cells)
