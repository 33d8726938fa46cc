# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose operations go on, and whose wait: a project has a share of the threads, and those beyond it hold none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from magnetar_control.api.v1.operations import ProjectOperations
from magnetar_core.errors import TooManyRequests
from magnetar_core.operations import CANCELLED, RUNNING, SUCCEEDED, Operation

Begin = Callable[[str, str], Operation]


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


def until(condition: Callable[[], bool]) -> None:
    for _try in range(6000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError


def test_a_project_has_a_share_and_the_rest_of_it_waits() -> None:
    with blocked(3, 2) as (operations, begin, going):
        red = [begin(f"red{number}", "red") for number in range(6)]
        begin("blue0", "blue")
        begin("green0", "green")
        until(lambda: len(going) == 3)
        assert sorted(going) == ["blue0", "red0", "red1"] and {one.status for one in red} == {RUNNING}
        assert red[5].progress["phase"] == "waiting" and len(operations.list()) == 8
    assert sorted(going) == sorted([*(f"red{number}" for number in range(6)), "blue0", "green0"])
    assert {one.status for one in red} == {SUCCEEDED}


def test_a_project_that_waits_too_much_is_refused_and_others_are_not() -> None:
    with blocked(4, 1, queued=2) as (_operations, begin, _going):
        for number in range(3):
            begin(f"red{number}", "red")
        with pytest.raises(TooManyRequests, match="has 1 operations under way.*2 more that wait") as refused:
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
