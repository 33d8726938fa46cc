# SPDX-License-Identifier: GPL-3.0-or-later
"""Networks, ports, groups and a router, as engines are told of them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from magnetar_control.services.network.engine.engine import (
    DesiredContent,
    LogicalForwarding,
    LogicalGroup,
    LogicalInterface,
    LogicalNetwork,
    LogicalPort,
    LogicalRouter,
    LogicalRule,
    LogicalSubnet,
    LogicalTranslation,
    Unit,
    unit_key,
)
from magnetar_core.errors import Unavailable
from tests.support import waiting

#: Waits; also for an engine that is away.
eventually = partial(waiting.eventually, passing=(Unavailable,))

LAN = LogicalNetwork("n1", "lan", 1442, (LogicalSubnet("s1", "10.1.0.0/24", "10.1.0.1"),))
SSH = LogicalRule("r1", "ingress", "IPv4", "tcp", 22, 22)
OUT = LogicalRule("r2", "egress", "IPv4")
GROUP = LogicalGroup("g-1", rules=(SSH, OUT))


def port(number: int, *groups: str, **values: Any) -> LogicalPort:
    """The port ``p1`` and the like, 10.1.0.11 and the like."""
    return LogicalPort(f"p{number}", "n1", f"02:00:00:00:00:{number:02x}", (("s1", f"10.1.0.{10 + number}"),),
                       groups=groups, **values)


EXT = LogicalNetwork("n9", "ext", 1500, (LogicalSubnet("s9", "192.0.2.0/24", "192.0.2.1", dhcp=False),), "ext")
ROUTER = LogicalRouter(
    "r1", "r1", interfaces=(LogicalInterface("i1", "02:00:00:00:01:01", ("10.1.0.1/24",)),
                            LogicalInterface("i9", "02:00:00:00:01:09", ("192.0.2.9/24",), gateway=True)),
    routes=(("0.0.0.0/0", "192.0.2.1"),), chassis=("h1", "h2"),
    translations=(LogicalTranslation("t1", "snat", "192.0.2.9", "10.1.0.0/24"),
                  LogicalTranslation("t2", "floating", "192.0.2.10", "10.1.0.12", "p2", "02:00:00:00:01:0a")))
SIDES = (LogicalPort("i1", "n1", "02:00:00:00:01:01", (("s1", "10.1.0.1"),), secure=False, router="r1"),
         LogicalPort("i9", "n9", "02:00:00:00:01:09", (("s9", "192.0.2.9"),), secure=False, router="r1"))
FORWARDING = LogicalForwarding("t3", "tcp", "192.0.2.11", ((2222, "10.1.0.11", 22), (80, "10.1.0.12", 8080)))
ONE, TWO = port(1, "g-1"), port(2, "g-1")
SIX = LogicalNetwork("n1", "lan", 1442, (
    LogicalSubnet("s1", "10.1.0.0/24", "10.1.0.1"),
    LogicalSubnet("s6", "fd00:1::/64", "fd00:1::1", dns=("fd00::53",), mode="dhcpv6-stateful"),
    LogicalSubnet("s7", "fd00:2::/64", "fd00:2::1", mode="slaac")))


def both(number: int, *groups: str) -> LogicalPort:
    """As ``port``, with fd00:1::11 and the like."""
    return replace(port(number, *groups), addresses=(("s1", f"10.1.0.{10 + number}"),
                                                     ("s6", f"fd00:1::{10 + number}")))


def all_of(*units: Unit) -> DesiredContent:
    """These, and nothing else."""
    return DesiredContent({unit_key(unit): unit for unit in units})


def some(*units: Unit, gone: tuple[str, ...] = ()) -> DesiredContent:
    """These, whatever else there is; and no more those of the keys *gone*."""
    return DesiredContent({unit_key(unit): unit for unit in units}, frozenset({*map(unit_key, units), *gone}))
