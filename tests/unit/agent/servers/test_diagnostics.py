# SPDX-License-Identifier: GPL-3.0-or-later
"""What servers have used and for how long the host is up: libvirt's words read, and the two routes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.fake.statistics import HOST, UPTIME
from magnetar_agent.host.hypervisor import DISK_COUNTERS, NIC_COUNTERS
from magnetar_agent.servers import diagnostics as servers
from magnetar_agent.virt.domain import statistics
from magnetar_agent.virt.domain.statistics import read_statistics
from magnetar_core.errors import NotFound

XML = """<domain type="kvm"><devices>
  <interface type="bridge"><mac address="52:54:00:00:00:01"/><target dev="vnet7"/></interface>
  <interface type="hostdev"><mac address="52:54:00:00:00:02"/></interface>
</devices></domain>"""
STATS = {
    "state.state": 1, "balloon.current": 131072, "balloon.maximum": 262144, "balloon.last-update": 5, "balloon.rss": 7,
    "vcpu.current": 2, "vcpu.maximum": 3, "vcpu.0.state": 1, "vcpu.0.time": 125, "vcpu.2.state": 1,
    "net.count": 2, "net.0.name": "vnet7", "net.0.rx.bytes": 1, "net.0.rx.pkts": 2, "net.0.rx.errs": 3,
    "net.0.rx.drop": 4, "net.0.tx.bytes": 5, "net.0.tx.pkts": 6, "net.0.tx.errs": 7, "net.0.tx.drop": 8,
    "block.count": 2, "block.0.name": "vda", "block.0.rd.reqs": 1, "block.0.rd.bytes": 2, "block.0.wr.reqs": 3,
    "block.0.wr.bytes": 4, "block.1.name": "sdo", "block.1.path": "/config.iso"}


def test_libvirts_words() -> None:
    assert read_statistics(STATS, XML, 9) == {
        "virt_type": "kvm", "uptime": 9, "cpus": [{"id": 0, "time": 125}, {"id": 2, "time": None}],
        "memory": {"maximum": 262144, "actual": 131072, "last_update": 5, "rss": 7},
        "disks": [{"device": "vda", "read_bytes": 2, "read_requests": 1, "write_bytes": 4, "write_requests": 3,
                   "errors": None}, {"device": "sdo", **dict.fromkeys(DISK_COUNTERS)}],
        "nics": [{"device": "vnet7", "mac": "52:54:00:00:00:01", "rx_octets": 1, "rx_packets": 2, "rx_errors": 3,
                  "rx_drop": 4, "tx_octets": 5, "tx_packets": 6, "tx_errors": 7, "tx_drop": 8},
                 {"device": None, "mac": "52:54:00:00:00:02", **dict.fromkeys(NIC_COUNTERS)}]}


def test_a_qemu_that_is_busy_leaves_figures_out() -> None:
    found = read_statistics({"state.state": 1, "block.count": 1, "block.0.name": "vda"}, XML, None)
    assert (found["cpus"], found["memory"], len(found["nics"])) == ([], {}, 2)
    assert found["disks"] == [{"device": "vda", **dict.fromkeys(DISK_COUNTERS)}]


def test_users_are_the_sessions_of_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_SESSIONS", tmp_path / "sessions")
    assert statistics._users() == 0
    (tmp_path / "sessions").mkdir()
    for name, kind in (("1", "user"), ("2", "user"), ("c1", "greeter"), ("3", "manager")):
        (tmp_path / "sessions" / name).write_text(f"UID=0\nCLASS={kind}\nTYPE=tty\n")
    assert statistics._users() == 2


def test_a_server_is_told_with_its_state(host: Any) -> None:
    made = host.server(config_drive=True).resource
    told = servers.collect_diagnostics(host.agent.drivers, "web1")
    assert (told["id"], told["power_state"], told["config_drive"]) == (made["id"], "running", True)
    assert told["uptime"] == UPTIME
    assert [cpu["id"] for cpu in told["cpus"]] == [0] and told["memory"]["maximum"] == 64 * 1024
    host.ensure("server", "web1", {"power": "off"})
    assert servers.collect_diagnostics(host.agent.drivers, made["id"]) == {
        "id": made["id"], "power_state": "off", "config_drive": True, **servers.NOTHING}
    with pytest.raises(NotFound):
        servers.collect_diagnostics(host.agent.drivers, "web2")


def test_a_server_that_stops_meanwhile_is_off(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = host.server().resource

    def stops(uuid: str) -> None:
        host.fake.guest_powers_off(uuid)

    monkeypatch.setattr(host.fake, "statistics", stops)
    assert servers.collect_diagnostics(host.agent.drivers, made["id"])["power_state"] == "off"


def test_the_host_is_told_without_libvirt(host: Any) -> None:
    host.fake.disconnect()
    assert host.agent.host.hypervisor.uptime() == HOST
