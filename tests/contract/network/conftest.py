# SPDX-License-Identifier: GPL-3.0-or-later
"""Engines of networks: the fake one, and OVN's northbound database with ovn-northd beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar_control.services.network.engine.engine import NetworkEngine
from magnetar_control.services.network.engine.fake_engine import FakeEngine
from magnetar_control.services.network.ovn.ovn import OvnEngine
from tests.support.northbound import LabCentral, missing

from .units import eventually


class FakeCentral:
    """A place for ``FakeEngine``, as ``OvnCentral`` is one."""

    def __init__(self) -> None:
        self.engine: Any = FakeEngine()

    def lose(self) -> None:
        self.engine.lose()

    def smart_nic(self, chassis: str, serial: str) -> None:
        """A SmartNIC says that it is there."""
        self.engine.cards[serial] = chassis

    def stop(self) -> None:
        pass


class OvnCentral:
    """OVN's processes, and an engine on them."""

    def __init__(self, folder: Path) -> None:
        self.central = LabCentral(folder).start()
        self.engine: Any = OvnEngine(self.central.url, south=self.central.south)

    def lose(self) -> None:
        """The northbound database is recreated."""
        self.central.end("nb")
        (self.central.folder / "nb.db").unlink()
        self.central.begin("nb")

    def smart_nic(self, chassis: str, serial: str) -> None:
        """As its ovn-controller does."""
        self.central.sb("chassis-add", chassis, "geneve", "192.0.2.1")
        self.central.sb("set", "Chassis", chassis,
                        f'other_config:ovn-cms-options="enable-chassis-as-gw,card-serial-number={serial}"')

    def stop(self) -> None:
        self.engine.close()
        self.central.stop()


def _led(made: Any) -> Iterator[Any]:
    """*made*, when its engine has the right to write."""
    try:
        made.engine.claim()
        eventually(made.engine.leads)
        yield made
    finally:
        made.stop()


@pytest.fixture
def ovn(tmp_path_factory: Any) -> Iterator[OvnCentral]:
    if missing():
        pytest.skip(missing())
    yield from _led(OvnCentral(tmp_path_factory.mktemp("ovn")))


@pytest.fixture(params=["fake", "ovn"])
def place(request: Any) -> Iterator[FakeCentral | OvnCentral]:
    if request.param == "ovn":
        yield request.getfixturevalue("ovn")
    else:
        yield from _led(FakeCentral())


@pytest.fixture
def engine(place: Any) -> NetworkEngine:
    return place.engine
