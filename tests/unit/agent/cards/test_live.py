# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers that move while their guest runs, with NICs that are devices of the host: it lets go of these before, and has
others after."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar_agent.host.networks import RepresentorPort
from magnetar_agent.migrations import source
from magnetar_agent.servers.hardware import pci
from magnetar_core.errors import HypervisorError, MagnetarError
from magnetar_core.flows.migrate import Migrate
from tests.support.agent.pair import WAY, Kvm, Pair, killed, quiet
from tests.support.waiting import eventually
from tests.unit.agent.conftest import SMALL

from .made_up import MAC, give, nic, noted, part, plugged, port_nic, whole


def test_a_guest_gets_a_function_of_the_other_host(equipped: Pair) -> None:
    id = equipped.make(flavor=SMALL, networks=[nic(1, vlan=7)])
    assert equipped.migrate(type="live") == WAY
    equipped.check(id, equipped.two)
    assert plugged(equipped.two, live=True) == {MAC(1): "0xb1 0x0 vlan 7"} == plugged(equipped.two)
    assert pci.held_pci_addresses(equipped.one.agent.host) == set()


def test_a_whole_card(pair: Pair, tmp_path: Any) -> None:
    for kvm, bus in ((pair.one, "41"), (pair.two, "b1")):
        whole(tmp_path / bus, f"0000:{bus}:00.0", mac=f"3c:fd:fe:00:00:{bus}")
        give(kvm, tmp_path / bus, physical_network="Physnet-0")
    id = pair.make(flavor=SMALL, networks=[nic(1, vnic_type="direct-physical")])
    assert pair.migrate(type="live") == WAY
    pair.check(id, pair.two)
    [given] = part(pair.two, "hostdev", live=True)
    assert given.find("source/address").get("bus") == "0xb1"  # type: ignore[union-attr]


def test_a_port_of_ovn_is_never_at_both_hosts(two: Pair, at_source: list[dict[str, RepresentorPort]]) -> None:
    id = two.make(flavor=SMALL, networks=[port_nic(1)])
    assert two.migrate(type="live") == WAY
    two.check(id, two.two)
    assert at_source == [{}] and list(two.two.fake.representors) == ["ens1f0_0"]
    assert len(part(two.two, "interface[@type='vdpa']", live=True)) == 1
    assert (noted(two.one), noted(two.two)) == ([], ["0000:b1:02.0"])


@pytest.mark.parametrize("call", ["detach", "plug_representor", "migrate"])
def test_a_move_that_fails_leaves_it_as_it_was(two: Pair, call: str) -> None:
    id = two.make(flavor=SMALL, networks=[port_nic(1)])
    two.one.fake.fail_next(call, HypervisorError("not now"))
    with pytest.raises(MagnetarError, match="not now"):
        two.migrate(type="live")
    assert two.one.runs(id) and not two.two.runs(id)
    assert len(part(two.one, "interface[@type='vdpa']", live=True)) == 1
    assert list(two.one.fake.representors) == ["ens1f0_0"] and noted(two.one) == ["0000:31:02.0"]
    two.migrate(type="live")
    assert two.two.runs(id) and len(part(two.two, "interface[@type='vdpa']", live=True)) == 1
    assert two.one.fake.representors == {}


def test_a_guest_that_keeps_it_stays(two: Pair) -> None:
    id = two.make(flavor=SMALL, networks=[port_nic(1)])
    object.__setattr__(two.one.agent.host.settings, "detach_timeout", 0.1)
    two.one.fake.deaf.add(id)
    with pytest.raises(MagnetarError, match="the guest did not let go of it"):
        two.migrate(type="live")
    two.one.fake.deaf.clear()
    assert two.one.runs(id) and len(part(two.one, "interface[@type='vdpa']", live=True)) == 1


def test_a_paused_one_does_not_go(equipped: Pair) -> None:
    equipped.make(flavor=SMALL, networks=[nic(1)], power="paused")
    with pytest.raises(MagnetarError, match="is paused, and has NICs that are devices of its host"):
        equipped.migrate(type="live")


def test_a_nic_that_cannot_be_plugged_there_is_its_next_change(two: Pair) -> None:
    """The guest has arrived, and runs without it until then."""
    id = two.make(flavor=SMALL, networks=[port_nic(1)])
    two.two.fake.fail_next("attach", HypervisorError("no slot"))
    two.migrate(type="live")
    assert two.two.runs(id) and two.two.knows(id)
    two.two.side().client.ensure("server", id, {"power": "running"})
    assert len(part(two.two, "interface[@type='vdpa']", live=True)) == 1


def test_from_an_earlier_agent_it_moves_cold(equipped: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    tell = source.build_manifest
    monkeypatch.setattr(source, "build_manifest", lambda *given: {
        name: value for name, value in tell(*given).items() if name != "pulls_nics"})
    equipped.make(flavor=SMALL, networks=[nic(1)])
    with pytest.raises(MagnetarError, match="which cannot move while the guest runs from an agent of an earlier vers"):
        equipped.migrate(type="live")


def are_whole(pair: Pair, id: str) -> bool:
    """Whether the guest has its NIC, and OVN finds its port, where it is and nowhere else."""
    there, other = (pair.one, pair.two) if pair.one.runs(id) else (pair.two, pair.one)
    return (there.runs(id) and not other.runs(id) and not other.fake.representors and len(there.fake.representors) == 1
            and len(part(there, "interface[@type='vdpa']", live=True)) == 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["live", "cold"])
@pytest.mark.parametrize(("side", "folder", "method"), [
    *(("source", "hypervisor", method) for method in ("detach", "plug_representor", "migrate", "undefine")),
    *(("target", "hypervisor", method) for method in ("attach", "plug_representor", "resume", "define")),
    *(pytest.param(side, "documents", "write", marks=pytest.mark.deep(shard="agents that die in a move"))
      for side in ("source", "target"))])
def test_an_agent_dies(two: Pair, kind: str, side: str, folder: str, method: str) -> None:
    """At each call in turn; then both start anew, and somebody runs the flow again. There and back."""
    id = two.make(flavor=SMALL, networks=[port_nic(1)])
    here, there = two.one, two.two
    for number in range(1, 40):
        thing = getattr((here if side == "source" else there).agent.host, folder)
        died = killed(thing, method, number, kind, here.side(), there.side())
        assert not (here.fake.representors and there.fake.representors)
        if died:
            two.both(Kvm.restart)
            quiet(two)
        assert not (here.fake.representors and there.fake.representors)
        for _step in Migrate(here.side(), there.side(), "web1", {"type": kind}).steps():
            pass
        assert there.runs(id)
        eventually(lambda: are_whole(two, id))
        if not died:
            return
        here, there = there, here
    raise AssertionError("it never got through")
