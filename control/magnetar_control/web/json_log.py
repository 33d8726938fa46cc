# SPDX-License-Identifier: GPL-3.0-or-later
"""The log of the control plane: one JSON object per line. Lines of requests are written in batches."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections import deque
from functools import lru_cache
from typing import Any, TextIO

import orjson

log = logging.getLogger(__name__)
#: Loggers below WARNING whose lines wait for the next batch, and seconds between two batches. A write in the event loop
#: releases the interpreter lock, which the loop may get back only after a millisecond.
BATCHED, EVERY = ("magnetar.access",), 0.2
#: Number of lines that may wait. Further lines are dropped and counted.
MOST = 10_000
#: Bytes of one write, except for a longer line: a pipe does not mix writes of this size by several processes.
ATOMIC = 4096


class JsonLog(logging.Formatter):
    """A log formatter: one JSON object per line with time, level, logger, message, and the request's id if there is
    one."""

    FIELDS = ("request_id", "global_request_id", "server", "host", "action", "status", "milliseconds", "user",
              "project", "cell", "address", "notification")

    def format(self, record: logging.LogRecord) -> str:
        """Override ``logging.Formatter.format``: return the JSON text for *record*, without a line break."""
        fields: dict[str, Any] = {"time": _second(int(record.created)),
                                  "level": record.levelname.lower(), "logger": record.name,
                                  "message": record.getMessage()}
        fields.update((name, value) for name in self.FIELDS if (value := getattr(record, name, None)) is not None)
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        try:
            return orjson.dumps(fields).decode()
        except TypeError:  # text that is no Unicode, such as names of files
            return json.dumps(fields, default=str)


@lru_cache(maxsize=4)
def _second(moment: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(moment))


class BatchedLog(logging.StreamHandler[TextIO]):
    """A log handler that writes the lines of the access log in batches, from a separate thread, and all other lines
    immediately.

    The order of lines does not change. ``flush`` writes waiting lines; ``logging.shutdown`` calls it when the process
    ends. A process that is killed loses the lines of the last ``EVERY`` seconds. If the output stream blocks, requests
    do not wait: lines beyond ``MOST`` are dropped, and the number of dropped lines is logged.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._waiting: deque[logging.LogRecord] = deque()
        self._writing = threading.RLock()
        self._dropped, self._woken = 0, False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Override ``logging.Handler.handle``: write a record, or store it for the next batch. Return ``False`` if the
        record was dropped. A record of a logger in ``BATCHED`` takes no lock and makes no system call, except for the
        first record of a batch."""
        if not self.filter(record):
            return False
        if record.name not in BATCHED or record.levelno >= logging.WARNING:
            self._waiting.append(record)
            self.flush()
            return True
        if len(self._waiting) >= MOST:
            self._dropped += 1
            return False
        self._waiting.append(record)
        if not self._woken:
            self._woken = True
            self._begin()
        return True

    def flush(self) -> None:
        """Override ``logging.StreamHandler.flush``: write all waiting lines."""
        with self._writing:
            while self._waiting or self._dropped:
                text = ""
                while self._waiting and len(text) < ATOMIC:
                    line = self._line(self._waiting.popleft())
                    if text and len(text) + len(line) > ATOMIC:
                        self._write(text)
                        text = ""
                    text += line
                if not self._waiting and self._dropped:
                    dropped, self._dropped = self._dropped, 0
                    text += self._line(log.makeRecord(
                        log.name, logging.WARNING, "", 0, "%d lines about requests were dropped: the log takes lines "
                        "more slowly than requests come", (dropped,), None))
                self._write(text)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads the log any more, or it is closed
            self.stream.write(text)
            self.stream.flush()

    def _line(self, record: logging.LogRecord) -> str:
        try:
            return f"{self.format(record)}\n"
        except Exception:  # noqa: BLE001 - a wrong format must not stop the lines after it
            self.handleError(record)
            return ""

    def _begin(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="log", daemon=True)
            self._thread.start()
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            time.sleep(EVERY)
            self._woken = False  # before the lines are taken: a later one wakes this thread again
            self.flush()
