# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines of requests are written in batches: in order, none lost at the end, and no request waits for the log."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar_control.web import json_log
from magnetar_control.web.json_log import BatchedLog, JsonLog
from tests.support.waiting import eventually

ACCESS, OTHER = "magnetar.access", "magnetar.conductor"


class Written(io.StringIO):
    """A stream that counts its writes, and can block."""

    def __init__(self) -> None:
        super().__init__()
        self.free, self.writes = threading.Event(), 0
        self.free.set()

    def write(self, text: str) -> int:
        self.free.wait(60)
        self.writes += 1
        return super().write(text)

    def messages(self) -> list[str]:
        return [json.loads(line)["message"] for line in self.getvalue().splitlines()]


@pytest.fixture
def stream() -> Written:
    return Written()


@pytest.fixture
def handler(stream: Written) -> Iterator[BatchedLog]:
    handler = BatchedLog(stream)
    handler.setFormatter(JsonLog())
    yield handler
    stream.free.set()
    handler.close()


def record(name: str, number: int, level: int = logging.INFO) -> logging.LogRecord:
    return logging.makeLogRecord({"name": name, "levelno": level, "levelname": "INFO", "msg": "line %d",
                                  "args": (number,)})


def test_lines_of_requests_are_written_together(handler: BatchedLog, stream: Written,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_log, "EVERY", 0.5)
    for number in range(100):
        handler.handle(record(ACCESS, number))
    assert stream.writes == 0
    eventually(lambda: len(stream.messages()) == 100)
    assert stream.writes == len(stream.getvalue()) // json_log.ATOMIC + 1
    assert stream.messages() == [f"line {number}" for number in range(100)]
    handler.handle(record(ACCESS, 100))  # the thread waits for the next one
    eventually(lambda: len(stream.messages()) == 101)


@pytest.mark.parametrize(("name", "level"), [(OTHER, logging.INFO), (ACCESS, logging.WARNING)])
def test_other_lines_are_written_at_once_after_those_before(
        handler: BatchedLog, stream: Written, monkeypatch: pytest.MonkeyPatch, name: str, level: int) -> None:
    monkeypatch.setattr(json_log, "EVERY", 600.0)
    handler.handle(record(ACCESS, 1))
    handler.handle(record(name, 2, level))
    assert stream.messages() == ["line 1", "line 2"]


def test_a_log_that_blocks_delays_no_request_and_takes_no_memory(
        handler: BatchedLog, stream: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_log, "MOST", 10)
    monkeypatch.setattr(json_log, "EVERY", 0.01)
    stream.free.clear()
    handler.handle(record(ACCESS, 0))
    eventually(lambda: not handler._waiting)  # the writer has it, and is stuck
    for number in range(1, 31):
        handler.handle(record(ACCESS, number))
    assert len(handler._waiting) == 10
    stream.free.set()
    handler.flush()
    assert stream.messages() == [*(f"line {number}" for number in range(11)),
                                 "20 lines about requests were dropped: the log takes lines more slowly than requests "
                                 "come"]


def test_a_line_that_cannot_be_written_costs_no_other(handler: BatchedLog, stream: Written,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    bad = record(ACCESS, 1)
    bad.args = ("no number",)
    handler.handle(bad)
    handler.handle(record(OTHER, 2))
    assert stream.messages() == ["line 2"]


PROGRAM = """
import logging, os, signal, sys, threading
from magnetar_control.cli import configure_logging
configure_logging("info")
over = threading.Event()
signal.signal(signal.SIGTERM, lambda *_given: over.set())
for number in range(1000):
    logging.getLogger("magnetar.access").info("line %d", number)
os.kill(os.getpid(), signal.SIGTERM)
over.wait()
"""


def test_no_line_is_lost_when_the_process_ends(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], stderr=subprocess.PIPE, cwd=tmp_path, env=dict(os.environ),
                           check=True, text=True, timeout=300)
    assert [json.loads(line)["message"] for line in ended.stderr.splitlines()] == [
        f"line {number}" for number in range(1000)]
