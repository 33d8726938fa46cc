# SPDX-License-Identifier: GPL-3.0-or-later
"""A way to a PostgreSQL that can be made to swallow: connections are taken, and nothing comes back."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from tools import postgres as server


class Swallowing:
    """A TCP port on the way to the cluster in *folder*."""

    def __init__(self, folder: Path) -> None:
        self._server = f"{folder}/.s.PGSQL.5432"
        self._goes = threading.Event()
        self._goes.set()
        self._port = socket.create_server(("127.0.0.1", 0), backlog=200)
        self._sockets: list[socket.socket] = [self._port]
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, database: str) -> str:
        """What ``Database`` takes."""
        return f"postgresql+psycopg://{server.USER}@127.0.0.1:{self._port.getsockname()[1]}/{database}"

    @contextlib.contextmanager
    def swallows(self) -> Iterator[None]:
        """Within, nobody is answered; afterwards what was sent goes its way."""
        self._goes.clear()
        try:
            yield
        finally:
            self._goes.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _address = self._port.accept()
                there = socket.socket(socket.AF_UNIX)
                there.connect(self._server)
                self._sockets += [here, there]
                for one, other in ((here, there), (there, here)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                self._goes.wait()
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End."""
        self._goes.set()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
