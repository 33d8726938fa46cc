# SPDX-License-Identifier: GPL-3.0-or-later
"""Consoles of the fake hypervisor. Its guests have a terminal that echoes input, a VNC server that sends its greeting
and then echoes, and a SPICE server that echoes from the start."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from magnetar_agent.host.hypervisor import NO_GRAPHICS
from magnetar_core.errors import Conflict
from magnetar_core.power import LIVE

from .domains import Domains

if TYPE_CHECKING:
    from collections.abc import Callable

    from magnetar_agent.host.hypervisor import DomainEvent

#: The greeting of a VNC server.
GREETING = b"RFB 003.008\n"
BREAK = "[break]"


class Consoles(Domains):
    """A base class of ``FakeHypervisor``, the fake hypervisor for tests. It has the methods of ``LocalHypervisor`` for
    consoles."""

    def open_graphics(self, uuid: str, type: str) -> socket.socket:
        with self._call("open_graphics"):
            self._check_runs(uuid)
            if ET.fromstring(self._domains[uuid].live).find(f"devices/graphics[@type='{type}']") is None:  # noqa: S314
                raise Conflict(NO_GRAPHICS[type])
            return self._console(uuid, lambda guest, heard: guest.sendall(heard), GREETING if type == "vnc" else b"")

    def open_serial(self, uuid: str) -> int:
        with self._call("open_serial"):
            line = self._console(uuid, lambda guest, heard: self._say(uuid, heard, guest))
            line.setblocking(False)
            return line.detach()

    def send_break(self, uuid: str) -> None:
        with self._call("send_break"):
            self._active(uuid, "send a break to")
            self.guest_says(uuid, BREAK)

    def guest_says(self, uuid: str, text: str) -> None:
        """Simulate that the guest writes *text* to its serial console."""
        self._say(uuid, text.encode(), *self._consoles.get(uuid, ()))

    def _say(self, uuid: str, output: bytes, *lines: socket.socket) -> None:
        log = ET.fromstring(self._domains[uuid].live).find("devices/serial/log")  # noqa: S314 (we wrote it)
        if log is not None:
            Path(log.get("file", "")).touch(0o600)
            with Path(log.get("file", "")).open("ab") as file:
                file.write(output)
        for line in lines:
            with contextlib.suppress(OSError):
                line.sendall(output)

    def _check_runs(self, uuid: str) -> None:
        if self._ours(uuid).state not in LIVE:
            raise Conflict("The guest does not run, so it has no console. Start the server.")

    def _console(self, uuid: str, answer: Callable[[socket.socket, bytes], None], greeting: bytes = b"") -> \
            socket.socket:
        self._check_runs(uuid)
        ours, theirs = socket.socketpair()
        self._consoles.setdefault(uuid, []).append(theirs)
        threading.Thread(target=self._guest, args=(uuid, theirs, answer, greeting), daemon=True).start()
        return ours

    def _guest(self, uuid: str, line: socket.socket, answer: Callable[[socket.socket, bytes], None],
               greeting: bytes) -> None:
        with contextlib.suppress(OSError):
            line.sendall(greeting)
            while heard := line.recv(1 << 16):
                answer(line, heard)
        with self._lock:
            open_lines = self._consoles.get(uuid, [])
            if line in open_lines:
                open_lines.remove(line)
            if not open_lines:
                self._consoles.pop(uuid, None)
        line.close()

    def _happened(self, event: DomainEvent) -> None:
        """Override ``State._happened``: close the consoles of a domain when *event* says that it has stopped."""
        if event.what in ("stopped", "crashed"):
            for line in self._consoles.pop(event.uuid, ()):
                with contextlib.suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)
