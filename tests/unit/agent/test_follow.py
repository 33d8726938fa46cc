# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent follows guests and people, and restores after a reboot of the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar_agent import follow

from .conftest import Host


@pytest.fixture
def running(host: Host) -> str:
    """The uuid of a running server called web1."""
    return str(host.server().resource["id"])  # type: ignore[index]


def test_a_guest_that_powers_itself_off_is_off(host: Host, running: str) -> None:
    host.fake.guest_powers_off(running)
    host.settled()
    shown = host.show()
    assert (shown["status"], shown["power"], shown["power_state"]) == ("SHUTOFF", "off", "off")
    assert "shut itself down" in shown["status_reason"]
    assert host.server().steps == []
    assert [s.verb for s in host.server(power="running").steps] == ["record", "start"]
    assert host.show()["status_reason"] == ""


def test_a_guest_whose_qemu_dies_is_crashed_and_stays(host: Host, running: str) -> None:
    host.fake.crash(running)
    host.settled()
    shown = host.show()
    assert (shown["status"], shown["power_state"]) == ("SHUTOFF", "crashed")
    assert "QEMU" in shown["status_reason"]
    host.server(power="running")
    assert host.show()["power_state"] == "running"


def test_a_crashed_guest_is_restarted_where_its_document_says_so_but_not_for_ever(host: Host, running: str) -> None:
    host.server(restart_on_crash=True)
    for _time in range(follow.CRASHES):
        host.fake.crash(running)
        host.settled()
        assert host.show()["power_state"] == "running"
    host.fake.crash(running)
    host.settled()
    assert host.show()["power_state"] == "crashed"


def test_destroyed_from_outside(host: Host, running: str) -> None:
    host.fake.destroyed_outside(running)
    host.settled()
    assert (host.show()["power"], host.show()["power_state"]) == ("off", "off")
    assert "outside" in host.show()["status_reason"]


def test_undefined_from_outside_is_told_and_made_again_on_request(host: Host, running: str) -> None:
    host.fake.destroyed_outside(running)
    host.settled()
    host.fake.undefined_outside(running)
    host.settled()
    assert (host.show()["status"], host.show()["power_state"]) == ("ERROR", "missing")
    assert [s.verb for s in host.server(power="running").steps] == ["record", "define", "start"]


def test_undefined_from_outside_while_it_runs_is_made_lasting_on_request(host: Host, running: str) -> None:
    host.fake.undefined_while_it_runs(running)
    host.settled()
    assert host.show()["power_state"] == "running"
    assert [s.verb for s in host.server(power="running").steps] == ["define"]
    assert not host.server(power="running").steps


@pytest.mark.parametrize(("file", "content", "resume", "after"), [
    ("BOOT_ID", "another\n", True, "running"), ("BOOT_ID", "another\n", False, "off"),
    ("FIRST", "1 (systemd) S " + "0 " * 18 + "4711 0\n", True, "running"),  # a container: the kernel stays
])
def test_a_reboot_of_the_host(host: Host, running: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str,
                              content: str, resume: bool, after: str) -> None:
    host.server(resume_on_host_boot=resume)
    host.ensure("network", "lan", {"mode": "isolated", "cidr": "10.99.0.0/24"})
    other = tmp_path / "other"
    other.write_text(content)
    monkeypatch.setattr(follow, file, other)
    host.agent.close()
    host.fake.host_reboots()
    host.restart()
    assert host.show()["power_state"] == after
    assert host.fake.networks()["lan"].active
    host.restart()
    assert host.show()["power_state"] == after


def test_a_stop_while_no_agent_ran_is_followed(host: Host, running: str) -> None:
    host.agent.close()
    host.fake.guest_powers_off(running)
    host.restart()
    assert (host.show()["power"], host.show()["power_state"]) == ("off", "off")


def test_libvirt_restarts(host: Host, running: str) -> None:
    from magnetar_core.errors import HypervisorDown

    host.fake.disconnect()
    with pytest.raises(HypervisorDown):
        host.server(power="off")
    host.fake.reconnect()
    host.settled()
    assert host.show()["power_state"] == "running"
    host.server(power="off")
    assert host.show()["power_state"] == "off"
