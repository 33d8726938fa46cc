# SPDX-License-Identifier: GPL-3.0-or-later
"""What an agent remembers has bounds; docs/reference/caches.md lists them."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from magnetar_agent.fake import FakeHypervisor
from magnetar_agent.host import power_sync
from magnetar_agent.host.hypervisor import DomainEvent
from magnetar_agent.virt.disks import disks

from .conftest import Host


def test_reboots_of_servers_that_are_gone(host: Host) -> None:
    for _time in range(3):
        id = str(host.server().resource["id"])  # type: ignore[index]
        host.fake.guest_reboots(id)
        host.settled()
        assert host.agent.host.reboots == {id: 1}
        host.ensure("server", "web1", None)
    host.agent.host.count_reboot(DomainEvent("not-ours", "rebooted", "unknown"))
    assert host.agent.host.reboots == {}


def test_crashes_of_long_ago(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("web1", "web2"):
        id = str(host.server(name, restart_on_crash=True).resource["id"])  # type: ignore[index]
        host.fake.crash(id)
        host.settled()
        assert host.show(name)["power_state"] == "running"
    assert len(host.agent.power_sync._crashes) == 2
    monkeypatch.setattr(power_sync, "CRASH_SPAN", 0.0)
    host.fake.crash(id)
    host.settled()
    assert list(host.agent.power_sync._crashes) == [id]


def test_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "DEVICES", 5)
    monkeypatch.setattr(disks, "_SEEN", {})
    known = disks.direct_io(tmp_path)
    real = os.stat
    for number in range(12):
        monkeypatch.setattr(Path, "stat", lambda path, number=number, **how: SimpleNamespace(st_dev=-number - 1)
                            if path == tmp_path else real(path, **how))
        assert disks.direct_io(tmp_path) is known and len(disks._SEEN) <= 5


def test_definitions_of_the_fake(host: Host) -> None:
    from magnetar_agent.fake import state

    assert isinstance(host.fake, FakeHypervisor)
    assert state.parse_domain.cache_info().maxsize == 5000
