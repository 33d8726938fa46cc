# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports of SmartNICs, and the southbound database, which knows the chassis of their cards."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from magnetar_control.services.network.engine.engine import LogicalFunction
from magnetar_control.services.network.ovn.ovn import OvnEngine
from magnetar_control.services.network.ovn.southbound import Southbound
from magnetar_core.errors import Unavailable
from tests.support.northbound import SHARE, LabCentral, missing

from .units import GROUP, LAN, ONE, TWO, all_of, eventually, some


def _row(engine: OvnEngine, port: str) -> Any:
    """A port's row in the engine's copy of the northbound database."""
    return next(row for row in engine._connected().idl.tables["Logical_Switch_Port"].rows.values() if row.name == port)


def test_the_chassis_of_a_smart_nic(place, engine):
    assert engine.knows_cards and engine.chassis_of("AB12") is None
    place.smart_nic("dpu1", "AB12")
    assert eventually(lambda: engine.chassis_of("AB12")) == "dpu1"
    assert engine.chassis_of("AB1") is None


def test_a_port_of_a_smart_nic_is_on_its_chassis(ovn):
    """And on none while nobody says where the card is, which is a difference then."""
    there = replace(ONE, card="AB12", function=LogicalFunction("02:00:00:00:00:0a", 3, 1442))
    eventually(lambda: ovn.engine.repair(all_of(LAN, GROUP, there, TWO)))
    plug = {"vif-plug-type": "representor", "vif-plug-mtu-request": "1442",
            "vif-plug:representor:pf-mac": "02:00:00:00:00:0a", "vif-plug:representor:vf-num": "3"}

    def options() -> Any:
        return dict(_row(ovn.engine, "p1").options)

    assert eventually(options) == plug
    assert [one.text for one in ovn.engine.differences(all_of(LAN, GROUP, there, TWO))] == [
        "port p1: no chassis has card-serial-number=AB12"]
    ovn.smart_nic("dpu1", "AB12")
    eventually(lambda: ovn.engine.chassis_of("AB12"))
    ovn.engine.repair(all_of(LAN, GROUP, there, TWO))
    assert eventually(lambda: "requested-chassis" in options() and options()) == {**plug, "requested-chassis": "dpu1"}
    assert ovn.engine.differences(all_of(LAN, GROUP, there, TWO)) == []
    ovn.central.nb("--wait=sb", "sync")
    assert ovn.central.sb("--bare", "--columns=requested_chassis", "find", "Port_Binding", "logical_port=p1").strip()
    ovn.engine.repair(some(ONE))
    assert eventually(lambda: not options())


def test_all_else_is_written_while_the_southbound_database_is_away(ovn):
    """When a process begins: a port on a SmartNIC stays where it was, and is asked for again."""
    there, wanted = replace(ONE, card="AB12"), replace(ONE, card="AB12", secure=False, groups=())
    ovn.smart_nic("dpu1", "AB12")
    eventually(lambda: ovn.engine.chassis_of("AB12"))
    eventually(lambda: ovn.engine.repair(all_of(LAN, GROUP, there)))
    ovn.central.end("sb")
    ovn.engine.close()
    alone = ovn.engine = OvnEngine(ovn.central.url, south=ovn.central.south)
    alone.claim()
    eventually(alone.leads)

    row = partial(_row, alone)
    assert alone.unplaced(some(TWO)) == frozenset()
    assert alone.unplaced(all_of(LAN, GROUP, wanted, TWO)) == {"port/p1"}
    alone.repair(all_of(LAN, GROUP, wanted, TWO))
    assert eventually(lambda: list(row("p1").port_security) == [] and row("p2"))
    assert row("p1").options == {"requested-chassis": "dpu1"}
    assert alone.differences(all_of(LAN, GROUP, wanted))[0].text.startswith("The southbound database")
    ovn.central.begin("sb")
    eventually(lambda: not alone.unplaced(some(wanted)))
    ovn.central.sb("set", "Chassis", "dpu1", "other_config:ovn-cms-options=card-serial-number=CD34")
    eventually(lambda: alone.chassis_of("CD34"))
    alone.repair(some(LAN, wanted))
    assert eventually(lambda: row("p1").options == {})


def test_what_the_southbound_database_told_is_known_while_it_is_away(ovn):
    ovn.smart_nic("dpu1", "AB12")
    eventually(lambda: ovn.engine.chassis_of("AB12"))
    ovn.central.end("sb")
    assert ovn.engine.chassis_of("AB12") == "dpu1"
    alone = OvnEngine(ovn.central.url, south=ovn.central.south, patience=1.0)
    with pytest.raises(Unavailable, match="ovn_southbound"):
        alone.chassis_of("AB12")
    alone.close()
    assert not OvnEngine(ovn.central.url).knows_cards


def test_a_relay_of_the_southbound_database_does(ovn):
    """As the role network has one beside a single central."""
    central = ovn.central
    ovn.smart_nic("dpu1", "AB12")
    central._spawn("relay", "ovsdb-server", f"relay:OVN_Southbound:{central.south}", "-vfile:off",
                   f"--remote=punix:{central.folder}/relay.sock", f"--unixctl={central.folder}/relay.ctl")
    south = Southbound(f"unix:{central.folder}/relay.sock", 10.0)
    try:
        assert eventually(lambda: south.chassis_of("AB12")) == "dpu1"
    finally:
        south.close()


@pytest.mark.skipif(bool(missing()), reason=missing() or "-")
def test_a_southbound_cluster_that_begins_anew(tmp_path):
    """It counts its changes from the beginning, and what it has is not old for that."""
    central = LabCentral(tmp_path / "ovn")
    file, alone = central.folder / "sb.db", central.folder / "alone.db"
    member = f"unix:{central.folder}/sb.raft"
    south = Southbound(central.south, 10.0)
    try:
        central._run("ovsdb-tool", "create-cluster", str(file), str(SHARE / "ovn-sb.ovsschema"), member)
        central.begin("sb")
        for number in range(5):
            central.sb("chassis-add", f"dpu{number}", "geneve", f"192.0.2.{number}", "--", "set", "Chassis",
                       f"dpu{number}", f"other_config:ovn-cms-options=card-serial-number=AB{number}")
        eventually(lambda: south.chassis_of("AB4"))
        central.end("sb")
        central._run("ovsdb-tool", "cluster-to-standalone", str(alone), str(file))
        file.unlink()
        central._run("ovsdb-tool", "create-cluster", str(file), str(alone), member)
        central.begin("sb")
        central.sb("set", "Chassis", "dpu4", "other_config:ovn-cms-options=card-serial-number=CD4")
        assert eventually(lambda: south.chassis_of("CD4")) == "dpu4"
    finally:
        south.close()
        central.stop()
