# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers that are suspended with NICs that are devices of the host: these are unplugged before, and plugged after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.fake import FakeHypervisor
from magnetar_core.errors import Conflict, HypervisorError, InvalidField
from tests.unit.agent.conftest import SMALL, Host

from .made_up import MAC, free, nic, noted, part, plugged, port_nic, representor

NIC = "type-VF:Physnet-0"


def taps(host: Host) -> int:
    return len(part(host, "interface", live=True))


def power(host: Host, word: str) -> None:
    host.ensure("server", "web1", {"power": word})


def test_its_nic_is_unplugged_and_plugged_again(big: Host) -> None:
    big.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1, vlan=7), {"bridge": "br0", "mac": MAC(9)}]})
    power(big, "suspended")
    assert big.show()["power"] == "suspended" and taps(big) == 1 and plugged(big, live=True) == {}
    assert plugged(big) == {MAC(1): "0x31 0x0 vlan 7"} and free(big)[NIC]["free"] == 1  # it stays its own
    assert not big.ensure("server", "web1", {"power": "suspended"}).changed
    result = big.ensure("server", "web1", {"power": "running"})
    assert [step.verb for step in result.steps] == ["record", "start", "plug"]
    assert plugged(big, live=True) == {MAC(1): "0x31 0x0 vlan 7"} and taps(big) == 2
    assert not big.ensure("server", "web1", {"power": "running"}).changed


def test_a_vdpa_nic(vdpa: Host) -> None:
    vdpa.ensure("server", "web1", {"flavor": SMALL, "networks": [port_nic(1)]})
    power(vdpa, "suspended")
    assert taps(vdpa) == 0 and noted(vdpa) == ["0000:31:02.0"]
    power(vdpa, "running")
    assert taps(vdpa) == 1 and vdpa.fake.representors == {"ens1f0_0": representor(vdpa, 1)}


def test_a_whole_card_and_a_macvtap(cards: Host) -> None:
    cards.ensure("server", "web1", {"flavor": SMALL, "networks": [
        nic(1, vnic_type="direct-physical"), nic(2, vnic_type="macvtap")]})
    power(cards, "suspended")
    assert taps(cards) == 0 == len(part(cards, "hostdev", live=True))
    power(cards, "running")
    assert taps(cards) == 1 == len(part(cards, "hostdev", live=True))


def test_a_guest_that_keeps_it_is_not_suspended(big: Host) -> None:
    big.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1), nic(2)]})
    object.__setattr__(big.agent.host.settings, "detach_timeout", 0.1)
    big.fake.deaf.add(big.show()["id"])
    with pytest.raises(Conflict, match="the guest did not let go of it"):
        power(big, "suspended")
    assert big.show()["power_state"] == "running" and len(plugged(big, live=True)) == 2
    big.fake.deaf.clear()
    big.restart()  # it is not tried again by itself
    assert big.show()["power_state"] == "running"
    assert not big.ensure("server", "web1", {"power": "running"}).changed


def test_one_that_could_not_be_saved_has_its_nics_again(big: Host) -> None:
    big.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1)]})
    big.fake.fail_next("save", HypervisorError("no room"))
    with pytest.raises(HypervisorError, match="no room"):
        power(big, "suspended")
    assert plugged(big, live=True) == {MAC(1): "0x31 0x0"}
    big.fake.fail_next("save", HypervisorError("no room"))
    big.fake.fail_next("attach", HypervisorError("nor a slot"))
    with pytest.raises(HypervisorError, match="no room"):
        power(big, "suspended")
    assert plugged(big, live=True) == {}
    power(big, "running")
    assert plugged(big, live=True) == {MAC(1): "0x31 0x0"}


def test_a_paused_one_is_unpaused_first(big: Host) -> None:
    """Its guest cannot let go of anything."""
    big.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1)]})
    power(big, "paused")
    with pytest.raises(Conflict, match="is paused, and has NICs that are devices of its host .* Unpause it first"):
        power(big, "suspended")
    assert big.show()["power_state"] == "paused" == big.show()["power"]


@pytest.mark.parametrize("call", ["start", "attach"])
def test_what_failed_is_done_again(big: Host, call: str) -> None:
    big.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1)]})
    power(big, "suspended")
    big.fake.fail_next(call, HypervisorError("not now"))
    with pytest.raises(HypervisorError, match="not now"):
        power(big, "running")
    power(big, "running")
    assert plugged(big, live=True) == {MAC(1): "0x31 0x0"}


@pytest.mark.parametrize("words", [("off", "running"), ("running",)])
def test_an_agent_that_is_killed_meanwhile(big: Host, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    """The next one knows that the guest is without its NIC."""
    big.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1)]})
    power(big, "suspended")

    def die(*_args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(big.fake, "attach", die)
        with pytest.raises(KeyboardInterrupt):
            power(big, "running")
    big.restart()
    for word in words:
        power(big, word)
    assert plugged(big, live=True) == {MAC(1): "0x31 0x0"}


def test_one_killed_between_two_nics_whose_guest_keeps_the_other(big: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on with both: the one that had gone before is plugged in again, too."""
    big.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1), nic(2)]})
    detach, calls = big.fake.detach, []

    def die(*given: Any) -> None:
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        detach(*given)

    with monkeypatch.context() as patched:
        patched.setattr(big.fake, "detach", die)
        with pytest.raises(KeyboardInterrupt):
            power(big, "suspended")
    assert len(plugged(big, live=True)) == 1
    big.settings["detach_timeout"] = 0.1
    with monkeypatch.context() as patched:
        patched.setattr(FakeHypervisor, "detach", lambda *given: None)
        big.restart()
    assert big.show()["power_state"] == "running" and len(plugged(big, live=True)) == 2
    assert not big.ensure("server", "web1", {"power": "running"}).changed


def test_one_whose_memory_is_dropped_boots_with_all(big: Host, tmp_path: Path) -> None:
    """And has nothing plugged in again."""
    big.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1)]})
    power(big, "suspended")
    big.fake.discard_save(big.show()["id"])
    power(big, "running")
    assert plugged(big, live=True) == {MAC(1): "0x31 0x0"}
    assert not big.ensure("server", "web1", {"power": "running"}).changed


def test_a_device_of_an_alias_keeps_it_from_that(big: Host) -> None:
    aliases = [{"name": "any", "vendor_id": "8086", "device_type": "type-VF"}]
    object.__setattr__(big.agent.host.settings, "pci_alias", aliases)
    big.ensure("server", "web1", {"flavor": SMALL, "networks": [nic(1)], "hardware": {"pci_alias": "any:1"}})
    with pytest.raises(InvalidField, match="cannot be suspended while the server has PCI devices"):
        power(big, "suspended")
