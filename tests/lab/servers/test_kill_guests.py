# SPDX-License-Identifier: GPL-3.0-or-later
"""API, conductors and agent are killed, and QEMUs hang, while ten servers with real guests live; see tests/kill."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import insert

from magnetar_control.store.engine import tables
from magnetar_control.store.engine.database import utc_now
from tests.kill.story import live
from tests.kill.world import World
from tests.support.lab.agent import LabAgent, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.lab
OPERATIONS, PEOPLE, MOST = 60, 5, 2
#: MiB of memory, by flavor.
FLAVORS = {"1": 128, "2": 160}


class RealWorld(World):
    """A ``World`` whose only host is the real libvirt of this machine."""

    def __init__(self, engine: str, agent: LabAgent, image: Path, **settings: Any) -> None:
        super().__init__(engine, 1, network_cidr=agent.cidr, allow_resize_to_same_host=True, **settings)
        self.agent, self.image = agent, image

    def _start_hosts(self) -> None:
        self.hosts = {"labhost": self.agent.endpoint}

    def _first_flavor(self) -> None:
        with self.parts.api_database.write() as connection:
            connection.execute(insert(tables.flavors), [
                {"id": id, "name": f"f{id}", "vcpus": 1, "ram": ram, "disk": 1, "created_at": utc_now()}
                for id, ram in FLAVORS.items()])
        self.admin.image(content=self.image.read_bytes(), disk_format="qcow2")

    def start_agent(self, _name: str) -> None:
        self.agent.launch()

    def kill_agent(self, _name: str) -> None:
        self.agent.kill()

    def process(self, name: str) -> Any:
        return self.agent.process if name in self.hosts else super().process(name)

    def domains(self, _name: str) -> None:
        return None

    def guests(self, _name: str) -> list[str]:
        return sorted(domain.UUIDString() for domain in self.agent.domains() if domain.isActive())

    def hang_guest(self, _name: str, uuid: str) -> Callable[[], None]:
        process = next((pid for pid, words in self.agent.processes().items() if f"-uuid {uuid} " in words), None)
        if process is None:
            return lambda: None

        def go_on() -> None:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)

        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGSTOP)
        return go_on

    def wait_agent(self, _name: str) -> None:
        eventually(self.agent.answers, "the agent answers")


@pytest.fixture(params=[pytest.param(engine, marks=pytest.mark.deep(shard=f"kills with guests, {engine}"))
                        for engine in ("sqlite", "postgres")])
def world(request: pytest.FixtureRequest, guest_image: dict[str, Path]) -> Iterator[RealWorld]:
    # A guest is often asked to power off before it has booted, when it cannot hear that yet.
    with (LabAgent(shutdown_timeout=3, guest_answer_timeout=5) as agent,
          RealWorld(request.param, agent, guest_image["disk"]) as found):
        yield found


def test_nothing_is_stuck_or_leaked(world: RealWorld) -> None:
    live(world, OPERATIONS, PEOPLE, MOST, quick=1)
    assert len(world.agent.domains()) == len(world.agent.names("server"))
