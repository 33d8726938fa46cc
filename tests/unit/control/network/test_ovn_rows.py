# SPDX-License-Identifier: GPL-3.0-or-later
"""Units as rows of OVN's northbound database."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from magnetar_control.api.network.attributes import PROTOCOLS
from magnetar_control.services.network.engine.engine import (
    LogicalFunction,
    LogicalNetwork,
    LogicalPort,
    LogicalRule,
    LogicalSubnet,
)
from magnetar_control.services.network.ovn.ovn_rows import ACL, DHCP, NUMBERS, PORT, rows_of_unit, rule_match

RULES = yaml.safe_load((Path(__file__).parents[3] / "cases/ovn_rules.yml").read_text(encoding="utf-8"))
LAN = LogicalSubnet("s1", "10.1.0.0/24", "10.1.0.1", dns=("192.0.2.1", "192.0.2.2"),
                    routes=(("10.8.0.0/16", "10.1.0.9"),))


@pytest.mark.parametrize("case", RULES, ids=lambda case: case["match"])
def test_the_packets_of_a_rule(case):
    assert rule_match("mag_g_1", LogicalRule(id="r1", **case["rule"])) == case["match"]


def test_every_protocol_that_the_api_takes_has_a_number():
    assert NUMBERS.keys() == PROTOCOLS


def test_dhcp_tells_a_guest_what_the_subnet_says():
    found = {row.table: row for row in rows_of_unit(LogicalNetwork("n1", "lan", 1442, (LAN,)))}
    options = found[DHCP].columns["options"]
    assert {name: options[name] for name in ("router", "dns_server", "mtu", "server_id")} == {
        "router": "10.1.0.1", "dns_server": "{192.0.2.1, 192.0.2.2}", "mtu": "1442", "server_id": "10.1.0.1"}
    # Who gets routes does not look at the router (RFC 3442).
    assert options["classless_static_route"] == (
        "{169.254.169.254/32,0.0.0.0, 10.8.0.0/16,10.1.0.9, 0.0.0.0/0,10.1.0.1}")


def test_without_dhcp_there_is_no_server():
    silent = LogicalNetwork("n1", "lan", 1442, (LogicalSubnet("s1", "10.1.0.0/24", None, dhcp=False),))
    assert {DHCP, ACL}.isdisjoint(row.table for row in rows_of_unit(silent))


def test_a_physical_network_is_a_localnet_port():
    (port,) = (row for row in rows_of_unit(LogicalNetwork("n1", "out", 1500, physical="ext", vlan=7)) if row.table
               == PORT)
    assert (port.columns["type"], port.columns["options"], port.columns["tag"]) == (
        "localnet", {"network_name": "ext"}, (7,))


@pytest.mark.parametrize(("port", "security", "addresses"), [
    ({}, ("02:00:00:00:00:01 10.1.0.5",), ("02:00:00:00:00:01 10.1.0.5",)),
    ({"pairs": (("02:00:00:00:00:01", "10.9.0.0/24"), ("02:00:00:00:00:02", "10.1.0.7"))},
     ("02:00:00:00:00:01 10.1.0.5 10.9.0.0/24", "02:00:00:00:00:02 10.1.0.7"), ("02:00:00:00:00:01 10.1.0.5",)),
    ({"secure": False}, (), ("02:00:00:00:00:01 10.1.0.5", "unknown"))])
def test_what_a_port_may_send_from(port, security, addresses):
    (row,) = rows_of_unit(LogicalPort("p1", "n1", "02:00:00:00:00:01", (("s1", "10.1.0.5"),), **port))
    assert (row.columns["port_security"], row.columns["addresses"]) == (security, addresses)


@pytest.mark.parametrize(("port", "options"), [
    ({"hosts": ("h1",)}, {"requested-chassis": "h1"}),
    ({"hosts": ("h1", "h2"), "arriving": True}, {"requested-chassis": "h1,h2", "activation-strategy": "rarp"}),
    ({"hosts": ("h1", "h2")}, {"requested-chassis": "h1,h2"}), ({}, {}),
    ({"hosts": ("dpu1",), "card": "AB12", "function": LogicalFunction("02:00:00:00:00:0a", 7, 1442)}, {
        "requested-chassis": "dpu1", "vif-plug-type": "representor", "vif-plug-mtu-request": "1442",
        "vif-plug:representor:pf-mac": "02:00:00:00:00:0a", "vif-plug:representor:vf-num": "7"}),
    ({"hosts": ("dpu1",), "card": "AB12", "parent": "p2", "vlan": 7}, {"requested-chassis": "dpu1"})])
def test_where_a_port_may_be(port, options):
    (row,) = rows_of_unit(LogicalPort("p1", "n1", "02:00:00:00:00:01", **port))
    assert row.columns["options"] == options
