# SPDX-License-Identifier: GPL-3.0-or-later
"""Disks that the fake serves to other hosts: a client receives the name of the export, and path and format of the
disk."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from magnetar_agent.host.storage import Disk
from magnetar_core.errors import HypervisorError

from .state import State

if TYPE_CHECKING:
    from magnetar_agent.host.storage import Export, NetworkSource


class Exports(State):
    """A base class of ``FakeHypervisor``, the fake for tests: its ``LocalHypervisor`` methods for disks that are served
    to other hosts over NBD."""

    _served: dict[str, tuple[Export, _Server]] | None = None
    #: Connections to exports in place of QEMU's, by socket path.
    _joined: dict[Path, socket.socket] | None = None

    def serve(self, export: Export) -> None:
        with self._call("serve", needs_libvirt=False):
            if self.serving(export.id) == export:
                return
            if not export.disk.path.exists():
                raise HypervisorError(f"qemu-nbd does not serve the disk {export.disk.path}: there is no such file.")
            self.unserve(export.id)
            server = _Server(export)
            if self._served is None:
                self._served = {}
            self._served[export.id] = (export, server)

    def serving(self, id: str) -> Export | None:
        served = (self._served or {}).get(id)
        return served[0] if served else None

    def unserve(self, id: str) -> None:
        served = (self._served or {}).pop(id, None)
        if served:
            served[1].end()

    def reconnect_disk(self, uuid: str, socket: Path) -> None:
        with self._call("reconnect_disk"), self._lock:
            if self._joined is None:
                self._joined = {}
            if socket in self._joined:
                self._joined.pop(socket).close()
            self._joined[socket] = client = _socket()
            client.connect(str(socket))

    def _behind(self, remote: NetworkSource) -> Disk:
        """Return the disk behind *remote*: the disk that an NBD server serves at its unix socket, or an image in a Ceph
        pool."""
        if remote.protocol == "rbd":
            return Disk((self._folder or Path("/nonexistent")) / remote.name, "", "raw")
        for export, _server in (self._served or {}).values():
            if export.socket == remote.socket:
                return export.disk
        greeting, path, format = _greeting(remote.socket)
        if greeting.partition(" ")[0] != remote.name:
            raise HypervisorError(f"The disk {remote} cannot be reached: nobody serves it.")
        return Disk(Path(path), "", format)

    def _unlocked(self, path: Path) -> None:
        """Raise ``HypervisorError`` if the file at *path* is served by an NBD server that locks it, as qemu-nbd does.
        Servers of a temporary overlay (``stand_in``) or a shareable disk do not lock the file."""
        if any(export.disk.path == path and not export.stand_in and not export.disk.shareable
               for export, _server in (self._served or {}).values()):
            raise HypervisorError(f"qemu-img could not open {path}: another process uses it.")

    def close_exports(self) -> None:
        """Stop all NBD servers, as at the end of the agent's process."""
        for id in list(self._served or {}):
            self.unserve(id)
        with self._lock:
            for client in (self._joined or {}).values():
                client.close()
            self._joined = None


class _Server:
    """A fake NBD server. It sends the name and path of its disk to each client, and keeps the connections open until
    ``end``."""

    def __init__(self, export: Export) -> None:
        self.export = export
        self._clients: list[socket.socket] = []
        export.socket.unlink(missing_ok=True)
        self._listener = _socket()
        self._listener.bind(str(export.socket))
        self._listener.listen()
        threading.Thread(target=self._answer, name="fake-export", daemon=True).start()

    def end(self) -> None:
        """Close the listening socket and all connections."""
        for sock in (self._listener, *self._clients):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self.export.socket.unlink(missing_ok=True)

    def _answer(self) -> None:
        disk = self.export.disk
        words = (f"{self.export.name} {'stand-in' if self.export.stand_in else 'disk'}\n{disk.path}\n"
                 f"{disk.format}\n").encode()
        while True:
            try:
                sock, _address = self._listener.accept()
            except OSError:
                return
            self._clients.append(sock)
            with contextlib.suppress(OSError):  # it has disconnected already
                sock.sendall(words)


def _greeting(path: Path | None) -> tuple[str, str, str]:
    """Return the three lines that the fake NBD server at the unix socket *path* sends: name, path and format of the
    disk; three empty texts if no server answers."""
    with _socket() as client, contextlib.suppress(OSError):
        client.settimeout(5)
        client.connect(str(path))
        lines = client.makefile()
        return lines.readline().strip(), lines.readline().strip(), lines.readline().strip()
    return "", "", ""


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX)
