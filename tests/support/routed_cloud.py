# SPDX-License-Identifier: GPL-3.0-or-later
"""A cloud on OVN's databases, with an external network for routers, which floating IPs need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.control.cloud import Cloud

from .northbound import LabCentral, missing


@contextmanager
def routed_cloud(folder: Path) -> Iterator[Cloud]:
    """Yield a cloud of one host; OVN's files are in *folder*. Skips the test when OVN is not installed."""
    if missing():
        pytest.skip(missing())
    central = LabCentral(folder)
    try:
        with Cloud(hosts=1, links=True, ovn_northbound=central.start().url, ovn_hosts_wait=0.0) as made:
            yield made
    finally:
        central.stop()


def add_outside_network(cloud: Cloud) -> str:
    """Create the external network ``outside`` for gateways of routers; return its id."""
    made = cloud.admin.post("/network/v2.0/networks", {"network": {
        "name": "outside", "router:external": True, "provider:network_type": "flat",
        "provider:physical_network": "public"}})
    assert made.status == 201, made
    network = str(made.json["network"]["id"])
    made = cloud.admin.post("/network/v2.0/subnets", {"subnet": {
        "network_id": network, "cidr": "203.0.113.0/24", "ip_version": 4, "enable_dhcp": False}})
    assert made.status == 201, made
    return network
