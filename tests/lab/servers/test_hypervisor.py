# SPDX-License-Identifier: GPL-3.0-or-later
"""LibvirtHypervisor with guests that answer, with many domains, and with a libvirtd of its own that goes and comes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import uuid as uuids
from pathlib import Path
from typing import TYPE_CHECKING, Any

import libvirt
import pytest

from magnetar_agent.host.hypervisor import DomainEvent, DomainSpec
from magnetar_agent.host.storage import Disk
from magnetar_agent.virt import LibvirtHypervisor
from magnetar_core.errors import HypervisorDown
from magnetar_core.power import CRASHED, OFF, RUNNING
from tests.support.lab import guest
from tests.support.waiting import LIMIT, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.lab

LIBVIRTD = (
    "mkdir -p /run/libvirt && for d in /run/libvirt /var/lib/libvirt /var/cache/libvirt /var/log/libvirt; do "
    "mkdir -p $d && mount -t tmpfs none $d; done && exec libvirtd -f {0}/libvirtd.conf -p {0}/pid"
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that QEMU can reach."""
    found = Path(tempfile.mkdtemp(prefix="magnetar-lab-", dir="/var/tmp"))
    found.chmod(0o711)
    yield found
    shutil.rmtree(found)


@pytest.fixture
def hypervisor(folder: Path) -> Iterator[LibvirtHypervisor]:
    """The libvirt of this host."""
    made = LibvirtHypervisor("qemu:///system", folder)
    yield made
    made.close()


