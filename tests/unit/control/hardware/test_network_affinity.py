# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers with NUMA cells of a cloud near the cards of their networks, on whichever host they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from magnetar_agent.fake import FakeHypervisor
from magnetar_control import serve
from magnetar_control.services.network.engine.fake_engine import FakeEngine
from tests.support.agent.placement import CELLS
from tests.support.control.hardware import act
from tests.unit.control.moves.clouds import at
from tests.unit.control.moves.inside import Inside

pytestmark = pytest.mark.slow
#: Near which cell of each host the card of physnet0 is, and that of the networks between hosts.
NEAR = {"kvm1": (0, 1), "kvm2": (1, 0)}


class Near(Inside):
    """Hosts that say near which cells their cards are."""

    def agent_of(self, name: str) -> dict[str, Any]:
        physical, tunnels = NEAR[name]
        return {"physical_network_numa_nodes": {"physnet0": [physical]}, "tunnel_numa_nodes": [tunnels]}


@pytest.fixture(scope="module")
def cloud() -> Iterator[Near]:
    with patch.object(FakeHypervisor, "cells", CELLS), patch.object(
            serve, "engine_of", lambda _settings: FakeEngine()), Near(hosts=2) as made:
        made.admin.flavor("cells", {"hw:numa_nodes": "1"})
        made.networks = {}  # type: ignore[attr-defined]
        for number, (name, more) in enumerate({
                "physical": {"provider:network_type": "flat", "provider:physical_network": "physnet0"},
                "between": {"provider:network_type": "ovn"}}.items()):
            id = made.admin.post("/network/v2.0/networks", {"network": {"name": name, **more}}).json["network"]["id"]
            made.networks[name] = id  # type: ignore[attr-defined]
            assert made.admin.post("/network/v2.0/subnets", {"subnet": {
                "network_id": id, "cidr": f"10.{number}.0.0/24", "ip_version": 4}}).status == 201
        made.admin.image()
        yield made


def cell(cloud: Near, id: str) -> tuple[str, int]:
    """The host that a server is on, and which of its cells."""
    ((host, found),) = [one for one in at(cloud, id).items() if one[1]["power_state"] != "missing"][-1:]
    [one] = found["placement"]["cells"]
    return host, int(one["host"])


@pytest.mark.parametrize(("network", "place"), [("physical", 0), ("between", 1)])
@pytest.mark.parametrize("host", NEAR)
def test_near_its_network(cloud: Near, network: str, place: int, host: str) -> None:
    made = cloud.admin.boot("web1", "2.74", flavorRef="cells", host=host,
                            networks=[{"uuid": cloud.networks[network]}])  # type: ignore[attr-defined]
    assert made["status"] == "ACTIVE", made
    assert cell(cloud, made["id"]) == (host, NEAR[host][place])
    cloud.admin.delete(f"/v2.1/servers/{made['id']}")
    assert cloud.admin.settled(made["id"]) is None


def test_also_where_it_moves_to(cloud: Near) -> None:
    made = cloud.admin.boot("web1", "2.74", flavorRef="cells", host="kvm1",
                            networks=[{"uuid": cloud.networks["physical"]}])  # type: ignore[attr-defined]
    assert cell(cloud, made["id"]) == ("kvm1", 0)
    act(cloud.admin, made["id"], "migrate", {"host": "kvm2"}, "VERIFY_RESIZE")
    act(cloud.admin, made["id"], "confirmResize", None, "ACTIVE")
    assert cell(cloud, made["id"]) == ("kvm2", 1)
    cloud.admin.delete(f"/v2.1/servers/{made['id']}")
    assert cloud.admin.settled(made["id"]) is None
