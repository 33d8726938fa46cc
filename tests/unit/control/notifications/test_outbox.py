# SPDX-License-Identifier: GPL-3.0-or-later
"""What waits for receivers in a database of either engine, and how it is sent: failures, redirects, restarts, two
conductors."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select, update

from magnetar_control.conductor.periodic.notification_sender import NotificationSender, drop_old
from magnetar_control.conductor.periodic.periodic import TASKS, Periodic
from magnetar_control.notifications import notification_message
from magnetar_control.notifications.receivers import receivers_of
from magnetar_control.settings_file import make_settings
from magnetar_control.store.actions import outbox
from magnetar_control.store.engine.database import Database, utc_now

from .receiving import Receiving, receiving

BOXES = {"cell": outbox.CELL, "api": outbox.API}


@pytest.fixture
def receiver() -> Iterator[Receiving]:
    with receiving() as found:
        yield found


def sender(database: Database, receiver: Receiving, holder: str = "one", **settings: Any) -> NotificationSender:
    """That of a conductor which has one database for all."""
    found = receivers_of(make_settings({"notification_urls": {"eda": receiver.url}, "notification_timeout": 1.0,
                                        **settings}))
    return NotificationSender(conductor(database, holder), found["eda"])


def conductor(database: Database, holder: str = "one", **settings: Any) -> Any:
    made = make_settings(settings)
    return SimpleNamespace(over=threading.Event(), holder=holder, database=database, schedules=True, settings=made,
                           store=SimpleNamespace(cell0=database, api=database), notifications=SimpleNamespace(
                               receivers={"eda": None}))


def tell(database: Database, *names: str, box: outbox.Outbox = outbox.CELL, receivers: tuple[str, ...] = ("eda",),
         same: str | None = None) -> None:
    with database.write() as connection:
        outbox.insert_notification_rows(connection, box, receivers, [notification_message(
            f"instance.{name}", "nova-compute:kvm1", {"nova_object.data": {"uuid": name}}, same) for name in names])


def waiting(database: Database, receiver: str = "eda", box: outbox.Outbox = outbox.CELL) -> list[str]:
    with database.read() as connection:
        return [row.event_type.removeprefix("instance.") for row in outbox.fetch_notification_rows(connection, box,
                                                                                                   receiver, 100)]


def again_now(database: Database) -> None:
    """The pause after a failure is over."""
    with database.write() as connection:
        connection.execute(update(outbox.CELL.receivers).values(not_before=None))


def state(database: Database) -> Any:
    with database.read() as connection:
        return connection.execute(select(outbox.CELL.receivers)).one()


@pytest.mark.parametrize("box", BOXES)
def test_what_waits_is_sent_in_order_and_removed(database: Database, receiver: Receiving, box: str) -> None:
    tell(database, "a", "b", "c", box=BOXES[box])
    assert not sender(database, receiver).send(database, BOXES[box])
    assert receiver.types() == ["instance.a", "instance.b", "instance.c"]
    path, headers = receiver.asked[0]
    assert (path, headers["content-type"]) == ("/endpoint?of=magnetar", "application/json")
    assert "authorization" not in headers
    assert waiting(database, box=BOXES[box]) == []


def test_what_is_not_committed_is_not_sent(database: Database, receiver: Receiving) -> None:
    with pytest.raises(ZeroDivisionError), database.write() as connection:
        outbox.insert_notification_rows(connection, outbox.CELL, ["eda"],
                                        [notification_message("instance.a", "nova-api:x", {})])
        raise ZeroDivisionError
    assert not sender(database, receiver).send(database, outbox.CELL)
    assert receiver.asked == []


def test_the_same_one_waits_once(database: Database) -> None:
    tell(database, "a", same="1")
    tell(database, "a", same="1")
    tell(database, "a", same="2")
    assert waiting(database) == ["a", "a"]


@pytest.mark.parametrize(("status", "words"), [
    (500, "status 500"), (404, "status 404"), (401, "status 401"), (302, "a redirect, which is not followed"),
    (0, "does not answer properly or in time")])
def test_one_that_fails_gets_it_later_and_nothing_before_it(
        database: Database, receiver: Receiving, caplog: pytest.LogCaptureFixture, status: int, words: str) -> None:
    tell(database, "a", "b", "c")
    receiver.status = lambda told: status if told["event_type"] == "instance.b" else 200
    mine = sender(database, receiver)
    with caplog.at_level(logging.INFO):
        assert not mine.send(database, outbox.CELL)
        assert (receiver.types(), waiting(database)) == (["instance.a"], ["b", "c"])
        assert words in state(database).problem and words in caplog.text
        asked = len(receiver.asked)
        assert not mine.send(database, outbox.CELL)  # it is left alone for a while
        assert len(receiver.asked) == asked
        for failures in (2, 3):
            again_now(database)
            mine.send(database, outbox.CELL)
            assert state(database).failures == failures
        assert caplog.text.count("wait:") == 1
        receiver.status = lambda _told: 200
        again_now(database)
        mine.send(database, outbox.CELL)
        assert "taken again" in caplog.text
    assert (receiver.types(), waiting(database)) == (["instance.a", "instance.b", "instance.c"], [])
    assert (state(database).failures, state(database).not_before, state(database).problem) == (0, None, None)


def test_what_is_refused_for_good_keeps_nothing_waiting(
        database: Database, receiver: Receiving, caplog: pytest.LogCaptureFixture) -> None:
    tell(database, "a", "b")
    receiver.status = lambda told: 400 if told["event_type"] == "instance.a" else 200
    with caplog.at_level(logging.ERROR):
        sender(database, receiver).send(database, outbox.CELL)
    assert (receiver.types(), waiting(database)) == (["instance.b"], [])
    assert "notification instance.a is dropped: eda, it refused it (status 400)" in caplog.text


def test_one_conductor_sends_at_a_time_and_another_goes_on_when_it_has_died(
        database: Database, receiver: Receiving, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that dies after the receiver has it sends it again, with the same id."""
    class Died(BaseException):
        pass

    def die(*_given: Any, **_named: Any) -> None:
        raise Died

    tell(database, "a", "b")
    first, second = sender(database, receiver), sender(database, receiver, "two")
    with monkeypatch.context() as dying:
        dying.setattr("magnetar_control.store.actions.outbox.complete_notification_batch", die)
        with pytest.raises(Died):
            first.send(database, outbox.CELL)
    assert not second.send(database, outbox.CELL)  # nobody knows yet that the first is dead
    assert len(receiver.taken) == 2
    with database.write() as connection:
        connection.execute(update(outbox.CELL.receivers).values(lease_until=database.clock(-1)))
    second.send(database, outbox.CELL)
    assert [one["event_type"] for one in receiver.taken] == ["instance.a", "instance.b"] * 2
    assert receiver.types() == ["instance.a", "instance.b"] and len({one["message_id"] for one in receiver.taken}) == 2
    assert waiting(database) == []


