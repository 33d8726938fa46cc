# SPDX-License-Identifier: GPL-3.0-or-later
"""The rows of events in a database of either engine: no event appears before a reader's position, and old ones go."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator

import pytest
from sqlalchemy.exc import OperationalError

from magnetar_control.compute.events import event_feed
from magnetar_control.compute.events.event_feed import EventSource
from magnetar_control.store.actions import outbox
from magnetar_control.store.actions.event_rows import Horizon, drop_old_event_rows, fetch_stream_rows, insert_event_rows
from magnetar_control.store.actions.outbox import Message
from magnetar_control.store.engine.database import Database, utc_now
from magnetar_core.errors import CursorExpired

BOX = outbox.CELL


def message(name: str) -> Message:
    return Message(str(uuid.uuid5(uuid.NAMESPACE_DNS, name)), "server.create.end", f'{{"event": "{name}"}}')


def write(database: Database, *names: str) -> None:
    with database.write() as connection:
        insert_event_rows(connection, BOX, [message(name) for name in names])


@pytest.fixture
def source(database: Database) -> Iterator[EventSource]:
    yield EventSource("cell", database, BOX, lambda: None)


def seen(source: EventSource, after: int) -> list[str]:
    return [found.document["event"] for found in source.page(after) if found.document]


def newest(source: EventSource) -> int:
    assert source.look()
    assert source.newest is not None
    return source.newest


def test_readers_continue_after_their_position(source: EventSource) -> None:
    start = newest(source)
    assert seen(source, start) == []
    write(source.database, "one", "two")
    write(source.database, "two")  # written before
    assert newest(source) > start and seen(source, start) == ["one", "two"]
    middle = source.page(start)[0].id
    assert seen(source, middle) == ["two"] and seen(source, newest(source)) == []
    assert seen(source, 0) == ["one", "two"]


def test_an_event_of_a_long_transaction_is_not_passed_over(source: EventSource) -> None:
    start = newest(source)
    database, written, may_end = source.database, threading.Event(), threading.Event()
    if database.kind == "sqlite":  # one transaction writes at a time
        pytest.skip("SQLite has one writer")

    def slowly() -> None:
        with database.write() as connection:
            insert_event_rows(connection, BOX, [message("slow")])
            written.set()
            may_end.wait(60)

    thread = threading.Thread(target=slowly)
    thread.start()
    assert written.wait(60)
    write(database, "quick")  # has the higher id, and is readable first
    assert not source.look() and source.newest == start
    write(database, "quicker")
    assert not source.look() and source.newest == start
    may_end.set()
    thread.join(60)
    for _look in range(100):
        if source.look():
            break
    assert seen(source, start) == ["slow", "quick", "quicker"]


def test_transactions_that_always_run_do_not_hold_events_back(source: EventSource) -> None:
    if source.database.kind == "sqlite":
        pytest.skip("SQLite has one writer")
    start = newest(source)
    over, database = threading.Event(), source.database

    def always(name: str) -> None:
        number = 0
        while not over.is_set():
            with database.write() as connection:
                insert_event_rows(connection, BOX, [message(f"{name}{number}")])
                number += 1
                over.wait(0.02)

    threads = [threading.Thread(target=always, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    try:
        for _look in range(2000):
            source.look()
            if (source.newest or 0) > start + 20:
                break
            over.wait(0.01)
        assert (source.newest or 0) > start + 20
    finally:
        over.set()
        for thread in threads:
            thread.join(60)


def test_an_expired_position_is_refused(source: EventSource) -> None:
    start = newest(source)
    write(source.database, "one", "two", "three")
    last = newest(source)
    assert drop_old_event_rows(source.database, BOX, utc_now(-3600), 2) == 2
    fresh = EventSource("cell", source.database, BOX, lambda: None)
    assert newest(fresh) == last
    with pytest.raises(CursorExpired):
        fresh.page(start)
    with pytest.raises(CursorExpired):  # of a database that was restored since
        fresh.page(last + 1)
    assert seen(fresh, 0) == ["two", "three"]


def test_the_newest_event_always_stays(source: EventSource) -> None:
    newest(source)
    write(source.database, "one", "two")
    last = newest(source)
    assert drop_old_event_rows(source.database, BOX, utc_now(3600), 100) == 2
    with source.database.read() as connection:
        horizon = Horizon(BOX)
        assert horizon.look(connection) and horizon.newest == last
        assert fetch_stream_rows(connection, BOX, last, last, 10) == []
    write(source.database, "three")
    assert newest(source) > last
    with source.database.read() as connection:
        assert fetch_stream_rows(connection, BOX, last, newest(source), 10)


@pytest.mark.parametrize(("hangs", "slots", "waited"), [
    (False, 1, "PATIENCE"), (False, 0, "BRIEFLY"), (True, 1, None)])
def test_a_look_does_not_wait_long_for_one_that_hangs(
        source: EventSource, monkeypatch: pytest.MonkeyPatch, hangs: bool, slots: int, waited: str | None) -> None:
    """Another thread waits for the database, and holds the lock."""
    for name in ("PATIENCE", "BRIEFLY"):
        monkeypatch.setattr(event_feed, name, 0.2 if name == waited else 60.0)
    free = threading.Semaphore(slots)
    if hangs:
        source.database.breaker.late()
    begun = time.monotonic()
    with source._lock, pytest.raises(OperationalError, match="does not answer"):
        source.look(free)
    assert time.monotonic() - begun < 30.0
    assert free.acquire(blocking=False) == bool(slots)  # given back
    with source.database.read():  # an answer: it does not hang any more
        pass
    assert newest(source)
