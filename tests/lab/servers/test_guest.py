# SPDX-License-Identifier: GPL-3.0-or-later
"""The tiny guest boots in both forms and says what its config drive and its machine gave it."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.lab import guest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.lab

LIMIT = 240.0  # seconds for anything a guest is waited for; it takes 3 to 7 on 2 idle cores
MAC = "52:54:00:4c:41:42"
KEYS = {"mine": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5 me@example.org\n", "other": "ssh-rsa AAAAB3 other"}
META_DATA = {
    "uuid": "83679162-1378-4288-a2d4-70e13ec132aa",
    "hostname": "web-1.example.org",
    "public_keys": KEYS,
    "meta": {"role": "web server", "note": 'two\nlines, "quotes", a=b, \\ and é'},
}


class Machine:
    """A QEMU process with serial console, QMP and guest agent on unix sockets in `folder`."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.started = time.monotonic()
        self.received = b""
        self.folder = folder
        sockets = [f"socket,id={name},path={folder / name},server=on,wait=off" for name in ("serial", "qmp", "agent")]
        self.process = subprocess.Popen(
            ["qemu-system-x86_64", "-machine", "q35", "-accel", "tcg", "-m", "128", "-nodefaults", "-display", "none",
             "-boot", "strict=on", *(word for chardev in sockets for word in ("-chardev", chardev)),
             "-serial", "chardev:serial", "-mon", "chardev=qmp,mode=control", "-device", "virtio-serial-pci",
             "-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0",
             "-netdev", "user,id=net,restrict=on", "-device", f"virtio-net-pci,netdev=net,mac={MAC}", *arguments]
        )  # fmt: skip
        self.serial = self.connect("serial")

    @property
    def console(self) -> str:
        return self.received.decode(errors="replace")

    def connect(self, name: str) -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(LIMIT)
        path = str(self.folder / name)
        # QEMU listens only some moments after the socket is in the folder.
        until(lambda: client.connect_ex(path) not in (errno.ENOENT, errno.ECONNREFUSED), name)
        return client

    def wait(self, wanted: Callable[[list[str]], Any]) -> Any:
        """Reads the console until `wanted(markers)` is true and returns its value."""
        deadline = time.monotonic() + LIMIT
        self.serial.settimeout(0.2)
        while time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                data = self.serial.recv(65536)
                self.received += data
                if not data:
                    break
            if value := wanted(guest.markers(self.console)):
                return value
        raise AssertionError(f"the guest did not say it within {LIMIT} s; console:\n{self.console}")

    def ask(self, command: str) -> dict[str, Any]:
        """Types a command into the console and returns the answer."""
        count = len(guest.replies(self.console))
        self.serial.sendall(f"{command}\n".encode())
        answers: list[dict[str, Any]] = self.wait(lambda _: guest.replies(self.console)[count:])
        return answers[0]

    def qmp(self, command: str) -> None:
        with self.connect("qmp") as client:
            client.sendall(f'{{"execute":"qmp_capabilities"}}{{"execute":"{command}"}}'.encode())
            received = b""
            while received.count(b'{"return"') < 2:
                received += client.recv(4096)

    def agent(self, command: str, **arguments: Any) -> Any:
        with self.connect("agent") as client:
            client.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
            return json.loads(client.makefile().readline())["return"]

    def close(self) -> None:
        self.serial.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, f"waited {LIMIT} s for {what}"
        time.sleep(0.02)


@pytest.fixture
def config_drive(tmp_path: Path) -> Path:
    folder, image = tmp_path / "config", tmp_path / "config.iso"
    latest = folder / "openstack/latest"
    latest.mkdir(parents=True)
    (latest / "meta_data.json").write_text(json.dumps(META_DATA))
    (latest / "user_data").write_text("#!/bin/bash\necho user data on $(hostname)\nexit 3\n")
    subprocess.run(["genisoimage", "-quiet", "-V", "config-2", "-J", "-r", "-o", image, folder], check=True)
    return image


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    machines: list[Machine] = []

    def starter(*arguments: str) -> Machine:
        machines.append(Machine(tmp_path, *arguments))
        return machines[-1]

    yield starter
    for machine in machines:
        machine.close()


def virtio_disk(path: Path, form: str, number: int) -> tuple[str, ...]:
    readonly = ",readonly=on" if form == "raw" else ""
    return ("-drive", f"if=none,id=disk{number},file={path},format={form}{readonly}",
            "-device", f"virtio-blk-pci,drive=disk{number},serial=serial{number},bootindex={number}")  # fmt: skip


