# SPDX-License-Identifier: GPL-3.0-or-later
"""An embedded network service over the fake engine, on a fresh database of each kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from magnetar_control.services.network import EmbeddedNetworks
from magnetar_control.services.network.engine.fake_engine import FakeEngine
from magnetar_control.store.engine.database import Database
from tests.support.control.serving import ADMIN, Asker


@pytest.fixture
def service(database: Database, engine: FakeEngine) -> EmbeddedNetworks:
    """Without networks; its worker writes only when a test says so."""
    found = EmbeddedNetworks(database, default_cidr=None, engine=engine, gateways=["h1", "h2"])
    found.bootstrap()
    engine.claim()
    return found


@pytest.fixture
def lan() -> Callable[..., Any]:
    """``lan(ask, name="lan")``: a network with the subnet 10.1.0.0/24; as *ask* sees it."""

    def make(ask: Asker, cidr: str = "10.1.0.0/24", **fields: Any) -> Any:
        id = ask("POST", "/v2.0/networks", {"network": {"name": "lan", **fields}})["network"]["id"]
        ask("POST", "/v2.0/subnets", {"subnet": {"network_id": id, "cidr": cidr}})
        return ask("GET", f"/v2.0/networks/{id}")["network"]

    return make


@pytest.fixture
def outside(ask: Asker) -> Any:
    """An external network, 192.0.2.0/24."""
    admin = ask.as_(ADMIN)
    network = admin("POST", "/v2.0/networks", {"network": {
        "name": "ext", "provider:network_type": "flat", "provider:physical_network": "ext", "router:external": True}})
    id = network["network"]["id"]
    admin("POST", "/v2.0/subnets", {"subnet": {"network_id": id, "cidr": "192.0.2.0/24", "enable_dhcp": False}})
    return network["network"]
