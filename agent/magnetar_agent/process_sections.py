# SPDX-License-Identifier: GPL-3.0-or-later
"""The sections of the agent and of the simulator in the report on SIGUSR2 (``magnetar_core.daemon.report``)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from magnetar_core.daemon.report import REPORT

from .settings import describe_agent_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from magnetar_agent.agent import Agent
    from magnetar_agent.simulator.simulation import Simulation

    from .settings import AgentSettings


def report_agent(agent: Agent) -> None:
    """From now on, describe *agent* in reports of this process. The agent lives as long as the process."""
    for title, describe in AGENT_SECTIONS.items():
        REPORT.add_section(title, partial(describe, agent))


def report_simulation(simulation: Simulation) -> None:
    """From now on, describe *simulation* in reports of this process."""
    for title, describe in SIMULATOR_SECTIONS.items():
        REPORT.add_section(title, partial(describe, simulation))


def _setting_lines(settings: AgentSettings) -> Iterator[str]:
    """Yield a line for each setting. The settings of the agent contain no secrets, only the names of files that contain
    secrets."""
    for setting in describe_agent_settings(settings):
        yield f"{setting['key']}: {setting['value']}"


def _operation_lines(agent: Agent) -> Iterator[str]:
    """Yield the running operations with their progress."""
    for operation in agent.host.operations.list():
        if operation.ended_at is None:
            progress = ", ".join(f"{name} {value}" for name, value in operation.progress.items() if value)
            yield f"{operation.name} {operation.kind} {operation.key}, since {operation.started_at}, " \
                  f"{operation.request_id}, {operation.id}: {progress or 'no progress yet'}"


def _resource_lines(agent: Agent) -> Iterator[str]:
    """Yield the number of documents of each resource type."""
    for kind in sorted(agent.drivers.by_noun):
        if count := agent.host.documents.count(kind):
            yield f"{kind}: {count}"


def _host_lines(simulation: Simulation) -> Iterator[str]:
    """Yield the numbers of simulated hosts and servers."""
    for name, value in simulation.summary().items():
        yield f"{name}: {value}"


#: The sections by title, in the order of the report. A new section is added here.
AGENT_SECTIONS: Mapping[str, Callable[[Agent], Iterable[str]]] = {
    "Settings": lambda agent: _setting_lines(agent.host.settings), "Operations": _operation_lines,
    "Resources": _resource_lines}
SIMULATOR_SECTIONS: Mapping[str, Callable[[Simulation], Iterable[str]]] = {
    "Settings": lambda simulation: _setting_lines(simulation.parts.settings), "Hosts": _host_lines}
