# SPDX-License-Identifier: GPL-3.0-or-later
"""Connections for reading that a thread keeps."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from sqlalchemy import insert, text
from sqlalchemy.exc import DBAPIError

from magnetar_control.store import database as module
from magnetar_control.store.database import keep_connections, now
from magnetar_control.store.tables import flavors

BACKEND = text("SELECT pg_backend_pid()")


@pytest.fixture
def thread():
    """One that keeps its connections."""
    with ThreadPoolExecutor(1, initializer=keep_connections) as threads:
        yield threads


def backend(database):
    with database.read() as connection:
        return connection.execute(BACKEND).scalar_one()


def end(pid, cluster):
    with psycopg.connect(host=str(cluster), user="postgres", dbname="postgres", autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s)", (pid,))


def test_a_thread_that_keeps_reads_with_one_connection(postgres, thread):
    assert len({thread.submit(backend, postgres).result() for _again in range(5)}) == 1
    assert postgres.engine.pool.checkedout() == 1
    assert backend(postgres) != thread.submit(backend, postgres).result()  # this thread gives back what it takes
    assert postgres.engine.pool.checkedout() == 1


def test_each_statement_sees_what_is_true_then(database, thread):
    def count():
        with database.read() as connection:
            return connection.execute(text("SELECT count(*) FROM flavors")).scalar_one()

    assert thread.submit(count).result() == 0
    with database.write() as connection:
        connection.execute(insert(flavors), {"id": "1", "name": "small", "vcpus": 1, "ram": 1, "created_at": now()})
    assert thread.submit(count).result() == 1


def test_who_reads_while_he_reads_has_another(postgres, thread):
    def two():
        with postgres.read() as one, postgres.read() as other:
            return one.execute(BACKEND).scalar_one(), other.execute(BACKEND).scalar_one()

    one, other = thread.submit(two).result()
    assert one != other
    assert postgres.engine.pool.checkedout() == 1
    assert thread.submit(backend, postgres).result() == other


def test_what_broke_is_not_kept_anywhere(postgres, cluster):
    """Every connection is cut; each thread may notice that once, and the first that does tells the others."""
    with contextlib.ExitStack() as stack:
        threads = [stack.enter_context(ThreadPoolExecutor(1, initializer=keep_connections)) for _thread in range(3)]
        pids = {one.submit(backend, postgres).result() for one in threads}
        assert len(pids) == 3
        for pid in pids:
            end(pid, cluster)
        with pytest.raises(DBAPIError):
            threads[0].submit(backend, postgres).result()
        again = {one.submit(backend, postgres).result() for one in threads}
        assert len(again) == 3
        assert not again & pids


def test_a_refused_statement_leaves_nothing_behind(postgres, thread):
    def wrong():
        with postgres.read() as connection:
            connection.execute(text("SELECT nothing FROM nowhere"))

    with pytest.raises(DBAPIError):
        thread.submit(wrong).result()
    assert postgres.engine.pool.checkedout() == 0
    assert thread.submit(backend, postgres).result()


def test_it_is_kept_for_a_while_only(postgres, thread, monkeypatch):
    monkeypatch.setattr(module, "KEEP", 0.0)
    found = [thread.submit(backend, postgres).result() for _again in range(3)]
    assert len(found) == 3
    assert postgres.engine.pool.checkedout() == 1


def test_all_are_closed_with_the_database(postgres, thread):
    thread.submit(backend, postgres).result()
    postgres.close()
    assert postgres.engine.pool.checkedout() == 0
    assert thread.submit(backend, postgres).result()
    postgres.close()