def check_config_drive(said: list[str]) -> None:
    for line in (
        f"uuid={META_DATA['uuid']}",
        "hostname=web-1.example.org",
        f"key={KEYS['mine'].strip()}",
        f"key={KEYS['other']}",
        "meta role=web server",
        r'meta note=two\nlines, "quotes", a=b, \\ and é',
        "user_data=script",
        "user_data exit=3",
    ):
        assert line in said
    assert said[-1].startswith("ready")


def test_boots_from_disk(
    guest_image: dict[str, Path], config_drive: Path, start: Callable[..., Machine], tmp_path: Path
) -> None:
    overlay = tmp_path / "overlay.qcow2"
    subprocess.run(
        ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", guest_image["disk"], overlay, "1G"], check=True
    )
    machine = start(*virtio_disk(overlay, "qcow2", 1), *virtio_disk(config_drive, "raw", 2))
    machine.wait(lambda said: any(line.startswith("ready") for line in said))
    print(f"\ndisk: GUEST ready after {time.monotonic() - machine.started:.1f} s")
    said = guest.markers(machine.console)
    check_config_drive(said)
    assert f"disk vda bytes={2**30} serial=serial1" in said
    assert "user data on web-1.example.org" in machine.console
    machine.wait(lambda said: f"nic eth0 mac={MAC} ip=10.0.2.15" in said)

    assert machine.ask("disks")["disks"][0] == {"name": "vda", "bytes": 2**30, "serial": "serial1"}
    assert machine.ask("nics")["nics"] == [{"name": "eth0", "mac": MAC, "ip": "10.0.2.15", "mtu": 1500}]
    assert machine.ask("sh echo hello >/disk/file; cat /disk/file; false") == {"code": 1, "output": "hello\n"}
    assert "error" in machine.ask("dance")

    began = time.monotonic()
    machine.qmp("system_powerdown")
    until(lambda: machine.process.poll() is not None, "the guest to obey the power button")
    print(f"disk: off {time.monotonic() - began:.1f} s after the power button")


def test_boots_from_kernel_and_ramdisk(
    guest_image: dict[str, Path], config_drive: Path, start: Callable[..., Machine]
) -> None:
    kernel = ("-kernel", str(guest_image["kernel"]), "-initrd", str(guest_image["ramdisk"]))
    machine = start(*kernel, "-append", guest.KERNEL_ARGS, *virtio_disk(config_drive, "raw", 1))
    machine.wait(lambda said: any(line.startswith("ready") for line in said))
    print(f"\nkernel: GUEST ready after {time.monotonic() - machine.started:.1f} s")
    check_config_drive(guest.markers(machine.console))

    hostname = machine.agent("guest-get-host-name")
    assert hostname == {"host-name": "web-1.example.org"}
    process = machine.agent("guest-exec", path="/bin/hostname", **{"capture-output": True})
    assert process["pid"] > 0
    machine.agent("guest-set-user-password", username="root", password="c2VjcmV0", crypted=False)
    assert machine.ask("sh grep -c 'root:.6' /etc/shadow")["output"] == "1\n"
    machine.serial.sendall(b"poweroff\n")
    until(lambda: machine.process.poll() is not None, "the guest to power off")


def test_without_config_drive(guest_image: dict[str, Path], start: Callable[..., Machine]) -> None:
    kernel = ("-kernel", str(guest_image["kernel"]), "-initrd", str(guest_image["ramdisk"]))
    machine = start(*kernel, "-append", guest.KERNEL_ARGS)
    machine.wait(lambda said: any(line.startswith("ready") for line in said))
    said = guest.markers(machine.console)
    assert "config_drive=absent" in said
    assert "user_data=absent" in said


def test_crash_is_seen_from_outside(guest_image: dict[str, Path], start: Callable[..., Machine]) -> None:
    kernel = ("-kernel", str(guest_image["kernel"]), "-initrd", str(guest_image["ramdisk"]))
    machine = start(*kernel, "-append", guest.KERNEL_ARGS, "-device", "pvpanic", "-action", "panic=shutdown")
    machine.wait(lambda said: any(line.startswith("ready") for line in said))
    assert machine.ask("crash") == {"crash": True}
    # The console must be read on: a full pipe would hold up the guest in the middle of its last words.
    with pytest.raises((AssertionError, ConnectionError)):
        machine.wait(lambda _: False)
    assert "Kernel panic" in machine.console
    until(lambda: machine.process.poll() is not None, "QEMU to end after the guest's panic")


def test_nothing_is_built_twice(guest_image: dict[str, Path]) -> None:
    before = {path: path.stat().st_mtime_ns for path in guest_image.values()}
    assert guest.build() == guest_image
    assert {path: path.stat().st_mtime_ns for path in guest_image.values()} == before
    assert guest_image["disk"].stat().st_size < 60 * 2**20
