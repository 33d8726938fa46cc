# SPDX-License-Identifier: GPL-3.0-or-later
"""The event source of Event-Driven Ansible, run as ansible-rulebook runs it: by its path, with a queue."""

from __future__ import annotations

import asyncio
import json
import runpy
import threading
import time
from pathlib import Path
from typing import Any, Self

SOURCE = Path(__file__).parents[3] / "extensions/eda/plugins/event_source/events.py"


class Source:
    """A source that runs in a thread: ``events``, and the ``error`` that ended it."""

    def __init__(self, **args: Any) -> None:
        self.args = args
        self.events: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self._main = runpy.run_path(str(SOURCE))["main"]
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            asyncio.run(self._follow())
        except Exception as error:
            self.error = error

    async def _follow(self) -> None:
        self._queue, self._loop = asyncio.Queue[dict[str, Any]](1), asyncio.get_running_loop()
        self._task = asyncio.create_task(self._main(self._queue, self.args))
        taking = asyncio.create_task(self._take())
        try:
            await self._task
        except asyncio.CancelledError:
            pass
        finally:
            taking.cancel()

    async def _take(self) -> None:
        while True:
            self.events.append(await self._queue.get())

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join(60)
        assert not self._thread.is_alive()

    def wait(self, type: str, count: int = 1, **wanted: Any) -> list[dict[str, Any]]:
        """The events of this type with these values, once there are *count*."""
        deadline = time.monotonic() + 60
        while True:
            found = [event for event in self.events if event["type"] == type
                     and all(event.get(name) == value for name, value in wanted.items())]
            if len(found) >= count:
                json.dumps(self.events)
                return found
            assert time.monotonic() < deadline and self.error is None, (self.error, self.events)
            time.sleep(0.02)
