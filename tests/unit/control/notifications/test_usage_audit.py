# SPDX-License-Identifier: GPL-3.0-or-later
"""At the end of an audit period each server that there was in it is told, once."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from sqlalchemy import delete, insert, select

from magnetar_control.conductor.periodic import usage_audit
from magnetar_control.notifications import Notifications
from magnetar_control.settings_file import make_settings
from magnetar_control.store.actions import outbox
from magnetar_control.store.engine.database import Database
from magnetar_control.store.engine.tables import servers
from tests.support.control.counting import counted

BOX = outbox.CELL.waiting
FLAVOR = orjson.dumps({"id": "1", "name": "tiny", "vcpus": 2, "ram": 512, "disk": 1}).decode()


def conductor(database: Database, **given: Any) -> Any:
    settings = make_settings({"notification_log": "-", "instance_usage_audit": True,
                              "instance_usage_audit_period": "day", **given})
    return SimpleNamespace(database=database, settings=settings, notifications=Notifications(settings), name="c1",
                           over=threading.Event())


def server(database: Database, name: str, launched: str | None, terminated: str | None = None, **values: Any) -> None:
    with database.write() as connection:
        connection.execute(insert(servers).values(
            id=str(uuid.uuid4()), name=name, project_id="red", user_id="alice", vm_state="active", power_state=1,
            flavor_id="1", flavor=FLAVOR, created_at="2026-11-01T00:00:00.000000", launched_at=launched,
            terminated_at=terminated, **{"host": "kvm1", **values}))


def told(database: Database) -> dict[str, dict[str, Any]]:
    """What was told since the last call, by the server's name; each is told once."""
    with database.write() as connection:
        found = [orjson.loads(row.message) for row in connection.execute(select(BOX).order_by(BOX.c.id))]
        connection.execute(delete(BOX))
    named = {one["payload"]["nova_object.data"]["display_name"]: one for one in found}
    assert len(named) == len(found)
    return named


@pytest.fixture
def four(database: Database) -> Database:
    """Of the 24th of November: two that were there, one that was gone, and one that came later."""
    server(database, "long", "2026-11-02T10:00:00.000000")
    server(database, "short", "2026-11-24T10:00:00.000000", "2026-11-24T11:00:00.000000", host=None,
           deleted_at="2026-11-24T11:00:00.000000")
    server(database, "gone", "2026-11-02T10:00:00.000000", "2026-11-23T11:00:00.000000")
    server(database, "later", "2026-11-25T00:00:00.000000")
    server(database, "never", None, host=None)
    return database


def test_each_server_of_a_period_is_told_once(four: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_audit, "BATCH", 1)
    one = conductor(four)
    assert usage_audit.tell_usage(one, "2026-11-25T00:00:30.000000") == 2
    found = told(four)
    assert found.keys() == {"long", "short"}
    assert {name: (told["event_type"], told["publisher_id"], told["priority"]) for name, told in found.items()} == {
        "long": ("instance.exists", "nova-compute:kvm1", "INFO"),
        "short": ("instance.exists", "nova-conductor:c1", "INFO")}
    payload = found["long"]["payload"]
    assert payload["nova_object.name"] == "InstanceExistsPayload" and "fault" not in payload["nova_object.data"]
    assert payload["nova_object.data"]["audit_period"]["nova_object.data"] == {
        "audit_period_beginning": "2026-11-24T00:00:00Z", "audit_period_ending": "2026-11-25T00:00:00Z"}
    with counted(cell=four) as seen:
        assert usage_audit.tell_usage(one, "2026-11-25T23:59:59.000000") == 0
    assert len(seen) == 1 and not told(four)
    assert usage_audit.tell_usage(one, "2026-11-26T00:00:16.000000") == 2
    assert told(four).keys() == {"long", "later"}
    assert usage_audit.tell_usage(one, "2026-11-25T12:00:00.000000") == 0  # a clock that goes back


def test_what_is_written_just_after_the_end_is_of_the_period(four: Database) -> None:
    """A server's end comes into the database a moment after it."""
    one = conductor(four)
    assert usage_audit.tell_usage(one, "2026-11-25T00:00:00.100000") == 2  # of the 23rd
    assert told(four).keys() == {"long", "gone"}
    server(four, "late", "2026-11-24T12:00:00.000000", "2026-11-24T23:59:59.900000", host=None)
    assert usage_audit.tell_usage(one, "2026-11-25T00:01:00.000000") == 3
    assert told(four)["late"]["payload"]["nova_object.data"]["terminated_at"] == "2026-11-24T23:59:59Z"


def test_a_conductor_that_dies_is_followed_by_one_that_goes_on(four: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_audit, "BATCH", 1)
    write = Database.write
    number = 0

    @contextlib.contextmanager
    def dying(database: Database) -> Iterator[Any]:
        nonlocal number
        number += 1
        with write(database) as connection:
            yield connection
            if number == 2:
                raise KeyboardInterrupt  # before the transaction is committed

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Database, "write", dying)
        usage_audit.tell_usage(conductor(four), "2026-11-25T00:00:30.000000")
    assert usage_audit.tell_usage(conductor(four), "2026-11-25T00:01:30.000000") == 1
    assert told(four).keys() == {"long", "short"}


@pytest.mark.parametrize("given", [{"instance_usage_audit": False}, {"notification_log": None}])
def test_nothing_is_asked_where_nobody_wants_it(sqlite: Database, given: dict[str, Any]) -> None:
    with counted(cell=sqlite) as seen:
        assert usage_audit.tell_usage(conductor(sqlite, **given)) == 0
    assert not seen
