# SPDX-License-Identifier: GPL-3.0-or-later
"""OpenStack's own clients, unmodified, drive real guests of a cloud that is embedded in one host: the stories of
tests/cases/clients/openstack.yml and of sdk.py, which test_site.py plays in a cloud of two cells. So do
python-novaclient and apache-libcloud."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from tests.support.lab.agent import LabAgent
from tests.support.lab.clients import Clients, both
from tests.support.lab.plane import LabControl
from tests.support.other_clients import libcloud_life, made_by, nova_life, novaclient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: The SDK warns of its own parts. test_site.py plays the same stories in a larger cloud.
pytestmark = [pytest.mark.lab, pytest.mark.deep(shard="images and clients of one host"),
              *(pytest.mark.filterwarnings(f"ignore::Warning:{name}")
                for name in ("openstack", "novaclient", "libcloud"))]


@pytest.fixture
def control() -> Iterator[LabControl]:
    # A guest is often asked to power off before it has booted, when it cannot hear that yet.
    with LabAgent(shutdown_timeout=5, spice=True) as agent, LabControl(agent) as made:
        yield made


def test_lives_by_both_clients(control: LabControl, guest_image: dict[str, Path], tmp_path: Path) -> None:
    clients, host = Clients(control.folder / "clouds.yaml", tmp_path), "labhost"
    both(clients, guest_image["disk"], {"host": host, "other": host}, {"host": host})


def test_lives_by_novaclient_and_libcloud(control: LabControl, guest_image: dict[str, Path]) -> None:
    for command in (f"image create --disk-format qcow2 --file {guest_image['disk']} guest",
                    "flavor create --ram 128 --vcpus 1 --disk 0 small"):
        made = control.openstack(command)
        assert made.returncode == 0, made.stdout
    password = yaml.safe_load((control.folder / "clouds.yaml").read_text())["clouds"]["magnetar"]["auth"]["password"]
    with novaclient(control.port, password) as nova, made_by(nova) as server:
        nova_life(nova, server)
    libcloud_life(control.port, password)
