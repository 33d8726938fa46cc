# SPDX-License-Identifier: GPL-3.0-or-later
"""A simulation of hosts in a thread of the test."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import yaml

from magnetar_agent.settings import AgentSettings
from magnetar_agent.simulator.hypervisor import HostSize
from magnetar_agent.simulator.serve import SimulationOptions, serve_simulation
from magnetar_core.http.client import Client
from magnetar_core.http.transport import unix_connection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from magnetar_agent.simulator.simulation import Simulation


class RunningSimulation:
    """A running simulation of hosts, with its files in *state*."""

    simulation: Simulation
    stop: Callable[[], None]

    def __init__(self, state: Path) -> None:
        self.state = state
        self.begun = threading.Event()

    def begin(self, simulation: Simulation, stop: Callable[[], None]) -> None:
        """Store the simulation; called in its thread."""
        self.simulation, self.stop = simulation, stop
        self.begun.set()

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings of a control plane for the simulated hosts."""
        loaded: dict[str, Any] = yaml.safe_load((self.state / "hosts.yml").read_text())
        return loaded

    def client(self, name: str) -> Client:
        """Return a client of the agent of the host *name*."""
        settings = self.settings
        return Client(settings["hosts"][name], ca_cert=settings.get("agent_ca_cert"), timeout=60,
                      client_cert=settings.get("agent_client_cert"), client_key=settings.get("agent_client_key"))

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return status and document of a request to the simulation's own API."""
        connection = unix_connection(str(self.state / "simulation.sock"), 60)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()


@contextmanager
def run_hosts(state: Path, hosts: int = 20, port: int | None = None, **size: Any) -> Iterator[RunningSimulation]:
    """Simulate *hosts* hosts within the context, over TLS on *port* or over unix sockets. Files are in *state*; *size*:
    fields of ``HostSize``."""
    running = RunningSimulation(state)
    options = SimulationOptions(hosts, port=port, size=HostSize(**size), state_dir=state)
    work = serve_simulation(options, AgentSettings(wait=30), state, running.begin)
    thread = threading.Thread(target=asyncio.run, args=(work,), name="simulation")
    thread.start()
    try:
        assert running.begun.wait(120)
        yield running
    finally:
        running.simulation.parts.loop.call_soon_threadsafe(running.stop)
        thread.join(60)
        assert not thread.is_alive()
