# SPDX-License-Identifier: GPL-3.0-or-later
"""NICs that are virtual functions of a certain card, since a cloud has claimed their bandwidth of that one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.api.serve import check_settings
from magnetar_agent.hardware.pci import pci_warnings
from magnetar_agent.servers.hardware import pci
from magnetar_core import bandwidth
from magnetar_core.errors import Conflict, InvalidField, MagnetarError
from tests.support.agent.pair import WAY, Pair
from tests.unit.agent.conftest import SMALL, Host

from .made_up import MAC, NAME, card, give, netdev, nic, plugged

FIRST, SECOND = f"{NAME}/ens1", f"{NAME}/ens2"


def two(sysfs: Path, *buses: str) -> None:
    """Cards ens1 and ens2, of two virtual functions each."""
    for at, bus in enumerate(buses, 1):
        card(sysfs, bus, 2)
        netdev(sysfs, f"0000:{bus}:00.0", f"ens{at}")


@pytest.fixture
def host(tmp_path: Path) -> Any:
    two(tmp_path / "sys", "31", "41")
    made = Host(tmp_path, sysfs=tmp_path / "sys", pci_device_spec=[{
        "vendor_id": "8086", "physical_network": "Physnet-0"}], resource_provider_bandwidths=[
            "Physnet-0/ens1:10000:", "Physnet-0/ens2:10000:"])
    made.start()
    yield made
    made.agent.close()


def test_it_is_of_its_card(host: Host) -> None:
    told = pci.pci_facts(host.agent.host, pci.assignable_devices(host.agent.host))
    assert told["pci_devices"] == {NAME: {"total": 4, "free": 4}, FIRST: {"total": 2, "free": 2},
                                   SECOND: {"total": 2, "free": 2}}
    host.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1, card="ens2"), nic(2, card="ens1")]})
    assert plugged(host) == {MAC(1): "0x41 0x0", MAC(2): "0x31 0x0"}
    assert not host.ensure("server", "web1", {"networks": [nic(1, card="ens2"), nic(2, card="ens1")]}).changed
    host.ensure("interface_attachment", f"web1:{MAC(3)}", {"server": "web1", **nic(3, card="ens2")})
    assert plugged(host)[MAC(3)] == "0x41 0x1"
    with pytest.raises(Conflict, match=r"needs 1 virtual functions of physical network Physnet-0, card ens2"):
        host.ensure("server", "web2", {"flavor": SMALL, "networks": [nic(4, card="ens2")]})
    with pytest.raises(Conflict, match="card cannot change from ens2 to ens1"):
        host.ensure("server", "web1", {"networks": [nic(1, card="ens1"), nic(2, card="ens1"), nic(3, card="ens2")]})


@pytest.mark.parametrize(("wish", "error", "says"), [
    (nic(1, card="ens9"), Conflict, r"has no virtual function.* of physical network Physnet-0, card ens9"),
    (nic(1, card="ens1", vnic_type="direct-physical"), Conflict, r"has no cards of .*, card ens1"),
    ({"bridge": "br0", "card": "ens1"}, InvalidField, "card: is for NICs of a physical_network")])
def test_what_has_no_card(host: Host, wish: dict[str, Any], error: type[MagnetarError], says: str) -> None:
    with pytest.raises(error, match=says):
        host.ensure("server", "web1", {"flavor": SMALL, "networks": [wish]})


def test_a_card_whose_bandwidth_is_told_no_more(host: Host) -> None:
    """What has it keeps it, and starts."""
    host.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1, card="ens2")], "power": "off"})
    object.__setattr__(host.agent.host.settings, "resource_provider_bandwidths", ())
    assert pci.pci_facts(host.agent.host, pci.assignable_devices(host.agent.host))["pci_devices"] == {NAME: {"total": 4,
                                                                                                             "free": 3}}
    host.ensure("server", "web1", {"power": "running"})
    assert plugged(host, live=True) == {MAC(1): "0x41 0x0"}


@pytest.mark.parametrize("type", ["cold", "live"])
def test_it_is_of_another_card_where_it_goes(pair: Pair, tmp_path: Path, type: str) -> None:
    for kvm, buses in ((pair.one, ("31", "41")), (pair.two, ("b1", "c1"))):
        two(tmp_path / buses[0], *buses)
        give(kvm, tmp_path / buses[0], physical_network="Physnet-0")
    pair.make(flavor=SMALL, networks=[nic(1, card="ens2")])
    assert plugged(pair.one) == {MAC(1): "0x41 0x0"}
    with pytest.raises(Conflict, match="card ens9"):
        pair.migrate(type=type, cards={MAC(1): "ens9"})
    assert pair.migrate(type=type, cards={MAC(1): "ens1"})[-4:] == WAY[-4:]
    assert plugged(pair.two) == {MAC(1): "0xb1 0x0"}
    [mine] = pair.two.side().client.get("server", "web1")["networks"]
    assert mine["card"] == "ens1"


def test_without_a_word_of_cards_it_is_of_any(pair: Pair, tmp_path: Path) -> None:
    for kvm, buses in ((pair.one, ("31", "41")), (pair.two, ("b1",))):
        two(tmp_path / buses[0], *buses)
        give(kvm, tmp_path / buses[0], physical_network="Physnet-0")
    pair.make(flavor=SMALL, networks=[nic(1, card="ens2")])
    assert pair.migrate(type="cold") == WAY
    assert plugged(pair.two) == {MAC(1): "0xb1 0x0"}


@pytest.mark.parametrize(("setting", "says"), [
    (["physnet0:10:", "physnet0/ens1:10:", "physnet0/ens2:20:", "rp_tunnelled::5"], ""),
    (["physnet0/ens1:10:10"], "cards promise their virtual functions only what guests send"),
    (["physnet0/ens1::10"], "cards promise their virtual functions only what guests send"),
    (["rp_tunnelled/ens1:10:"], "of a physical network"),
    (["physnet0/ens1:10"], "must be NETWORK:EGRESS:INGRESS or NETWORK/CARD:EGRESS:"),
    (["physnet0/:10:"], "must be NETWORK:EGRESS:INGRESS or"),
    (["physnet0/averylongdevname:10:"], "must be NETWORK:EGRESS:INGRESS or"),
    (["physnet0:10:", "physnet0:11:"], "physnet0 is there twice"),
    (["physnet0/ens1:10:", "physnet0/ens1:11:"], "physnet0/ens1 is there twice"),
    (["physnet0/ens1:2147483648:"], "numbers from 1 to")])
def test_what_the_setting_may_say(setting: list[str], says: str) -> None:
    found = bandwidth.check_bandwidth_setting(setting)
    assert (says in found) if says else (found == "")


def test_a_card_that_is_not_there_is_warned_of(host: Host) -> None:
    settings = host.agent.host.settings
    assert not any("resource_provider_bandwidths" in one for one in check_settings(settings))
    [said] = [one for one in pci_warnings(settings.sysfs, settings.pci_device_spec, (), ["Physnet-0", "Physnet-0/ens7"])
              if "resource_provider_bandwidths" in one]
    assert "no virtual function of a card ens7" in said and "There are Physnet-0/ens1, Physnet-0/ens2." in said
