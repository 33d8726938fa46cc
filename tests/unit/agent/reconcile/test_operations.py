# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations: outcomes, progress, cancel, waiting, what is kept, and the end."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from magnetar_core.errors import Conflict, HypervisorDown, NoSpace, NotFound
from magnetar_core.operations import Operation, Operations

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def operations() -> Iterator[Operations]:
    found = Operations(2, max_ended=5)
    yield found
    found.close()


def test_success(operations: Operations) -> None:
    operation = operations.start("copy", lambda op: op.advance(1, 2, phase="x") or 42, kind="image", key="i",
                                 caller="me")
    assert operation.wait(120)
    shown = operation.as_dict()
    assert (shown["status"], shown["result"], shown["error"]) == ("succeeded", 42, None)
    assert shown["progress"] == {"done": 1, "total": 2, "unit": "bytes", "phase": "x"}
    assert (shown["kind"], shown["key"], shown["caller"]) == ("image", "i", "me")
    assert operations.get(operation.id) is operation


def test_failures(operations: Operations) -> None:
    def fails(error: Exception) -> Operation:
        def function(_operation: Operation) -> None:
            raise error

        operation = operations.start("x", function)
        assert operation.wait(120)
        return operation

    known = fails(NoSpace("full"))
    assert known.status == "failed" and known.error == {"code": "no-space", "message": "full", "details": {}}
    unknown = fails(KeyError("inner"))
    assert unknown.error and unknown.error["code"] == "internal" and "inner" not in str(unknown.error)


def test_cancel_takes_hold_at_the_next_check(operations: Operations) -> None:
    def slow(operation: Operation) -> None:
        while True:
            operation.advance(1)
            time.sleep(0.005)

    operation = operations.start("copy", slow)
    assert not operation.wait(0.02)
    assert operations.cancel(operation.id) is operation and operation.wait(120)
    assert operation.status == "cancelled"
    operations.cancel(operation.id)
    with pytest.raises(Conflict):
        ended = operations.start("x", lambda _operation: None)
        ended.wait(120)
        operations.cancel(ended.id)


def test_one_that_waits_is_cancelled_without_starting(operations: Operations) -> None:
    go, ran = threading.Event(), []
    held = [operations.start("hold", lambda _operation: go.wait(120)) for _time in range(2)]
    waiting = operations.start("x", lambda _: ran.append(1))
    assert waiting.as_dict()["progress"]["phase"] == "waiting" and operations.running() == 3
    waiting.cancel()
    streaming = operations.start("upload", lambda _: "through", stream=True)
    assert streaming.wait(120)
    go.set()
    assert all(operation.wait(120) for operation in [*held, waiting])
    assert waiting.status == "cancelled" and not ran


def test_the_last_ended_ones_are_kept(operations: Operations) -> None:
    started = [operations.start("x", lambda _operation: None) for _time in range(9)]
    assert all(operation.wait(120) for operation in started)
    deadline = time.monotonic() + 120
    while operations.running() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert len(operations.list()) == 5
    with pytest.raises(NotFound):
        operations.get("nope")


def test_listeners(operations: Operations) -> None:
    heard: list[str] = []
    stop = operations.listen(lambda operation: heard.append(operation.name))
    operations.listen(lambda _: 1 / 0)  # its trouble is its own
    operation = operations.start("a", lambda _operation: None)
    called = threading.Event()
    operation.then(lambda _: called.set())
    assert called.wait(120) and operation.wait(120)
    until = time.monotonic() + 60  # it is told right after it has ended
    while heard != ["a"]:
        assert time.monotonic() < until and not heard[1:]
        time.sleep(0.01)
    stop()
    late: list[int] = []
    operation.then(lambda _: late.append(1))
    assert late == [1]


def test_close_gives_grace_then_cancels() -> None:
    operations = Operations(2)

    def slow(operation: Operation) -> None:
        while True:
            operation.raise_if_cancelled()
            time.sleep(0.005)

    quick, endless = operations.start("q", lambda _: time.sleep(0.05)), operations.start("e", slow)
    operations.close(0.3)
    assert (quick.status, endless.status) == ("succeeded", "cancelled")
    with pytest.raises(HypervisorDown):
        operations.start("late", lambda _operation: None)
