# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads of the host that may hang: whoever asks waits for them, for a while, and nobody begins them twice."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from magnetar_agent.host.background_reads import BackgroundReads


def test_callers_wait_for_a_read_that_another_caller_began() -> None:
    running, reads = [0, 0], BackgroundReads[str](interval=0.0, patience=60.0)

    def read() -> str:
        running[0] += 1
        running[1] = max(running)
        time.sleep(0.01)
        running[0] -= 1
        return "value"

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _number: reads.latest({"disk": read}), range(80)))
    assert answers == [{"disk": ("value", 0.0)}] * 80 and running == [0, 1]


def test_a_read_that_hangs_is_waited_for_once() -> None:
    answer, begun = threading.Event(), []
    reads = BackgroundReads[str](interval=0.0, patience=0.2)

    def read() -> str:
        begun.append(1)
        answer.wait(60)
        return "value"

    assert reads.latest({"disk": read})["disk"][0] is None
    before = time.monotonic()
    for _number in range(20):
        value, seconds = reads.latest({"disk": read})["disk"]
        assert value is None and seconds > 0.2
    assert time.monotonic() - before < 20 * 0.2, "later callers do not wait again"
    answer.set()
    while not (value := reads.latest({"disk": read})["disk"][0]):
        time.sleep(0.01)
    assert value == "value" and begun[:1] == [1]