def test_a_silent_receiver_keeps_no_other_waiting(database: Database, receiver: Receiving) -> None:
    tell(database, "a", receivers=("eda", "other"))
    with receiving() as silent:
        silent.status = lambda _told: 0
        found = receivers_of(make_settings({"notification_urls": {"eda": silent.url, "other": receiver.url},
                                            "notification_timeout": 15}))
        thread = threading.Thread(target=NotificationSender(conductor(database), found["eda"]).send, args=(
            database, outbox.CELL), daemon=True)
        thread.start()
        silent.wait(lambda: silent.asked)
        NotificationSender(conductor(database), found["other"]).send(database, outbox.CELL)
        assert receiver.types() == ["instance.a"] and thread.is_alive()
        silent.goes_on.set()
        thread.join(60)


def test_what_is_old_or_too_much_or_for_nobody_is_dropped_and_said(
        database: Database, caplog: pytest.LogCaptureFixture) -> None:
    tell(database, "a", "b", "c", "d")
    tell(database, "a", receivers=("former",))
    box = outbox.CELL.waiting
    with caplog.at_level(logging.ERROR):
        drop_old(conductor(database, notification_keep_hours=87600))
        assert waiting(database, "former") == ["a"]  # other conductors may have newer settings, which name it
        with database.write() as connection:
            connection.execute(update(box).where(box.c.receiver == "former").values(created_at=utc_now(-2 * 3600)))
        drop_old(conductor(database, notification_keep_count=3))
        assert waiting(database) == ["b", "c", "d"] and waiting(database, "former") == []
        assert "1 notifications for eda are lost" in caplog.text and "1 notifications for former" in caplog.text
        caplog.clear()
        drop_old(conductor(database))
        assert caplog.text == ""
        with database.write() as connection:
            connection.execute(update(box).where(box.c.event_type == "instance.b").values(created_at="2026-01-01"))
        drop_old(conductor(database))
    assert waiting(database) == ["c", "d"]


def test_a_log_has_a_line_for_each(
        database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture, receiver: Receiving) -> None:
    path = tmp_path / "notifications.jsonl"
    tell(database, "a", "b", receivers=("log",))
    for given in (str(path), "-"):
        found = receivers_of(make_settings({"notification_log": given}))["log"]
        with caplog.at_level(logging.INFO):
            NotificationSender(conductor(database), found).send(database, outbox.CELL)
        tell(database, "c", receivers=("log",))
    assert [json.loads(line)["event_type"] for line in path.read_text().splitlines()] == ["instance.a", "instance.b"]
    assert [one.notification["event_type"] for one in caplog.records if hasattr(one, "notification")] == ["instance.c"]
    path.unlink()
    path.mkdir()
    found = receivers_of(make_settings({"notification_log": str(path)}))["log"]
    NotificationSender(conductor(database), found).send(database, outbox.CELL)
    assert waiting(database, "log") == ["c"]


def test_the_conductor_that_sends_what_a_database_has_drops_it_whoever_is_first(
        database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a cell's conductors the first by name may be one that does not schedule."""
    tell(database, "a", "b", box=outbox.API)
    periodic = Periodic.__new__(Periodic)
    periodic.conductor = conductor(database, notification_keep_count=1)
    monkeypatch.setattr(periodic, "first", lambda: False)
    periodic._run_task(next(one for one in TASKS if one.name == "dropping notifications"))
    assert waiting(database, box=outbox.API) == ["b"]
