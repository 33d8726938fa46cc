# SPDX-License-Identifier: GPL-3.0-or-later
"""Power sync of a simulated host, in threads that all hosts share."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

from magnetar_agent.host.power_sync import AGAIN, PowerSync

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    from magnetar_agent.drivers import Drivers
    from magnetar_agent.host.hypervisor import DomainEvent


class SimulatedPowerSync(PowerSync):
    """The handler of a simulated host's libvirt events. Events are handled in order, one at a time, in the thread pool
    *threads* that all hosts share."""

    def __init__(self, drivers: Drivers, threads: ThreadPoolExecutor, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(drivers)
        self._threads, self._loop = threads, loop
        self._guard, self._draining, self._new_boot = threading.Lock(), False, False

    def start(self) -> None:
        """Start to handle the events of the host's hypervisor."""
        self.host.hypervisor.on_event(self._event)
        self.host.hypervisor.on_connect(lambda: self._put("connected"))
        self.settled.set()

    def boot(self) -> None:
        """Handle a simulated reboot of the host like a real agent that starts after a reboot."""
        self._new_boot = True
        self.hold()
        self._put("connected")

    def close(self) -> None:
        """Do nothing: the base class stops its thread here, but these threads are shared by all hosts."""

    def _event(self, event: DomainEvent) -> None:
        super()._event(event)
        self._drain_soon()

    def _put(self, todo: DomainEvent | str) -> None:
        self._add(todo)
        self._drain_soon()

    def _drain_soon(self) -> None:
        with self._guard:
            if self._draining or self._todo.empty():
                return
            self._draining = True
        self._threads.submit(self._drain)

    def _drain(self) -> None:
        while True:
            try:
                todo = self._todo.get_nowait()
            except queue.Empty:
                with self._guard:
                    if self._todo.empty():
                        self._draining = False
                        break
                continue
            if todo is not None:
                self._handle(todo)
        if self._later:
            self._loop.call_soon_threadsafe(self._loop.call_later, AGAIN, self._try_again)

    def _try_again(self) -> None:
        waiting, self._later = self._later, []
        for event in waiting:
            self._add(event)
        self._drain_soon()

    def _rebooted(self) -> bool:
        return self._new_boot

    def _remember_boot(self) -> None:
        self._new_boot = False
