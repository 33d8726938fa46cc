# SPDX-License-Identifier: GPL-3.0-or-later
"""What virtual functions were set to is taken from them before others have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar_agent.host.networks import RepresentorPort
from magnetar_agent.reconcile.locks import CHOICES
from magnetar_agent.servers.nics import function_settings
from magnetar_core.errors import HypervisorError
from tests.unit.agent.conftest import SMALL, Host

from .made_up import MAC, PORT, SETTINGS, card, leave_set, netdev, nic, noted, port_nic, representor, switched

REFUSED = HypervisorError("The agent could not set virtual function 1 of ens1f0.")


def test_a_function_that_cannot_be_given_back_stops_nothing_else(trusting: Host,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither another server's start, nor what the agent has to put right when it starts."""
    leave_set(trusting, 1, "max_tx_rate")
    settle = trusting.fake.set_function

    def refuse(card: str, number: int, settings: dict[str, str]) -> None:
        if number == 1:
            raise REFUSED
        settle(card, number, settings)

    with monkeypatch.context() as patched:
        patched.setattr(trusting.fake, "set_function", refuse)
        trusting.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1, trusted=True)]})
        for driver in trusting.agent.drivers:
            driver.sweep(trusting.agent.host)
        trusting.ensure("server", "web1", None)
        assert noted(trusting) == ["0000:31:02.1"]
        with pytest.raises(HypervisorError, match="virtual function 1"):  # nobody starts with what it is not to have
            trusting.ensure("server", "web2", {"flavor": SMALL, "networks": [nic(2)]})
    trusting.ensure("server", "web2", {"flavor": SMALL, "networks": [nic(2)]})
    assert trusting.fake.functions["ens1f0", 1] == {"max_tx_rate": "0"} and noted(trusting) == []


def test_nobody_waits_for_a_card_to_choose(trusting: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_set(trusting, 1, "trust")
    seen = []
    monkeypatch.setattr(trusting.fake, "set_function",
                        lambda *_args: seen.append(trusting.agent.host.locks.held(*CHOICES)))
    function_settings.reset_free_functions(trusting.agent.host)
    assert seen == [False]


def test_a_device_of_an_alias_is_as_usual_too(tmp_path: Path) -> None:
    """Also where its former server had it as a trusted NIC, and the agent died before it gave it back."""
    sysfs = tmp_path / "sys"
    card(sysfs, "31", 1)
    netdev(sysfs, "0000:31:00.0", "ens1f0")
    host = Host(tmp_path, sysfs=sysfs, **SETTINGS, pci_alias=[
        {"name": "any", "vendor_id": "8086", "device_type": "type-VF"}])
    host.start()
    try:
        leave_set(host, 0, "trust")
        host.ensure("server", "web1", {"flavor": SMALL, "networks": [], "hardware": {"pci_alias": "any:1"}})
        assert host.show()["pci_devices"] == {"0000:31:02.0": "any"}
        assert host.fake.functions == {("ens1f0", 0): {"trust": "off"}} and noted(host) == []
    finally:
        host.agent.close()


def test_a_trusted_function_of_a_card_that_is_a_switch(vdpa: Host) -> None:
    """Its card does not trust it any more either, and who has put its representor somewhere keeps that."""
    leave_set(vdpa, 0, "trust")
    others = vdpa.fake.representors["ens1f0_0"] = RepresentorPort("br-own", PORT(9), MAC(9), "somebody's")
    function_settings.reset_free_functions(vdpa.agent.host)
    assert vdpa.fake.functions == {("ens1f0", 0): {"trust": "off"}} and noted(vdpa) == []
    assert vdpa.fake.representors == {"ens1f0_0": others}
    leave_set(vdpa, 0, "trust")
    vdpa.ensure("server", "web1", {"flavor": SMALL, "networks": [port_nic(1)]})
    assert vdpa.fake.functions == {("ens1f0", 0): {"trust": "off"}}
    assert vdpa.fake.representors == {"ens1f0_0": representor(vdpa, 1)}


def test_a_function_that_was_a_port_of_ovn_is_none_any_more(tmp_path: Path) -> None:
    """For a server that has it as a NIC past OVN, and wants it trusted: what it sends is not the former port's."""
    switched(tmp_path / "sys", functions=1)
    (tmp_path / "sys/bus/vdpa/devices/vdpa0").unlink()
    host = Host(tmp_path, sysfs=tmp_path / "sys", pci_device_spec=[
        {"vendor_id": "8086", "physical_network": "Physnet-0", "trusted": "yes"}])
    host.start()
    try:
        leave_set(host, 0, "port")
        host.fake.functions.clear()
        host.fake.representors["ens1f0_0"] = RepresentorPort("br-int", PORT(9), MAC(9), "gone")
        host.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1, trusted=True)]})
        assert host.fake.representors == {} and host.fake.functions == {("ens1f0", 0): {"trust": "on"}}
    finally:
        host.agent.close()


def test_a_server_that_is_off_gives_back_at_once(vdpa: Host) -> None:
    """Its port may go to a server of another host, where OVN is to find it."""
    vdpa.ensure("server", "web1", {"flavor": SMALL, "networks": [port_nic(1), port_nic(2)]})
    vdpa.ensure("server", "web1", {"power": "off"})
    vdpa.ensure("server", "web1", {"networks": [port_nic(2)]})
    assert list(vdpa.fake.representors.values()) == [representor(vdpa, 2)] and len(noted(vdpa)) == 1
    vdpa.ensure("server", "web1", {"networks": []})
    assert vdpa.fake.representors == {} and noted(vdpa) == []