class Guest:
    """The lab's tiny guest as a domain."""

    def __init__(self, hypervisor: LibvirtHypervisor, folder: Path, image: dict[str, Path]) -> None:
        self.hypervisor, self.uuid = hypervisor, str(uuids.uuid4())
        self.console = folder / "console.log"
        self.events: list[DomainEvent] = []
        hypervisor.on_event(self.events.append)
        for name in ("kernel", "ramdisk"):
            shutil.copy(image[name], folder / name)
        hypervisor.make_disk(folder / "disk", "qcow2", 2**20)
        hypervisor.permit([folder / "disk", folder / "kernel", folder / "ramdisk"])
        self.spec = DomainSpec(
            uuid=self.uuid,
            name=f"magnetar-lab-{self.uuid[:8]}",
            title="lab",
            vcpus=1,
            ram_mib=128,
            virt_type="qemu",
            machine="q35",
            disks=(Disk(folder / "disk", "vda"),),
            nics=(),
            console_log=self.console,
            kernel=folder / "kernel",
            ramdisk=folder / "ramdisk",
            cmdline=f"{guest.KERNEL_ARGS} unknown_nmi_panic=1",
        )
        hypervisor.define(self.spec)

    def boot(self) -> None:
        """Start it and wait until its console says that it is up."""
        before = self.count()
        self.hypervisor.start(self.uuid)
        self.up(before)

    def count(self) -> int:
        """How often the guest said that it is up; the log is virtlogd's and grows."""
        text = self.console.read_text(errors="replace") if self.console.exists() else ""
        return sum(marker.startswith("ready") for marker in guest.markers(text))

    def up(self, before: int) -> None:
        eventually(lambda: self.count() > before, "the guest is up")

    def state(self) -> tuple[str, str]:
        found = self.hypervisor.domain(self.uuid)
        assert found is not None
        return found.state, found.reason

    def becomes(self, state: str, reason: str) -> None:
        eventually(lambda: self.state() == (state, reason), f"{state} ({reason})")

    def process(self) -> int:
        """The id of this guest's QEMU, which the test may end."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            words = path.read_bytes().split(b"\0") if path.exists() else []
            if self.uuid.encode() in words:
                return int(path.parent.name)
        raise AssertionError("the guest has no QEMU")


@pytest.fixture
def domain(hypervisor: LibvirtHypervisor, folder: Path, guest_image: dict[str, Path]) -> Iterator[Guest]:
    made = Guest(hypervisor, folder, guest_image)
    try:
        yield made
    finally:
        hypervisor.destroy(made.uuid)
        hypervisor.undefine(made.uuid)


def test_a_guest_obeys_the_power_button_and_reboots(domain: Guest) -> None:
    domain.boot()
    before = domain.count()
    domain.hypervisor.reboot(domain.uuid)
    eventually(lambda: DomainEvent(domain.uuid, "rebooted") in domain.events, "the reboot event")
    domain.up(before)
    domain.hypervisor.shutdown(domain.uuid)
    domain.becomes(OFF, "guest")
    eventually(lambda: DomainEvent(domain.uuid, "stopped", "guest") in domain.events, "the event")


def test_a_guest_whose_qemu_dies_is_crashed_and_starts_again(domain: Guest) -> None:
    domain.hypervisor.start(domain.uuid)
    os.kill(domain.process(), signal.SIGKILL)
    domain.becomes(CRASHED, "failed")
    eventually(lambda: DomainEvent(domain.uuid, "crashed", "failed") in domain.events, "the event")
    domain.hypervisor.start(domain.uuid)
    assert domain.state()[0] == RUNNING


def test_the_panic_of_a_guest_is_seen_and_it_starts_again(domain: Guest) -> None:
    domain.boot()
    inject = ["virsh", "-q", "qemu-monitor-command", domain.uuid, "--hmp", "nmi"]
    subprocess.run(inject, check=True, capture_output=True)  # unknown_nmi_panic is on in cmdline
    domain.becomes(CRASHED, "panic")
    domain.hypervisor.start(domain.uuid)
    assert domain.state()[0] == RUNNING


def test_fifty_domains_are_listed_without_one_question_for_each(
    hypervisor: LibvirtHypervisor, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three calls of libvirt list all; a definition is read when it is new, or has changed (bench/run has the time)."""
    calls, asked, read = [], [], libvirt.virDomain.XMLDesc

    def definition(domain: Any, flags: int = 0) -> str:
        asked.append(domain.UUIDString())
        return str(read(domain, flags))

    def listing(name: str) -> None:
        whole = getattr(libvirt.virConnect, name)
        monkeypatch.setattr(libvirt.virConnect, name, lambda *words: calls.append(name) or whole(*words))

    monkeypatch.setattr(libvirt.virDomain, "XMLDesc", definition)
    for name in ("getAllDomainStats", "listAllDomains"):
        listing(name)
    made: list[str] = []
    try:
        for at in range(50):
            uuid = str(uuids.uuid4())
            spec = DomainSpec(
                uuid=uuid,
                name=f"magnetar-lab-{uuid[:8]}",
                title=str(at),
                vcpus=1,
                ram_mib=64,
                virt_type="qemu",
                machine="q35",
                disks=(Disk(folder / "disk", "vda"),),
                nics=(),
                console_log=folder / "console.log",
            )
            hypervisor.define(spec)
            made.append(uuid)
        for wanted in (made, [], []):
            asked.clear()
            calls.clear()
            assert set(made) <= set(hypervisor.domains())
            assert sorted(one for one in asked if one in made) == sorted(wanted)
            assert calls == ["getAllDomainStats", "listAllDomains", "listAllDomains"]
    finally:
        for uuid in made:
            hypervisor.undefine(uuid)


class Daemon:
    """A libvirtd of our own in a mount namespace; its test driver answers on a socket in *folder*."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uri = f"test+unix:///default?socket={folder}/libvirt-sock"
        (folder / "libvirtd.conf").write_text(
            f'unix_sock_dir = "{folder}"\nauth_unix_rw = "none"\n'
            'unix_sock_rw_perms = "0700"\nlog_outputs = "4:stderr"\n'
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            ["unshare", "--mount", "--net", "--propagation", "private", "sh", "-c", LIBVIRTD.format(self.folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()


def test_the_connection_comes_back_after_libvirtd_died(folder: Path) -> None:
    daemon, connected = Daemon(folder), threading.Semaphore(0)
    daemon.start()
    hypervisor = LibvirtHypervisor(daemon.uri, folder)
    try:
        eventually(hypervisor.connected, "connected")
        hypervisor.on_connect(connected.release)
        assert hypervisor.leases("nothing") == []
        for _time in range(2):
            daemon.kill()
            eventually(lambda: not hypervisor.connected(), "not connected")
            with pytest.raises(HypervisorDown, match="repeat the call"):
                hypervisor.leases("nothing")
            daemon.start()
            eventually(hypervisor.connected, "connected again")
            assert connected.acquire(timeout=LIMIT)
            assert hypervisor.leases("nothing") == []
    finally:
        hypervisor.close()
        daemon.kill()
