# SPDX-License-Identifier: GPL-3.0-or-later
"""Router advertisements of guests: OVN marks them, and a host's bridge drops them, with real packets between real ports
of Open vSwitch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from magnetar_agent.virt.network.switch_filter import MARKED, SwitchFilter
from tests.support.chassis import LabChassis, advertisement

from .units import GROUP, SIX, all_of, both, eventually, port

GUEST, NEIGHBOUR, OPEN = "02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:05"


@pytest.fixture
def chassis(ovn: Any, tmp_path: Any) -> Iterator[LabChassis]:
    """A host with a guest, its neighbour, and one without port security."""
    eventually(lambda: ovn.engine.repair(all_of(SIX, GROUP, both(1, "g-1"), both(2, "g-1"), port(5, secure=False))))
    host = LabChassis(tmp_path / "h1", ovn.central.south)
    try:
        host.start()
        for one in ("p1", "p2", "p5"):
            host.plug(one)
        ovn.central.nb("--wait=hv", "sync")
        yield host
    finally:
        host.stop()


@pytest.fixture
def kept(chassis: LabChassis) -> Iterator[SwitchFilter]:
    """As the agent keeps it."""
    one = SwitchFilter()
    one.keep(chassis.bridge)
    try:
        eventually(lambda: chassis.flows(MARKED))
        yield one
    finally:
        one.close()


def _advertise(chassis: LabChassis, sender: str, mac: str) -> None:
    """To all, and to the neighbour alone."""
    chassis.send(sender, advertisement(mac))
    chassis.send(sender, advertisement(mac, NEIGHBOUR, "fd00:1::12"))


def _dropped(chassis: LabChassis) -> None:
    """What the guest says ends at the bridge: for its two neighbours, and for the one. The open port is heard."""
    before = chassis.left("p2")
    eventually(lambda: _counted(chassis))
    assert chassis.left("p2") == before
    dropped = chassis.dropped(MARKED)
    _advertise(chassis, "p5", OPEN)
    eventually(lambda: chassis.left("p2") == before + 2)
    assert chassis.dropped(MARKED) <= dropped


def _counted(chassis: LabChassis) -> bool:
    """Whether all that the guest says now is counted by the flow that drops it. A flow that an agent adds once more
    counts from 0."""
    before, end = chassis.dropped(MARKED), time.monotonic() + 5
    _advertise(chassis, "p1", GUEST)
    while time.monotonic() < end and chassis.dropped(MARKED) != before + 3:
        time.sleep(0.05)
    return chassis.dropped(MARKED) == before + 3


def test_no_guest_with_port_security_advertises(chassis, kept):
    _dropped(chassis)
    assert not kept.reason


def test_ovn_alone_lets_them_pass(chassis):
    """Where this fails, there is an OVN that needs no flow of the agent's."""
    _advertise(chassis, "p1", GUEST)
    eventually(lambda: chassis.left("p2") == 2)


def test_they_are_dropped_when_ovn_controller_has_begun_anew(chassis, kept):
    """It removes what it does not know."""
    _dropped(chassis)
    chassis.end("controller")
    chassis.begin("controller")
    eventually(lambda: chassis.dropped(MARKED) == 0 and chassis.flows(MARKED))
    _dropped(chassis)


def test_they_are_dropped_when_open_vswitch_has_begun_anew(chassis, kept):
    chassis.end("vswitchd")
    eventually(lambda: "cannot be watched" in kept.reason)
    chassis.begin("vswitchd")
    eventually(lambda: not kept.reason)
    eventually(lambda: "actions=output" in "".join(chassis.flows("table=65")))  # ovn-controller has come, too
    eventually(lambda: chassis.flows(MARKED))
    _dropped(chassis)


def test_two_agents_of_a_host_leave_each_other_alone(chassis, kept):
    other = SwitchFilter()
    other.keep(chassis.bridge)
    try:
        for _time in range(3):
            chassis.forget(MARKED)
            eventually(lambda: chassis.flows(MARKED))
    finally:
        other.close()
    _dropped(chassis)
