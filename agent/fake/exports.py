# SPDX-License-Identifier: GPL-3.0-or-later
"""Disks that the fake serves to other hosts: who connects is told the name of the export, and no more."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

from magnetar_agent.fake.state import State
from magnetar_core.errors import HypervisorError

if TYPE_CHECKING:
    from pathlib import Path

    from magnetar_agent.hypervisor import Export


class Exports(State):
    """The protocol's methods for disks of other hosts."""

    _served: dict[str, tuple[Export, socket.socket]] | None = None

    def serve(self, export: Export) -> None:
        with self._call("serve", needs_libvirt=False):
            if self.serving(export.id) == export:
                return
            if not export.disk.path.exists():
                raise HypervisorError(f"qemu-nbd does not serve the disk {export.disk.path}: there is no such file.")
            self.unserve(export.id)
            listener = socket.socket(socket.AF_UNIX)
            export.socket.unlink(missing_ok=True)
            listener.bind(str(export.socket))
            listener.listen()
            threading.Thread(target=_answer, args=(listener, export), name="fake-export", daemon=True).start()
            if self._served is None:
                self._served = {}
            self._served[export.id] = (export, listener)

    def serving(self, id: str) -> Export | None:
        found = (self._served or {}).get(id)
        return found[0] if found else None

    def unserve(self, id: str) -> None:
        found = (self._served or {}).pop(id, None)
        if found:
            export, listener = found
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            export.socket.unlink(missing_ok=True)

    def rejoin(self, uuid: str, socket: Path) -> None:
        with self._call("rejoin"):
            return

    def close_exports(self) -> None:
        """The agent's process has ended, and its servers with it."""
        for id in list(self._served or {}):
            self.unserve(id)


def _answer(listener: socket.socket, export: Export) -> None:
    while True:
        try:
            sock, _address = listener.accept()
        except OSError:
            return
        with sock:
            sock.sendall(f"{export.name} {'stand-in' if export.stand_in else 'disk'}\n".encode())
