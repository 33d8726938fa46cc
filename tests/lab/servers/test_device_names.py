# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of disks: what agent and API say is what a real guest calls them, after a boot and after each hot plug."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.lab.agent import LabAgent, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.lab

MIB = 2**20
SIZES = {"vcpus": 1, "ram": 128, "disk": 1}


@pytest.fixture(scope="module")
def lab(guest_image: dict[str, Path]) -> Iterator[LabAgent]:
    """An agent with an image and three volumes."""
    with LabAgent(shutdown_timeout=20, detach_timeout=20) as made:
        made.import_image("disk", guest_image["disk"])
        for name in ("first", "second", "third"):
            made.ensure("volume", name, {"size": 1})
        yield made


def by_serial(lab: LabAgent) -> dict[str, str]:
    """The guest's names of disks by their serial numbers: what /dev/disk/by-id is made of."""
    said = lab.sh("web", "for b in /sys/block/vd*; do echo $(cat $b/serial) ${b##*/}; done")
    pairs = (line.split() for line in said.splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def own_disks(lab: LabAgent) -> dict[str, int]:
    """Sizes in MiB of the guest's disks by name."""
    return {one["name"]: one["bytes"] // MIB for one in lab.ask("web", "disks")["disks"] if one["name"][:2] == "vd"}


def check(lab: LabAgent, *volumes: str) -> None:
    """Compare the device of each attachment with the guest's name of the disk with its serial number."""
    shown = [lab.show("volume_attachment", f"web:{name}") for name in volumes]
    expected = {one["serial"]: one["device"] for one in shown}
    eventually(lambda: by_serial(lab) == expected, f"the guest has {expected}")


@pytest.mark.parametrize(("flavor", "local"), [
    ({}, {"vda": 1024}), ({"swap": 64}, {"vda": 1024, "vdb": 64}),
    ({"ephemeral": 2, "swap": 64}, {"vda": 1024, "vdb": 2048, "vdc": 64})])
def test_names_are_the_guest_s(lab: LabAgent, flavor: dict[str, int], local: dict[str, int]) -> None:
    lab.ensure("server", "web", {"flavor": {**SIZES, **flavor}, "image": "disk", "block_device_mapping": [
        {"source_type": "volume", "uuid": "first"}]})
    try:
        lab.up("web")
        assert lab.sh("web", "cat /config/openstack/latest/meta_data.json | head -c 1") == "{"
        assert "CD-ROM" in lab.sh("web", "cat /sys/block/sr0/device/model").upper()
        check(lab, "first")
        assert {name: size for name, size in own_disks(lab).items() if name in local} == local
        for name in ("second", "third"):
            lab.ensure("volume_attachment", f"web:{name}", {"server": "web", "volume": name})
        check(lab, "first", "second", "third")
        lab.delete("volume_attachment", "web:second")
        lab.ensure("volume_attachment", "web:second", {"server": "web", "volume": "second"})
        check(lab, "first", "second", "third")
        lab.power("web", "off")
        lab.power("web", "running")
        lab.up("web", 2)
        check(lab, "first", "second", "third")
        assert {name: size for name, size in own_disks(lab).items() if name in local} == local
    finally:
        lab.delete("server", "web")
