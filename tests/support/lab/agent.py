# SPDX-License-Identifier: GPL-3.0-or-later
"""A real agent of this checkout, in a process of its own, on the real libvirt of this machine.

It has a folder of its own under /var/lib (QEMU must be able to reach it), with settings, socket, log and state. When it
is closed, the domains and networks that its documents and folders name are removed, and its folder and process. Other
domains are left alone.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import libvirt
import yaml

from magnetar_agent.host.networks import PortFilter, tap_prefix
from magnetar_agent.metadata.steering import Steering
from magnetar_agent.virt.network import reservations
from magnetar_agent.virt.network.port_filter import NftPortFilter
from magnetar_core.errors import MagnetarError
from magnetar_core.http.client import Client
from tests.support import waiting
from tests.support.lab import guest
from tests.support.waiting import LIMIT

CHECKOUT = Path(__file__).resolve().parents[3]
CACHE = CHECKOUT / ".cache"
#: Waits, also while the agent does not answer or refuses.
eventually = partial(waiting.eventually, passing=(MagnetarError,), pause=0.1)

# libvirt writes every error to stderr too, also those that are asked for here.
libvirt.registerErrorHandler(lambda *_: None, None)


class LabAgent:
    """A real agent with the given settings; a context manager. It uses QEMU without KVM, because KVM may hang (lab
    README).
    """

    def __init__(self, **settings: Any) -> None:
        self.mark = secrets.token_hex(3)
        first, second = bytes.fromhex(self.mark)[:2]
        self.subnet = f"10.{100 + first % 100}.{second}."  # of its own, since several of these may run at once
        self.cidr = f"{self.subnet}0/24"
        self.folder = Path(f"/var/lib/mag-lab-{self.mark}")
        self.state = self.folder / "state"
        self.imports = self.folder / "import"
        self.socket = self.folder / "agent.sock"
        self.log = self.folder / "agent.log"
        self.config = self.folder / "agent.yml"
        self.endpoint = f"unix://{self.socket}"
        self.settings = {
            "state_dir": str(self.state), "socket": str(self.socket), "image_paths": [str(self.imports)],
            "tokens_file": str(self.folder / "tokens.yml"), "virt_type": "qemu", **settings,
        }  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None
        self._libvirt: Any = None

    def __enter__(self) -> Self:
        self.imports.mkdir(parents=True)
        self.folder.chmod(0o711)
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The process

    def launch(self) -> None:
        """Start the process without waiting for it to answer."""
        self.config.write_text(yaml.safe_dump(self.settings))
        environment = {**os.environ, "PYTHONPATH": str(CACHE / "src")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "magnetar_agent", "agent", "--config", self.config],
                cwd="/", env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def start(self) -> None:
        """Start the process and wait until it answers."""
        self.launch()
        eventually(self.answers, "the agent answers")

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the agent ended:\n{self.log.read_text()[-4000:]}"
        if not self.socket.exists():
            return False
        with self.client() as client:
            return bool(client.get("host")["connected"])

    def end(self, number: int) -> None:
        """End the process with a signal, and wait until it has ended."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
        if self.process is not None:
            self.process.wait(60)

    def stop(self) -> None:
        self.end(signal.SIGTERM)

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def logged(self) -> list[dict[str, Any]]:
        """Return the lines of the agent's log."""
        found = []
        for line in self.log.read_text().splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
        return found

    # What it is asked

    def client(self, **more: Any) -> Client:
        """Return a client, one for each thread; over the socket, unless *more* has another endpoint."""
        return Client(**{"endpoint": self.endpoint, "timeout": LIMIT, **more})

    def ensure(self, noun: str, key: str, want: dict[str, Any], **more: Any) -> dict[str, Any]:
        with self.client() as client:
            answer: dict[str, Any] = client.ensure(noun, key, want, **more)
            return answer

    def delete(self, noun: str, key: str) -> dict[str, Any]:
        with self.client() as client:
            answer: dict[str, Any] = client.delete(noun, key)
            return answer

    def show(self, noun: str, key: str | None = None) -> dict[str, Any]:
        with self.client() as client:
            found: dict[str, Any] = client.get(noun, key)
            return found

    def names(self, noun: str) -> list[str]:
        with self.client() as client:
            return [one["name"] for one in client.list(noun)]

    def event(self, key: str, request_id: str, **args: Any) -> dict[str, Any]:
        with self.client() as client:
            answer: dict[str, Any] = client.event("server", key, "reboot", args, request_id=request_id)
            return answer

    def power(self, key: str, power: str) -> dict[str, Any]:
        shown: dict[str, Any] = self.ensure("server", key, {"power": power})["resource"]
        return shown

    def becomes(self, key: str, power_state: str) -> dict[str, Any]:
        """Wait until the server has the power state, and return the server."""

        def look() -> dict[str, Any] | None:
            found = self.show("server", key)
            return found if found["power_state"] == power_state else None

        shown: dict[str, Any] = eventually(look, f"{key} is {power_state}")
        return shown

    def import_image(self, name: str, source: Path, **more: Any) -> dict[str, Any]:
        """Create an image from a file of this machine."""
        target = self.imports / f"{name}{source.suffix}"
        shutil.copyfile(source, target)
        shown: dict[str, Any] = self.ensure("image", name, {"source": {"path": str(target)}, **more})["resource"]
        return shown

    def orphans(self) -> dict[str, list[str]]:
        """Return the orphans in GET /v1/host, without domains of other agents on this machine's libvirt."""
        found: dict[str, list[str]] = self.show("host")["orphans"]
        ours = {domain.UUIDString() for domain in self.domains()}
        return {**found, "domains": [one for one in found["domains"] if one.rpartition("(")[2].rstrip(")") in ours]}

    # Its guests

    def console(self, key: str) -> str:
        """Return the text of the server's console log on the host."""
        path = Path(self.show("server", key)["console_log"])
        return path.read_text(errors="replace") if path.exists() else ""

    def markers(self, key: str) -> list[str]:
        return guest.markers(self.console(key))

    def boots(self, key: str) -> int:
        """Return how often the guest has reported that it has booted."""
        return sum(marker.startswith("ready") for marker in self.markers(key))

    def up(self, key: str, times: int = 1) -> list[str]:
        """Wait until the guest has booted *times* times; return all its markers."""
        eventually(lambda: self.boots(key) >= times, f"{key} is up for the {times}. time")
        return self.markers(key)

    def ask(self, key: str, words: str) -> dict[str, Any]:
        """Type a command into the guest's serial console; return its answer (see guest.replies)."""
        before, terminal = len(guest.replies(self.console(key))), self.terminal(key)
        try:
            end = time.monotonic() + LIMIT
            while time.monotonic() < end:
                os.write(terminal, f"{words}\n".encode())
                again = time.monotonic() + 10
                while time.monotonic() < again:
                    with suppress(BlockingIOError):
                        os.read(terminal, 65536)  # a full line would hold up the guest
                    found = guest.replies(self.console(key))[before:]
                    if found:
                        return found[0]
                    time.sleep(0.05)
        finally:
            os.close(terminal)
        raise AssertionError(f"{key} does not answer to {words!r}:\n{self.console(key)[-2000:]}")

    def terminal(self, key: str) -> int:
        xml = self.domain(key).XMLDesc()
        path = xml.partition("<serial type='pty'>")[2].partition("<source path='")[2].partition("'")[0]
        return os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)

    def sh(self, key: str, command: str) -> str:
        """Return the output of a shell command in the guest, which must succeed."""
        answer = self.ask(key, f"sh {command}")
        assert answer["code"] == 0, answer
        return str(answer["output"])

    def uptime(self, key: str) -> float:
        """Return the seconds since the guest's kernel started."""
        return float(self.sh(key, "cat /proc/uptime").split()[0])

    # What libvirt and the kernel know

    @property
    def libvirt(self) -> Any:
        # Once another test has set up libvirt's event loop, libvirtd closes connections that it finds silent for 30 s.
        with suppress(AttributeError, libvirt.libvirtError):
            self._libvirt.getLibVersion()
            return self._libvirt
        self._libvirt = libvirt.open(str(self.settings.get("libvirt_uri", "qemu:///system")))
        return self._libvirt

    def domain(self, key: str) -> Any:
        return self.libvirt.lookupByUUIDString(self.show("server", key)["id"])

    def domains(self) -> list[Any]:
        """Return the domains with disks in this agent's folder."""
        found = []
        for domain in self.libvirt.listAllDomains():
            with suppress(libvirt.libvirtError):
                if str(self.folder) in domain.XMLDesc():
                    found.append(domain)
        return found

    def processes(self) -> dict[int, str]:
        """Return QEMU and other processes, except the agent, with this agent's folder or networks in their command
        lines, by pid.
        """
        found = {}
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if self.mark in words and "magnetar_agent" not in words and int(path.parent.name) != os.getpid():
                    found[int(path.parent.name)] = words
        return found

    def qemu(self, key: str) -> int:
        """Return the pid of a server's QEMU."""
        uuid = self.show("server", key)["id"]
        return next(pid for pid, words in self.processes().items() if f"-uuid {uuid} " in words)

    # The end

    def close(self) -> None:
        """End the process, and remove only what this agent made."""
        self.kill()
        if not self.folder.exists():
            return
        documents = [json.loads(path.read_text()) for path in self.state.glob("documents/*/*.json")]
        named = {path.stem for path in self.state.glob("documents/server/*.json")}
        named |= {path.name for path in self.state.glob("servers/*")} | {d.UUIDString() for d in self.domains()}
        for uuid in named:
            with suppress(libvirt.libvirtError):
                remove_domain(self.libvirt.lookupByUUIDString(uuid))
        for name in [one.get("name", "") for one in documents]:
            if self.mark in name or name.startswith("mag-"):  # of a cloud; documented: its own
                with suppress(libvirt.libvirtError):
                    remove_network(self.libvirt.networkLookupByName(name))
        if self._libvirt is not None:
            self._libvirt.close()
        with suppress(MagnetarError):
            Steering.of(self.state).unload()
            NftPortFilter().filter_ports(PortFilter(tap_prefix(self.state)))
        subprocess.run(["umount", "--quiet", self.state / "images"], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(self.folder)


def remove_domain(domain: Any) -> None:
    """Destroy and undefine the domain."""
    if domain.isActive():
        domain.destroy()
    with suppress(libvirt.libvirtError):
        domain.undefineFlags(libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
                             | libvirt.VIR_DOMAIN_UNDEFINE_NVRAM | libvirt.VIR_DOMAIN_UNDEFINE_TPM)


def remove_network(network: Any) -> None:
    """Destroy and undefine the network, and remove its file of DHCP reservations."""
    name = network.name()
    if network.isActive():
        network.destroy()
    with suppress(libvirt.libvirtError):
        network.undefine()
    reservations.remove_reservations(name)


@contextmanager
def stopped(*processes: int) -> Iterator[None]:
    """Stop *processes* (SIGSTOP) within the context."""
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
