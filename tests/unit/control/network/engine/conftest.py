# SPDX-License-Identifier: GPL-3.0-or-later
"""The network service over the fake engine, on SQLite, and what its tests make there."""

from __future__ import annotations

import uuid

import pytest

from magnetar_control.services.network import EmbeddedNetworks, Wait
from tests.support.control.serving import ALICE, Asker

SERVER = str(uuid.uuid4())


@pytest.fixture
def service(sqlite, engine):
    """With the engine, whose worker writes only when a test says so."""
    found = EmbeddedNetworks(sqlite, engine=engine, wait=Wait(0.1, 0.0))
    found.bootstrap()
    engine.claim()
    return found


def new_network(ask: Asker, cidr: str = "10.1.0.0/24", **fields) -> dict:
    network = ask("POST", "/v2.0/networks", {"network": {"name": "lan", **fields}})["network"]
    subnet = {"network_id": network["id"], "cidr": cidr, "ip_version": 4}
    ask("POST", "/v2.0/subnets", {"subnet": subnet})
    return ask("GET", f"/v2.0/networks/{network['id']}")["network"]


def new_port(ask: Asker, network: dict, **fields) -> dict:
    return ask("POST", "/v2.0/ports", {"port": {"network_id": network["id"], **fields}})["port"]


def new_server(service: EmbeddedNetworks, network: dict, context=ALICE, id: str = SERVER) -> dict:
    (nic,) = service.allocate(context, id, service.check_requested(context, [{"uuid": network["id"]}]))
    return nic
