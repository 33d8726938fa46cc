# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine OVN on a northbound database of three servers: it goes on with another leader, and says what is lost."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar_control.services.network.ovn import ovn_servers
from magnetar_control.services.network.ovn.ovn import OvnEngine
from magnetar_core.errors import Unavailable
from tests.support.northbound import LabCluster, missing

from .units import GROUP, LAN, ONE, TWO, all_of, eventually, some

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")


def deep(test: Any) -> Any:
    """Elections take seconds."""
    return pytest.mark.slow(pytest.mark.deep(shard="clusters of OVN")(test))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: Any) -> Iterator[LabCluster]:
    monkeypatch.setattr("magnetar_control.services.network.ovn.ovn.NORTHD", 0.2)
    made = LabCluster(tmp_path / "ovn").start()
    try:
        eventually(made.leader)
        yield made
    finally:
        made.stop()


def leads(engine: OvnEngine) -> bool:
    """Whether it does; not, while it has no connection."""
    try:
        return engine.leads()
    except Unavailable:
        return False


@deep
def test_it_goes_on_with_another_leader(cluster: LabCluster) -> None:
    engine, second = OvnEngine(cluster.url), OvnEngine(cluster.url)
    try:
        engine.claim()
        eventually(engine.leads)
        eventually(lambda: engine.repair(all_of(LAN, GROUP, ONE)))
        second.claim()
        assert not second.leads()
        eventually(lambda: not engine.faults())
        lost = cluster.leader()
        cluster.end(lost)
        writer = eventually(lambda: next(filter(leads, (engine, second)), None))
        other = second if writer is engine else engine
        assert eventually(lambda: [other.leads()]) == [False]
        eventually(lambda: writer.repair(some(TWO, LAN, GROUP)))
        assert writer.differences(all_of(LAN, GROUP, ONE, TWO)) == []
        said = writer.faults()[0]
        assert f"{lost}.sock" in said
        assert "When one more is lost" in said
        cluster.begin(lost)
        eventually(lambda: "Status: cluster member" in cluster.status(lost) and not writer.faults())
    finally:
        engine.close()
        second.close()


@deep
def test_without_a_quorum_it_says_so(cluster: LabCluster) -> None:
    engine = OvnEngine(cluster.url, patience=5)
    try:
        engine.claim()
        eventually(engine.leads)
        eventually(lambda: engine.repair(all_of(LAN)))
        first, second, third = cluster.MEMBERS
        cluster.end(first)
        cluster.end(third)
        found = eventually(lambda: [one for one in engine.faults() if "northbound database has no quorum" in one])
        assert f"{first}.sock (" in found[0]
        assert f"{third}.sock (" in found[0]
        assert f"{second}.sock (" not in found[0]
        with pytest.raises(Unavailable, match="no server has let us in within 2 s"):
            OvnEngine(cluster.url, patience=2).leads()
        cluster.begin(first)
        eventually(lambda: engine.leads() and engine.repair(some(ONE, LAN)))
        assert not [one for one in engine.faults() if "northbound database has no quorum" in one]
    finally:
        engine.close()


@deep
def test_a_cluster_that_begins_anew(cluster: LabCluster) -> None:
    """It counts its changes from the beginning, and what it has is not old for that."""
    engine = OvnEngine(cluster.url, patience=5)
    try:
        engine.claim()
        eventually(engine.leads)
        for unit in (LAN, GROUP, ONE, TWO):
            eventually(lambda unit=unit: engine.repair(some(unit, LAN, GROUP)))
        survivor = cluster.leader()
        for name in cluster.MEMBERS:
            cluster.end(name)
        cluster.recover(survivor)
        eventually(engine.leads)
        assert engine.differences(all_of(LAN, GROUP, ONE, TWO)) == []
        eventually(lambda: engine.repair(all_of(LAN, GROUP)))
    finally:
        engine.close()


def test_northd_that_does_not_follow_is_told(cluster: LabCluster) -> None:
    engine = OvnEngine(cluster.url)
    try:
        engine.claim()
        eventually(engine.leads)
        number = eventually(lambda: engine.repair(all_of(LAN)))
        eventually(lambda: engine._followed("sb_cfg", number, 1))
        assert engine.faults() == []
        cluster.end("northd")
        engine.repair(some(GROUP))
        (said,) = engine.faults()
        assert "ovn-northd does not write" in said
    finally:
        engine.close()


def test_a_server_that_says_nothing_keeps_nobody_waiting(cluster: LabCluster, tmp_path: Path) -> None:
    path = tmp_path / "silent.sock"
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(str(path))
        line.listen()
        with pytest.raises(TimeoutError, match="no answer for 0.3 s"):
            ovn_servers.call_server(f"unix:{path}", "echo", [], 0.3)
        assert ovn_servers.fetch_schema(f"unix:{path},{cluster.url}", 2)["name"] == "OVN_Northbound"
    with pytest.raises(OSError, match="refuses"):
        ovn_servers.call_server(cluster.url.split(",")[0], "get_schema", ["Nothing"])
