# SPDX-License-Identifier: GPL-3.0-or-later
"""One simulated host: the parts of a real agent, without threads and without documents on disk."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import uuid
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from magnetar_agent.agent import ManagedHost
from magnetar_agent.host.cpu_meter import CpuMeter
from magnetar_agent.host.host import LocalHost
from magnetar_agent.host.load_meter import LoadMeter
from magnetar_agent.servers import GIB

from .documents import MemoryDocuments
from .feed import Pulse, SimulatedFeed
from .hypervisor import HostSize, SimulatedHypervisor
from .links import SimulatedLinks
from .operations import HostOperations
from .power_sync import SimulatedPowerSync

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path

    from magnetar_agent.api.watch import EventLane
    from magnetar_agent.host.load_meter import GuestUsage
    from magnetar_agent.settings import AgentSettings

#: Conditions of a host. ``silent``: it accepts connections and answers nothing, and its guests go on. ``slow``: each
#: answer comes late. ``dead``: it has lost its power; it refuses connections, and boots when it is ``up`` again.
UP, SILENT, SLOW, DEAD = CONDITIONS = ("up", "silent", "slow", "dead")


class _IdleMeter(CpuMeter):
    """Constant CPU metrics for a simulated host."""

    def measure(self) -> dict[str, float]:
        """Return the CPU metrics of an idle host."""
        return {"cpu.percent": 0.0, "cpu.idle.percent": 1.0}


class _NoLoad(LoadMeter):
    """A load meter for a simulated host that measures nothing."""

    def measure(self, read_usage: Callable[[], Mapping[str, GuestUsage]]) -> None:
        """Do nothing: the load of this machine is caused by all simulated hosts together, so it says nothing about one
        of them."""


_METER, _LOAD = _IdleMeter(), _NoLoad()


class SharedParts:
    """Objects that all simulated hosts share: *settings*; the *size* of each host; the folder *run* for unix sockets;
    the thread pool *threads* for operations; *lane*, the thread that distributes events to API clients; the event loop
    *loop*."""

    def __init__(self, settings: AgentSettings, size: HostSize, run: Path, threads: ThreadPoolExecutor, lane: EventLane,
                 loop: asyncio.AbstractEventLoop) -> None:
        self.settings, self.size, self.run = settings, size, run
        self.threads, self.lane, self.loop = threads, lane, loop
        self.cells, self.pulse = size.cells(), Pulse(loop)


class SimulatedLocalHost(LocalHost):
    """The ``LocalHost`` (settings, hypervisor, documents, locks) of a simulated host, with a simulated disk."""

    size: HostSize

    def disk_space(self) -> tuple[int, int]:
        """Return the total and free bytes of the simulated disk, computed from the servers' flavors."""
        used = sum(int(server.want["flavor"].get("disk") or 0) for server in self.documents.peek("server"))
        return self.size.disk * GIB, max(0, self.size.disk - used) * GIB


class SimulatedHost(ManagedHost):
    """A simulated host: its agent, its fake hypervisor, and its condition: up; slow (each response is delayed); silent
    (responds only when the condition changes); dead (refuses connections)."""

    def __init__(self, name: str, address: str, parts: SharedParts,
                 find: Callable[[str], SimulatedLinks | None]) -> None:
        state = parts.settings.state_dir / "hosts" / name
        shutil.rmtree(state, ignore_errors=True)  # of an earlier simulation, whose documents are gone
        state.mkdir(parents=True)
        settings = dataclasses.replace(parts.settings, state_dir=state, socket=parts.run / name / "agent.sock",
                                       address_of_host=address)
        hypervisor = SimulatedHypervisor(name, parts.size, parts.cells, settings.socket.parent, parts.loop)
        operations = HostOperations(settings.parallel, parts.threads)
        operations.host = self
        self.links = SimulatedLinks(settings, name, parts.loop, find)
        host = SimulatedLocalHost(settings, hypervisor, name, MemoryDocuments(state), operations, self.links)
        host.size, host.meter, host.load = parts.size, _METER, _LOAD
        super().__init__(host)
        host.metadata_status = lambda: {"bridges": [], "reason": ""}
        host.port_security_status = lambda: {"ports": 0, "reason": ""}
        self.power_sync = SimulatedPowerSync(self.drivers, parts.threads, parts.loop)
        self.feed = SimulatedFeed(host, parts.lane, parts.pulse)
        self.feed.boot = str(uuid.uuid4())
        self.condition, self.delay = UP, 0.0
        #: Open connections, and the event that answers wait for while the host is silent.
        self.transports: WeakSet[asyncio.BaseTransport] = WeakSet()
        self._answers = asyncio.Event()
        self._answers.set()
        host.hypervisor.on_event(host.count_reboot)
        self.power_sync.start()

    def set_condition(self, condition: str, delay: float = 0.0) -> None:
        """Set the condition to up, silent, slow or dead. Must be called in the event loop. *delay*: seconds before each
        response of a slow host."""
        former, self.condition, self.delay = self.condition, condition, delay if condition == SLOW else 0.0
        self.feed.answers = condition != SILENT
        if condition == SILENT:
            self._answers.clear()
        else:
            self._answers.set()
        if condition == DEAD:
            self.cut()
        elif former == DEAD:
            self._boot()

    def cut(self) -> None:
        """Abort all TCP and unix socket connections to the host."""
        for transport in list(self.transports):
            transport.abort()  # type: ignore[attr-defined]
        self.feed.cut()

    async def wait_to_answer(self) -> None:
        """Wait before a response is sent: if the host is slow, for the delay passed to ``set_condition``; if it is
        silent, until the condition changes."""
        if self.condition == SLOW:
            await asyncio.sleep(self.delay)
        await self._answers.wait()

    def rename(self, name: str) -> None:
        """Change the name that the host reports, as after a change of its hostname, and abort its connections."""
        self.host.name = self.links.host_name = name
        self.feed.forget_usage()
        self.cut()

    def _boot(self) -> None:
        fake: Any = self.host.hypervisor
        fake.host_reboots()
        self.feed.boot = str(uuid.uuid4())
        self.feed.forget_usage()
        self.power_sync.boot()

    def close(self) -> None:
        """Stop the host's operations and connections, and remove its files."""
        self.feed.close()
        self.host.operations.close()
        self.host.links.close()
        self.host.hypervisor.close()
        shutil.rmtree(self.host.settings.state_dir, ignore_errors=True)
