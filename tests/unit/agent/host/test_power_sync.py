# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent follows guests and people, and restores after a reboot of the host."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from magnetar_agent.fake import FakeHypervisor
from magnetar_agent.host import boot, power_sync
from magnetar_agent.reconcile.documents import Document
from magnetar_core.errors import GuestSilent, HypervisorDown, InvalidField, Unreachable
from magnetar_core.kinds import Network, Server, Volume
from magnetar_core.operations import Operation
from tests.support.agent.resize import image
from tests.support.waiting import eventually
from tests.unit.agent.conftest import SMALL, Host


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
    for _time in range(power_sync.CRASHES):
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
    monkeypatch.setattr(boot, file, other)
    host.agent.close()
    host.goes_down()
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


VOLUME = "11111111-2222-4333-8444-555555555555"


class Hung:
    """A host that comes up again while a volume of it was being copied from an image; the copy waits for ``go``."""

    def __init__(self, host: Host) -> None:
        image(host, "img")
        host.server(image="img", flavor={**SMALL, "disk": 1})
        self.host, self.go, self.begun = host, threading.Event(), threading.Event()
        system = host.agent.host.documents.find("image", "img")
        assert system is not None
        host.agent.host.documents.write(Document("volume", VOLUME, "v", {
            **Volume.defaults(), "name": "v", "size": 1, "pool": "default", "format": "qcow2", "image": system.id,
            "multiattach": False}, {"unfinished": True, "making": True}))

    def reboot(self) -> None:
        """Come up; ``settled`` is not waited for."""
        host = self.host
        host.goes_down()
        (host.root / "state/boot_id").write_text("another")
        host.fake = FakeHypervisor(host.root / "libvirt")
        real = host.fake.copy_disk

        def copy(source: Any, source_format: str, path: Path, format: str, progress: Any, key: Any = None) -> None:
            self.begun.set()
            while not self.go.wait(0.05):
                progress(0, 1)  # it says how far it is, which is where a cancel takes hold
            real(source, source_format, path, format, progress, key)

        host.fake.copy_disk = copy  # type: ignore[method-assign]
        host.agent = host._agent()
        host.agent.start()

    def operation(self, kind: str) -> Operation:
        """What the agent finishes in the background."""
        (found,) = [one for one in self.host.agent.host.operations.list() if one.kind == kind]
        return found


def test_servers_start_while_content_is_still_copied(host: Host) -> None:
    hung = Hung(host)
    hung.reboot()
    assert host.agent.power_sync.settled.wait(120) and hung.begun.wait(120)
    assert host.show()["power_state"] == "running"
    found = hung.operation("volume")
    assert (found.status, found.key, found.caller) == ("running", VOLUME, "agent")
    hung.go.set()
    assert found.wait(120) and found.status == "succeeded"
    assert host.ensure("volume", "v", {}).resource["status"] == "available"  # type: ignore[index]


def test_what_is_finished_in_the_background_can_be_cancelled_and_is_begun_again(host: Host) -> None:
    hung = Hung(host)
    hung.reboot()
    assert hung.begun.wait(120)
    found = hung.operation("volume")
    host.agent.host.operations.cancel(found.id)
    assert found.wait(120) and found.status == "cancelled"
    host.restart()
    assert host.ensure("volume", "v", {}).resource["status"] == "available"  # type: ignore[index]


def test_a_server_that_is_being_made_waits_for_what_it_needs(host: Host) -> None:
    hung = Hung(host)
    document = host.agent.host.documents.get("volume", VOLUME)
    assert document is not None
    item = {"source_type": "image", "destination_type": "volume", "uuid": document.want["image"], "boot_index": 0,
            "volume_size": 1}
    made = host.server("coming", block_device_mapping=[item], power="off").resource
    server = host.agent.host.documents.get("server", made["id"])  # type: ignore[index]
    assert server is not None
    host.ensure("server", server.id, None)
    host.ensure("volume", server.want["block_device_mapping"][0]["volume"], None)
    server.want["block_device_mapping"][0]["volume"] = VOLUME
    server.want["power"] = "running"
    server.state = {"unfinished": True, "making": True, "volumes_drawn": True}
    host.agent.host.documents.write(server)
    hung.reboot()
    assert host.agent.power_sync.settled.wait(120) and hung.begun.wait(120)
    found = hung.operation("server")
    assert found.status == "running" and host.show()["power_state"] == "running"
    hung.go.set()
    assert found.wait(120) and found.status == "succeeded", found.error
    assert host.show("coming")["power_state"] == "running"


