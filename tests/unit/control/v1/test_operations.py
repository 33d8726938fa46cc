# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose operations go on, and whose wait: a project has a share of the threads, and those beyond it hold none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar_control.api.v1 import operations as operations_module
from magnetar_control.api.v1.operations import ProjectOperation, ProjectOperations
from magnetar_core.errors import TooManyRequests
from magnetar_core.operations import CANCELLED, RUNNING, SUCCEEDED, Operation
from tests.support.waiting import eventually

Begin = Callable[[str, str], Operation]
CALLER: Any = SimpleNamespace(
    context=SimpleNamespace(user_id="ann", user_name="ann", project_name="red"), project="red",
    settings=SimpleNamespace(cell_timeout=60.0), request_id="req-1")


@contextmanager
def blocked(workers: int, share: int, queued: int = 1000) -> Iterator[tuple[ProjectOperations, Begin, list[str]]]:
    """Operations that end with the block; gives them, what begins one (its name, its project), and the names of those
    that go on, in order."""
    operations, over, going = ProjectOperations(workers, share, queued), threading.Event(), list[str]()

    def begin(name: str, project: str) -> Operation:
        def function(operation: Operation) -> None:
            going.append(name)
            over.wait(60)

        return operations.begin(Operation(name, project=project), function)

    try:
        yield operations, begin, going
    finally:
        over.set()
        for one in operations.list():
            assert one.wait(60)
        operations.close()


def test_a_project_has_a_share_and_the_rest_of_it_waits() -> None:
    with blocked(3, 2) as (operations, begin, going):
        red = [begin(f"red{number}", "red") for number in range(6)]
        begin("blue0", "blue")
        begin("green0", "green")
        eventually(lambda: len(going) == 3)
        assert sorted(going) == ["blue0", "red0", "red1"] and {one.status for one in red} == {RUNNING}
        assert red[5].progress["phase"] == "waiting" and len(operations.list()) == 8
    assert sorted(going) == sorted([*(f"red{number}" for number in range(6)), "blue0", "green0"])
    assert {one.status for one in red} == {SUCCEEDED}


def test_a_project_that_waits_too_much_is_refused_and_others_are_not() -> None:
    with blocked(4, 1, queued=2) as (_operations, begin, _going):
        for number in range(3):
            begin(f"red{number}", "red")
        with pytest.raises(TooManyRequests, match="2 operations of the project wait") as refused:
            begin("red3", "red")
        assert refused.value.retry_after == 10
        begin("blue0", "blue")


def test_one_that_waits_is_cancelled_at_once() -> None:
    with blocked(1, 1) as (operations, begin, going):
        begin("first", "red")
        second, third = begin("second", "red"), begin("third", "red")
        operations.stop(second)
        assert second.status == CANCELLED and third.status == RUNNING
    assert going == ["first", "third"]


def test_those_that_wait_for_a_server_keep_nobody_from_going_on() -> None:
    with blocked(2, 1, queued=8) as (operations, begin, going):
        over, back, most = threading.Event(), list[str](), list[int]()

        def function(operation: Operation) -> None:
            with operation.waiting(), operation.waiting():
                over.wait(60)
            back.append(operation.name)
            most.append(operations._busy["red"])

        waiting = [ProjectOperation(f"red{number}", "server", None, CALLER) for number in range(8)]
        for one in waiting:
            operations.begin(one, function)
        eventually(lambda: operations._waiting["red"] == 8)
        with pytest.raises(TooManyRequests, match="8 operations of the project wait"):
            begin("red8", "red")
        begin("blue0", "blue")
        eventually(lambda: going == ["blue0"])
        over.set()
        assert all(one.wait(60) for one in waiting)
        assert sorted(back) == [one.name for one in waiting] and set(most) == {1}, "one at once, as the share is"
        begin("red8", "red")
        eventually(lambda: going == ["blue0", "red8"])
    assert not operations._waiting and not operations._back


def test_projects_have_a_part_of_those_that_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations_module, "WAITING", 4)
    with blocked(2, 2) as (operations, begin, going):
        over = threading.Event()

        def function(operation: Operation) -> None:
            with operation.waiting():
                over.wait(60)

        waiting = [ProjectOperation(f"red{number}", "server", None, CALLER) for number in range(6)]
        for one in waiting:
            operations.begin(one, function)
        eventually(lambda: operations._waiting["red"] >= 4)
        begin("blue0", "blue")
        eventually(lambda: going == ["blue0"])
        assert operations._waiting["red"] < 6, "the others have not begun"
        over.set()
        assert all(one.wait(60) for one in waiting)
