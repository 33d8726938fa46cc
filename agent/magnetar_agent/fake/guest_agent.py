# SPDX-License-Identifier: GPL-3.0-or-later
"""The fake's guest agents, and copies of guests' disks. Guests whose uuid is in ``talking`` have an agent that
answers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent.host.hypervisor import DomainEvent
from magnetar_agent.host.storage import DiskSeen
from magnetar_core.errors import Conflict, GuestRefused, HypervisorError, NoGuestAgent
from magnetar_core.power import LIVE

from .disks import read_fake_disk, write_fake_disk
from .domains import Domains
from .exports import Exports
from .state import parse_domain

if TYPE_CHECKING:
    from magnetar_agent.host.storage import DiskKey, Progress


def answer_as_idle_guest(_uuid: str, request: str) -> str:
    """Return the JSON answer of a simulated guest agent to the JSON *request*: each program that it is asked to run
    ends immediately without output. Raises ``GuestRefused`` for unknown commands."""
    command = json.loads(request)["execute"]
    answers: dict[str, Any] = {
        "guest-info": {"version": "fake", "supported_commands": [
            {"name": name, "enabled": True} for name in ("guest-exec", "guest-exec-status")]},
        "guest-exec": {"pid": 1}, "guest-exec-status": {"exited": True, "exitcode": 0}}
    if command not in answers:
        raise GuestRefused(f"The command {command} has not been found")
    return json.dumps({"return": answers[command]})


class GuestAgent(Domains, Exports):
    """A base class of ``FakeHypervisor``, the fake for tests: its ``LocalHypervisor`` methods for the QEMU guest agent,
    and for copies of disks."""

    #: Answers the requests to guest agents, given the guest's uuid and the request; tests replace it.
    answer_guest: Callable[[str, str], str] = staticmethod(answer_as_idle_guest)

    def freeze(self, uuid: str) -> bool:
        with self._call("freeze"):
            self._active(uuid, "freeze the file systems of")
            if self._talks(uuid):
                self.frozen.add(uuid)
            return self._talks(uuid)

    def thaw(self, uuid: str) -> None:
        with self._call("thaw"):
            self.frozen.discard(uuid)

    def set_password(self, uuid: str, user: str, password: str) -> None:
        with self._call("set_password"):
            self._active(uuid, "set a password in")
            if not self._talks(uuid):
                raise Conflict("No guest agent answers in the guest, so its passwords cannot be set. Install and "
                               "start qemu-guest-agent there, then repeat the call.")
            self.passwords[uuid, user] = password

    def agent_connected(self, uuid: str) -> bool:
        with self._call("agent_connected"):
            return uuid in self._domains and self._domains[uuid].state in LIVE and self._talks(uuid)

    def ask_guest_agent(self, uuid: str, request: str, seconds: int) -> str:
        with self._call("ask_guest_agent"):
            self._active(uuid, "ask the guest agent of")
            if not self._talks(uuid):
                raise NoGuestAgent("libvirt could not ask it: QEMU guest agent is not connected.", why="silent")
        return self.answer_guest(uuid, request)

    def agent_comes_up(self, uuid: str) -> None:
        """Simulate that the guest starts its guest agent."""
        with self._change():
            self.talking.add(uuid)
            self._events.append(DomainEvent(uuid, "agent"))

    def inject_nmi(self, uuid: str) -> None:
        with self._call("inject_nmi"):
            self._active(uuid, "send an NMI to")
            self.interrupted.append(uuid)

    def begin_copy(self, uuid: str, target: str, path: Path, format: str = "qcow2", key: DiskKey | None = None) -> None:
        with self._call("begin_copy", "copies"):
            self._active(uuid, "copy a disk of")
            if uuid in self._copies:
                raise HypervisorError(f"libvirt could not copy a disk of the domain {uuid}: a copy runs already.")
            domain = parse_domain(self._domains[uuid].live)
            disk = next((disk for disk in domain.disks if disk.target == target), None)
            if disk and disk.remote:
                disk = self._behind(disk.remote)
            source_disk = read_fake_disk(disk.path, disk.format) if disk else None
            if source_disk is None:
                raise HypervisorError(f"libvirt could not copy a disk of the domain {uuid}: there is no {target}.")
            part = path.with_name(path.name + ".part")
            part.unlink(missing_ok=True)
            write_fake_disk(part, DiskSeen(format, source_disk.virtual_size))
            self._copies.add(uuid)

    def backup_outside(self, uuid: str) -> None:
        """Simulate that another program copies a disk of the domain; the copy lasts until the domain stops."""
        with self._change("copies"):
            self._copies.add(uuid)

    def copying(self, uuid: str) -> bool:
        """Return whether a copy of a disk of the domain is running."""
        return uuid in self._copies

    def finish_copy(self, uuid: str, path: Path, progress: Progress) -> None:
        part = path.with_name(path.name + ".part")
        try:
            with self._call("finish_copy"):
                total = (read_fake_disk(part) or DiskSeen("raw", 0)).virtual_size
                for tenth in range(11):
                    self._active(uuid, "copy a disk of")
                    progress(total * tenth // 10, total)
                    time.sleep(self.delay / 10)
                if uuid not in self._copies:
                    raise HypervisorError(f"libvirt could not copy a disk of the domain {uuid}: there is no copy.")
                part.rename(path)
                with self._change("copies"):
                    self._copies.discard(uuid)
        except BaseException:
            self.abort_copy(uuid, path)
            raise

    def abort_copy(self, uuid: str, path: Path) -> None:
        with self._call("abort_copy", "copies"):
            if path.with_name(path.name + ".part").exists():
                self._copies.discard(uuid)
            for name in (path.name, path.name + ".part"):
                path.with_name(name).unlink(missing_ok=True)
