# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts with made-up cards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar_agent.host.networks import RepresentorPort
from tests.support.agent.pair import Pair
from tests.unit.agent.conftest import Host

from .made_up import SETTINGS, card, give, netdev, switched, whole


@pytest.fixture
def big(tmp_path: Path) -> Iterator[Host]:
    """A host with two virtual functions."""
    card(tmp_path / "sys", "31", 2)
    host = Host(tmp_path, sysfs=tmp_path / "sys", **SETTINGS)
    host.start()
    yield host
    host.agent.close()


@pytest.fixture
def equipped(pair: Pair, tmp_path: Path) -> Pair:
    """Two hosts with a virtual function each, at other addresses."""
    for kvm, bus in ((pair.one, "31"), (pair.two, "b1")):
        card(tmp_path / bus, bus, 1)
        give(kvm, tmp_path / bus, physical_network="Physnet-0")
    return pair


@pytest.fixture
def cards(big: Host, tmp_path: Path) -> Host:
    """And a whole card; of the virtual functions the second has a network device."""
    netdev(tmp_path / "sys", "0000:31:02.1", "ens1f0v1")
    whole(tmp_path / "sys")
    return big


@pytest.fixture
def trusting(tmp_path: Path) -> Iterator[Host]:
    """A host with two virtual functions, of which the first may be trusted."""
    sysfs = tmp_path / "sys"
    card(sysfs, "31", 2)
    netdev(sysfs, "0000:31:00.0", "ens1f0")
    host = Host(tmp_path, sysfs=sysfs, pci_device_spec=[
        {"address": "0000:31:02.0", "physical_network": "Physnet-0", "trusted": "true"},
        {"vendor_id": "8086", "physical_network": "Physnet-0"}])
    host.start()
    yield host
    host.agent.close()


@pytest.fixture
def vdpa(tmp_path: Path) -> Iterator[Host]:
    """A host with two vDPA devices, for networks between hosts."""
    switched(tmp_path / "sys")
    host = Host(tmp_path, sysfs=tmp_path / "sys", pci_device_spec=[{"vendor_id": "8086", "physical_network": None}],
                pci_alias=[{"name": "any", "vendor_id": "8086", "device_type": "type-VF"}])
    host.start()
    yield host
    host.agent.close()


@pytest.fixture
def two(pair: Pair, tmp_path: Path) -> Pair:
    """Two hosts with a vDPA device each."""
    for kvm, bus in ((pair.one, "31"), (pair.two, "b1")):
        switched(tmp_path / bus, bus, 1)
        give(kvm, tmp_path / bus, physical_network=None)
    return pair


@pytest.fixture
def at_source(two: Pair, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, RepresentorPort]]:
    """What is plugged in at the first host, each time that something is at the second."""
    plug, found = two.two.fake.plug_representor, list[dict[str, RepresentorPort]]()

    def plugs(netdev: str, wanted: RepresentorPort | None) -> None:
        found.append(dict(two.one.fake.representors))
        plug(netdev, wanted)

    monkeypatch.setattr(two.two.fake, "plug_representor", plugs)
    return found
