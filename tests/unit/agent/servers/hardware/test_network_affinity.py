# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers with NUMA cells near the cards of their networks (rows NET-04 to NET-06)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.fake import FakeHypervisor
from magnetar_agent.host import inventory
from magnetar_agent.settings import AgentSettings
from magnetar_core.errors import Conflict, InvalidSettings
from tests.support.agent.pair import WAY, Pair
from tests.support.agent.placement import CELLS, placed
from tests.unit.agent.conftest import SMALL, Host

PORT = "3f1c7a52-8b1e-4d0c-9a57-0c5f3de1a0{:02x}".format
SETTINGS: dict[str, Any] = {"physical_network_numa_nodes": {"physnet0": [1], "br0": [0]}, "tunnel_numa_nodes": [1]}


@pytest.fixture(autouse=True)
def two_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts of these tests have two cells."""
    monkeypatch.setattr(FakeHypervisor, "cells", CELLS)


@pytest.fixture
def near(tmp_path: Path) -> Iterator[Host]:
    """A host that says near which cells its cards are."""
    host = Host(tmp_path, **SETTINGS)
    host.start()
    yield host
    host.agent.close()


def wish(*networks: str, nodes: int = 1, ram: int = 256) -> dict[str, Any]:
    """A server with NUMA cells and ports of OVN over these networks."""
    return {"flavor": {**SMALL, "vcpus": nodes, "ram": ram}, "image": None, "hardware": {"numa_nodes": nodes},
            "networks": [{"port": PORT(at), "network_affinity": name} for at, name in enumerate(networks)]}


def cells(host: Any, name: str = "web1") -> list[int]:
    return [one["host"] for one in placed(host, name)["cells"]]


def test_what_the_host_tells(near: Host) -> None:
    told = inventory.host_usage(near.agent.host)["numa_cells"]
    assert [one["networks"] for one in told] == [["br0"], ["physnet0", "rp_tunnelled"]]


@pytest.mark.parametrize(("networks", "nodes", "found"), [
    ([], 1, {0}), (["physnet0"], 1, {1}), (["rp_tunnelled", "physnet0"], 1, {1}), (["elsewhere"], 1, {0}),
    (["br0", "physnet0"], 2, {0, 1})])
def test_where_servers_are(near: Host, networks: list[str], nodes: int, found: set[int]) -> None:
    near.ensure("server", "web1", wish(*networks, nodes=nodes))
    assert set(cells(near)) == found


def test_one_cell_cannot_be_near_both(near: Host) -> None:
    with pytest.raises(Conflict, match="it is to be near the networks br0, physnet0, and its cells fit nowhere so"):
        near.ensure("server", "web1", wish("br0", "physnet0"))


def test_a_bridge_says_it_itself(near: Host) -> None:
    object.__setattr__(near.agent.host.settings, "physical_network_numa_nodes", {"br0": (1,)})
    near.ensure("server", "web1", {**wish(), "networks": [{"bridge": "br0"}]})
    assert cells(near) == [1]


def test_it_stays_where_it_is_when_nics_come(near: Host) -> None:
    near.ensure("server", "web1", wish())
    near.ensure("server", "web1", {"networks": wish("physnet0")["networks"]})
    assert cells(near) == [0]


def test_servers_without_cells_are_anywhere(near: Host) -> None:
    near.ensure("server", "web1", {**wish("physnet0"), "hardware": {}})
    assert not near.show()["placement"]


def test_a_move_puts_it_near_the_card_of_the_other_host(pair: Pair) -> None:
    for kvm, at in ((pair.one, 0), (pair.two, 1)):
        object.__setattr__(kvm.agent.host.settings, "physical_network_numa_nodes", {"physnet0": (at,)})
    pair.make(**{name: value for name, value in wish("physnet0").items() if name != "image"})
    assert cells(pair.one) == [0]
    assert pair.migrate(type="cold") == WAY
    assert cells(pair.two) == [1]


@pytest.mark.parametrize(("settings", "why"), [
    ({"physical_network_numa_nodes": [0]}, "must be a mapping of physical networks to lists of NUMA cells"),
    ({"physical_network_numa_nodes": {"physnet0": 0}}, r"must be a list of NUMA cells, such as \[0, 1\]"),
    ({"tunnel_numa_nodes": ["0"]}, "must be a list of NUMA cells")])
def test_settings_that_make_no_sense(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidSettings, match=why):
        AgentSettings(**settings)