def test_libvirt_comes_back_while_the_agent_finishes_something(host: Host) -> None:
    """It is not begun twice."""
    hung = Hung(host)
    hung.reboot()
    assert host.agent.power_sync.settled.wait(120) and hung.begun.wait(120)
    host.fake.disconnect()
    host.fake.reconnect()
    host.settled()
    found = hung.operation("volume")
    hung.go.set()
    assert found.wait(120)


def test_an_image_that_is_loaded_again_keeps_nobody_from_starting(host: Host) -> None:
    image(host, "img")
    host.server(image="img")
    document = host.agent.host.documents.find("image", "img")
    assert document is not None
    checksum = "sha256:" + "0" * 64
    document.want.update(checksum=checksum, source={"url": "http://127.0.0.1:1/x"})
    document.state = {"unfinished": True}
    host.agent.host.documents.write(document)
    host.restart()
    assert host.show()["power_state"] == "running"
    (found,) = [one for one in host.agent.host.operations.list() if one.kind == "image"]
    assert found.status == "failed" and isinstance(found.exception, Unreachable)
    with pytest.raises(InvalidField, match="still loaded, or could not be"):
        host.server("next", image="img")


def test_an_agent_starts_where_the_boot_cannot_be_noted(
        host: Host, running: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(power_sync, "write_atomically", full)
    host.restart()
    assert host.show()["power_state"] == "running"


def test_a_server_that_is_removed_meanwhile_is_not_put_right(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    """What was listed a moment ago may be gone: putting it right is not making one of nothing."""
    host.server()
    sync, [document] = host.agent.power_sync, host.agent.host.documents.list("server")
    document.state["unfinished"] = True
    host.ensure("server", "web1", None)
    network = Document("network", "0f2f9f7e-3d7e-4c1b-a0c6-5be1fd1d7fb5", "lan", {})
    caplog.set_level(logging.INFO)
    sync._again(Server, document, {"power": "running"})
    sync._again(Network, network, {})
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING], caplog.text
    assert caplog.text.count("was removed meanwhile") == 2
    document.want["resume_on_host_boot"] = False
    sync._after_reboot(document)
    assert host.agent.host.documents.list("server") == []


def test_an_event_waits_for_its_server_and_holds_up_no_other(host: Host, running: str) -> None:
    """Somebody changes the server, and may wait for its guest."""
    other = str(host.server("web2").resource["id"])  # type: ignore[index]
    with host.agent.host.locks.hold("server", running):
        host.fake.guest_powers_off(running)
        host.fake.guest_powers_off(other)
        eventually(lambda: host.show("web2")["status"] == "SHUTOFF", "the other is followed")
    host.settled()
    assert host.show()["status"] == "SHUTOFF"


def test_a_step_whose_connection_to_libvirt_broke_is_done_again(host: Host) -> None:
    host.fake.fail_next("start", HypervisorDown("The connection broke.", lost=True), 2)
    assert host.server("web1").resource["power_state"] == "running"  # type: ignore[index]


def test_a_step_that_breaks_every_connection_fails(host: Host) -> None:
    host.fake.fail_next("start", HypervisorDown("The connection broke.", lost=True), 3)
    with pytest.raises(HypervisorDown):
        host.server("web1")


def test_a_guest_that_hangs_is_named_and_can_be_removed(host: Host, running: str) -> None:
    host.fake.hangs(running)
    with pytest.raises(GuestSilent, match=running):
        host.server("web1", power="paused")
    assert host.show()["power_state"] == "running"
    assert host.server("web2").resource["power_state"] == "running"  # type: ignore[index]
    host.fake.goes_on(running)
    assert host.server("web1", power="paused").resource["power_state"] == "paused"  # type: ignore[index]
    host.fake.hangs(running)
    host.ensure("server", "web1", None)
    assert host.fake.domain(running) is None
