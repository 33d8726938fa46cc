# SPDX-License-Identifier: GPL-3.0-or-later
"""NICs that are vDPA devices, whose packets come out at representors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.host.networks import RepresentorPort
from magnetar_agent.servers import guest_data
from magnetar_core.errors import Conflict, HypervisorError, InvalidField, MagnetarError
from tests.support.agent.pair import WAY, Pair
from tests.unit.agent.conftest import SMALL, Host

from .made_up import MAC, PORT, SETTINGS, free, nic, noted, part, port_nic, representor, switched

VDPA_NAME = "vdpa:rp_tunnelled"


def test_a_vdpa_nic(vdpa: Host) -> None:
    assert free(vdpa) == {"any": {"total": 0, "free": 0}, VDPA_NAME: {"total": 2, "free": 2}}
    vdpa.ensure("server", "web1", {"flavor": SMALL, "networks": [port_nic(1)]})
    [card] = part(vdpa, "interface")
    assert card.get("type") == "vdpa" and {one.tag: dict(one.attrib) for one in card} == {
        "mac": {"address": MAC(1)}, "source": {"dev": "/dev/vhost-vdpa-0"}, "model": {"type": "virtio"},
        "alias": {"name": "ua-nic-52-54-00-00-00-01-0000-31-02-0"}}
    assert vdpa.fake.representors == {"ens1f0_0": representor(vdpa, 1)} and vdpa.fake.functions == {}
    assert not vdpa.ensure("server", "web1", {"networks": [port_nic(1)]}).changed
    assert vdpa.show()["nic_devices"][MAC(1)]["pci_slot"] == "0000:31:02.0"
    vdpa.ensure("server", "web2", {"flavor": SMALL, "networks": [port_nic(2)]})
    with pytest.raises(Conflict, match="needs 1 vDPA devices of networks between hosts, and host .* has 0 free"):
        vdpa.ensure("server", "web3", {"flavor": SMALL, "networks": [port_nic(3)]})
    vdpa.ensure("server", "web1", None)
    assert list(vdpa.fake.representors) == ["ens1f0_1"] and noted(vdpa) == ["0000:31:02.1"]


def test_a_vdpa_nic_comes_and_goes_while_the_guest_runs(vdpa: Host) -> None:
    vdpa.ensure("server", "web1", {"flavor": SMALL, "networks": []})
    vdpa.ensure("server", "web1", {"networks": [port_nic(1)]})
    assert len(part(vdpa, "interface", live=True)) == 1
    assert vdpa.fake.representors == {"ens1f0_0": representor(vdpa, 1)}
    vdpa.ensure("server", "web1", {"networks": []})
    assert part(vdpa, "interface", live=True) == [] and vdpa.fake.representors == {} and noted(vdpa) == []


def test_devices_that_the_host_calls_otherwise_after_a_boot(vdpa: Host, tmp_path: Path) -> None:
    """The guest gets its own, and not what has its name now."""
    vdpa.ensure("server", "web1", {"flavor": SMALL, "networks": [port_nic(1)]})
    vdpa.ensure("server", "web1", {"power": "off"})
    devices = tmp_path / "sys/bus/pci/devices"
    for at in (0, 1):
        made = devices / f"0000:31:02.{at}/vdpa{at}"
        (made / f"vhost-vdpa-{at}").rename(made / f"vhost-vdpa-{1 - at}")
    vdpa.ensure("server", "web1", {"power": "running"})
    assert part(vdpa, "interface/source", live=True)[0].get("dev") == "/dev/vhost-vdpa-1"
    assert vdpa.show()["pci_devices"] == {"0000:31:02.0": MAC(1)}


def test_a_guest_sees_a_port_of_ovn(vdpa: Host) -> None:
    vdpa.ensure("server", "web1", {"flavor": SMALL, "networks": [port_nic(1)]})
    document = vdpa.agent.host.documents.find("server", "web1")
    assert document is not None
    assert [(one.mac, one.type) for one in guest_data.build_guest(vdpa.agent.host, document).nics] == [(MAC(1), "ovs")]


def test_what_a_vdpa_device_needs_of_its_host(vdpa: Host, tmp_path: Path) -> None:
    vdpa.ensure("server", "web1", {"flavor": SMALL, "networks": [port_nic(1)], "power": "off"})
    (tmp_path / "sys/class/net/ens1f0_0").rename(tmp_path / "away")
    with pytest.raises(Conflict, match="0000:31:02.0 of host .* has no representor, .* mode switchdev"):
        vdpa.ensure("server", "web1", {"power": "running"})
    (tmp_path / "sys/bus/vdpa/devices/vdpa0").unlink()  # then it is a virtual function like others, and of no network
    vdpa.ensure("server", "web1", {"power": "running"})
    assert vdpa.show()["pci_devices"] == {"0000:31:02.1": MAC(1)}
    assert part(vdpa, "interface/source", live=True)[0].get("dev") == "/dev/vhost-vdpa-1"
    assert list(vdpa.fake.representors) == ["ens1f0_1"]


@pytest.mark.parametrize(("fields", "error", "says"), [
    ({"networks": [{**port_nic(1), "port": None}]}, InvalidField, "port: must be"),
    ({"networks": [nic(1, physical_network="rp_tunnelled", vnic_type="vdpa")]}, InvalidField,
     r"networks\[0\].port: must name a port of OVN for vnic_type vdpa"),
    ({"networks": [{"port": PORT(1), "physical_network": "rp_tunnelled", "port_security": False}]}, InvalidField,
     "must name either a network, a bridge, a port or a physical network"),
    ({"networks": [port_nic(1, vlan=7)]}, InvalidField, "vlan: must be left out for vnic_type vdpa"),
    ({"networks": [port_nic(1, model="e1000")]}, InvalidField, "model: must be virtio for vnic_type vdpa"),
    ({"networks": [port_nic(1, port_security=False)]}, InvalidField, "port_security: is OVN's"),
    ({"networks": [port_nic(1, physical_network="Physnet-0")]}, Conflict,
     "has no vDPA devices of physical network Physnet-0; of such devices it has vDPA devices of networks between"),
    ({"networks": [nic(1, physical_network="rp_tunnelled")]}, Conflict, "has no virtual functions of networks between"),
    ({"networks": [], "hardware": {"pci_alias": "any:1"}}, MagnetarError, "PCI devices of alias any"),
])
def test_what_is_refused_of_vdpa(vdpa: Host, fields: dict[str, Any], error: type[MagnetarError], says: str) -> None:
    with pytest.raises(error, match=says):
        vdpa.ensure("server", "web1", {"flavor": SMALL, **fields})
    assert vdpa.fake.representors == {} and free(vdpa)[VDPA_NAME]["free"] == 2


def test_a_cold_move_never_has_its_port_at_both_hosts(two: Pair, at_source: list[dict[str, RepresentorPort]]) -> None:
    """The representor of the source is pulled out before that of the target is plugged in."""
    two.make(flavor=SMALL, networks=[port_nic(1)])
    assert list(two.one.fake.representors) == ["ens1f0_0"]
    assert two.migrate(type="cold") == WAY
    assert at_source == [{}] and list(two.two.fake.representors) == ["ens1f0_0"]
    assert noted(two.one) == [] and noted(two.two) == ["0000:b1:02.0"]


def test_a_representor_that_stays_keeps_its_server(two: Pair) -> None:
    """It does not move then, and its guest runs again where it was."""
    id = two.make(flavor=SMALL, networks=[port_nic(1)])
    two.one.fake.fail_next("plug_representor", HypervisorError("The agent could not pull out ens1f0_0."))
    with pytest.raises(MagnetarError, match="could not pull out"):
        two.migrate(type="cold")
    assert two.one.runs(id) and not two.two.runs(id)
    assert list(two.one.fake.representors) == ["ens1f0_0"] and noted(two.one) == ["0000:31:02.0"]
    two.migrate(type="cold")
    assert two.two.runs(id) and two.one.fake.representors == {} and list(two.two.fake.representors) == ["ens1f0_0"]


def test_an_interface_attachment_by_vdpa(vdpa: Host) -> None:
    vdpa.ensure("server", "web1", {"flavor": SMALL, "networks": []})
    shown = vdpa.ensure("interface_attachment", "web1:1", {"server": "web1", **port_nic(1)}).resource
    assert shown is not None and (shown["vnic_type"], shown["port"]) == ("vdpa", PORT(1))
    assert vdpa.fake.representors == {"ens1f0_0": representor(vdpa, 1)}
    vdpa.ensure("interface_attachment", f"web1:{MAC(1)}", None)
    assert vdpa.fake.representors == {}


def test_vdpa_of_a_physical_network(tmp_path: Path) -> None:
    switched(tmp_path / "sys")
    host = Host(tmp_path, sysfs=tmp_path / "sys", **SETTINGS)
    host.start()
    try:
        assert free(host) == {"vdpa:Physnet-0": {"total": 2, "free": 2}}
    finally:
        host.agent.close()
