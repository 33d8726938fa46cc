# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud of four hosts with power devices, whose conductor looks for dead hosts only when a test says so."""

from collections.abc import Iterator

import pytest

from magnetar_control.fencing import fence_agents
from tests.support.fence_agent import FakeFenceAgent
from tests.unit.control.attachments.asking import Owner
from tests.unit.control.moves.inside import Inside

from .dying_hosts import DyingHosts, four_hosts


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> FakeFenceAgent:
    return FakeFenceAgent(tmp_path_factory.mktemp("fence"))


@pytest.fixture(scope="module")
def cloud(agent: FakeFenceAgent) -> Iterator[Inside]:
    """Shared by the tests of a module."""
    with four_hosts(agent) as found:
        yield found


@pytest.fixture
def admin(cloud: Inside, agent: FakeFenceAgent, monkeypatch: pytest.MonkeyPatch) -> Iterator[DyingHosts]:
    """Nobody reaches a host whose agent is stopped. All hosts are up and unfenced afterwards, without servers."""
    monkeypatch.setattr(fence_agents, "PAUSE", 0.01)
    monkeypatch.setattr("magnetar_control.conductor.availability.incident_work.ASK_AGAIN", 0.0)
    for place in ("magnetar_control.conductor.availability.witnesses", "magnetar_agent.api.app"):
        monkeypatch.setattr(f"{place}.is_host_reached", lambda _address, _port: False)
    agent.behave("ok")
    (agent.folder / "asked").unlink(missing_ok=True)
    found = DyingHosts(cloud)
    yield found
    agent.behave("ok")
    found.forget()
    Owner.clear(found)
