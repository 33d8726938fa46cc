# SPDX-License-Identifier: GPL-3.0-or-later
"""The hypervisor of a simulated host: the fake, with a size, slow starts, and no thread of its own."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent.fake import FakeHypervisor
from magnetar_core.errors import HypervisorError
from magnetar_core.hardware.numa import HostCell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from magnetar_agent.host.storage import DiskKey

#: The longest line of a migration: the domain, and its disks in base64.
LONGEST_LINE = 1 << 30


@dataclass(frozen=True)
class HostSize:
    """The size of each simulated host: CPUs, memory in MiB, disk in GiB. *boot_seconds*: how long a start of a guest
    takes."""

    vcpus: int = 16
    memory: int = 65536
    disk: int = 1000
    boot_seconds: float = 0.0

    def cells(self) -> tuple[HostCell, ...]:
        """Return the host's NUMA topology: a single cell with all CPUs and memory."""
        return (HostCell(0, frozenset(), frozenset(range(self.vcpus)), self.memory),)


class SimulatedHypervisor(FakeHypervisor):
    """The fake hypervisor of the simulated host *name*. *folder*: where its socket for live migrations is created.
    *loop*: the event loop that serves the socket."""

    def __init__(self, name: str, size: HostSize, cells: Sequence[HostCell], folder: Path,
                 loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name=name, guest_agents=True)
        self.size, self.cells = size, cells
        self._place_folder, self._loop = folder, loop
        self._server: asyncio.AbstractServer | None = None

    def host(self) -> dict[str, Any]:
        """Return the host facts of the fake hypervisor, with CPUs and memory of the configured size."""
        return super().host() | {"vcpus": self.size.vcpus, "memory_mb": self.size.memory}

    def start(self, uuid: str, paused: bool = False, secret: str | None = None, keys: Sequence[DiskKey] = ()) -> None:
        """Sleep for ``boot_seconds``, then start the guest as ``FakeHypervisor`` does. The parameters are those of
        ``LocalHypervisor.start``."""
        if self.size.boot_seconds:
            time.sleep(self.size.boot_seconds)
        super().start(uuid, paused, secret, keys)

    def libvirt_socket(self) -> Path:
        """Return the path of the unix socket that receives guests from other hosts in a live migration. The first call
        creates it."""
        with self._lock:
            if self._server is None:
                self._where = self._socket_path()
                self._where.unlink(missing_ok=True)
                self._server = asyncio.run_coroutine_threadsafe(asyncio.start_unix_server(
                    self._receive_guest, str(self._where), limit=LONGEST_LINE), self._loop).result()
            return self._where

    def close_socket(self) -> None:
        """Close the unix socket for incoming live migrations."""
        if self._server is not None:
            self._where.unlink(missing_ok=True)
            self._loop.call_soon_threadsafe(self._server.close)
            self._server = None

    def _socket_path(self) -> Path:
        self._place_folder.mkdir(parents=True, exist_ok=True)
        return self._place_folder / "libvirt.sock"

    async def _receive_guest(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if line := await reader.readline():
                await asyncio.to_thread(self._come, json.loads(line))
                writer.write(b"{}\n")
                await writer.drain()
        except (HypervisorError, OSError):  # the other side gets no message about it
            pass
        finally:
            writer.close()
