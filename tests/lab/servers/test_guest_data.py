# SPDX-License-Identifier: GPL-3.0-or-later
"""What a guest reads of itself in its config drive is true of the machine that it runs in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from magnetar_agent.virt.domain import domain
from tests.support.lab.agent import LabAgent
from tests.support.lab.guest_data import SIZES, TOLD

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.lab

MAC, LATER = "52:54:00:4c:47:01", "52:54:00:4c:47:02"


@pytest.fixture(scope="module")
def lab(guest_image: dict[str, Path]) -> Iterator[LabAgent]:
    """An agent with a network and a disk image."""
    with LabAgent(shutdown_timeout=20) as made:
        made.import_image("disk", guest_image["disk"])
        made.ensure("network", f"iso-{made.mark}", {"mode": "isolated", "cidr": made.cidr})
        yield made


def meta_data(lab: LabAgent) -> Any:
    """What the guest reads."""
    return json.loads(lab.sh("web", "cat /config/openstack/latest/meta_data.json"))


def place(lab: LabAgent, device: str) -> str:
    """The PCI address of a device in the guest's eyes."""
    path = lab.sh("web", f"readlink -f {device}").strip()
    return [part for part in path.split("/") if part.count(":") == 2][-1]


@pytest.fixture(scope="module")
def web(lab: LabAgent) -> set[str]:
    """What the server web says when it is up."""
    lab.ensure("server", "web", {
        "flavor": SIZES, "image": "disk", "networks": [{"network": f"iso-{lab.mark}", "mac": MAC, "tag": "front"}],
        "vendor_data": {"static": {"site": "lab"}, "dynamic": {"join": {"t": 1}}}, "admin_pass": "Sesame-42",
        "guest_data": TOLD,
        "block_device_mapping": [{"source_type": "blank", "destination_type": "volume", "volume_size": 1, "tag": "db",
                                  "delete_on_termination": True}]})
    return set(lab.up("web"))


def test_devices_are_where_the_drive_says(lab: LabAgent, web: set[str]) -> None:
    assert {"hostname=web-eins.novalocal", "key=ssh-ed25519 AAAA me"} <= web
    meta = meta_data(lab)
    assert (meta["name"], meta["launch_index"], meta["admin_pass"]) == ("Web Eins", 3, "Sesame-42")
    nic, disk = meta["devices"]
    assert (nic["tags"], nic["mac"], nic["bus"]) == (["front"], MAC, "pci")
    assert nic["address"] == place(lab, "/sys/class/net/eth0/device")
    assert (disk["tags"], disk["bus"]) == (["db"], "pci")
    serial = lab.sh("web", "cat /sys/block/vdb/serial").strip()
    assert disk["serial"] == serial and disk["address"] == place(lab, "/sys/block/vdb/device")
    assert json.loads(lab.sh("web", "cat /config/openstack/latest/vendor_data2.json")) == {"join": {"t": 1}}
    assert lab.sh("web", "ls /config/ec2 /config/openstack/2013-04-04").split() == [
        "/config/ec2:", "2009-04-04", "latest", "/config/openstack/2013-04-04:", "meta_data.json"]
    lab.ensure("interface_attachment", f"web:{LATER}", {
        "server": "web", "network": f"iso-{lab.mark}", "mac": LATER, "tag": "back"})
    found = {one.mac: one.place for one in domain.parse_domain_xml(lab.domain("web").XMLDesc()).nics}
    assert found[LATER] == ("pci", place(lab, "/sys/class/net/eth1/device"))


# On a fake host tests/unit/agent/metadata/test_guest_data.py reads the same in the drive; that it is read: the test
# above.
@pytest.mark.deep(shard="rescues of one host")
def test_a_rescue_is_told_a_password_of_its_own(lab: LabAgent, web: set[str]) -> None:
    boots = lab.boots("web")
    lab.ensure("server", "web", {"rescue": {"image": "disk"}, "admin_pass": "Rescue-1"})
    lab.up("web", boots + 1)
    assert meta_data(lab)["admin_pass"] == "Rescue-1"
    lab.ensure("server", "web", {"rescue": None})
    lab.up("web", boots + 2)
    assert meta_data(lab)["admin_pass"] == "Sesame-42"
    lab.ensure("flavor", "big", {**SIZES, "ram": 160})
    lab.ensure("server", "web", {"flavor": "big", "guest_data": {**TOLD, "flavor": "big"}}, allow_reboot=True)
    lab.up("web", boots + 3)
    assert "admin_pass" not in meta_data(lab)
    assert json.loads(lab.sh("web", "cat /config/ec2/latest/meta-data.json"))["instance-type"] == "big"
    lab.delete("server", "web")
    assert lab.orphans() == {"domains": [], "files": []}
