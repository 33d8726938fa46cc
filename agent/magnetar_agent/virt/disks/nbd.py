# SPDX-License-Identifier: GPL-3.0-or-later
"""Disks served to other hosts: one ``qemu-nbd`` for each disk, watched by a thread, at a unix socket and not at a port.

qemu-nbd runs as QEMU's user without any capability, so it has the rights of a guest. Root owns the folder of the socket
and the names in it: qemu-nbd inherits the listening socket from the agent (socket activation as by systemd). When the
agent ends, qemu-nbd and the links to other hosts end too; QEMU's NBD clients on these hosts connect again."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import libvirt_qemu  # type: ignore[import-untyped]

from magnetar_agent.host.file_modes import UMASK
from magnetar_agent.host.sockets import bind_unix_socket
from magnetar_agent.virt.tools.process import bound_to_us, run_program
from magnetar_core.errors import HypervisorError

from . import disk_keys
from .disks import direct_io
from .qemu_img import check_backing_files, inspect_disk

if TYPE_CHECKING:
    from magnetar_agent.host.storage import Export
    from magnetar_agent.virt.connection.pool import ConnectionPool

log = logging.getLogger(__name__)

#: Seconds until qemu-nbd must listen, and between two attempts to start one that dies.
READY, AGAIN = 20.0, 1.0
#: Attempts before the caller gets an error: the previous user of the disk may take a moment to release its lock.
ATTEMPTS = 3
#: Seconds between two such attempts.
POLL_INTERVAL = 0.1
#: Connections that may wait until qemu-nbd accepts them.
BACKLOG = 16
#: Passes standard input to the program as the socket of sd_listen_fds(3), which is bound to a process id.
_LISTENS = ("sh", "-c", 'exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"', "sh")
#: Seconds that qemu-nbd may take to write its cached data after SIGTERM.
LAST_WORDS = 30.0
OVERLAY = "stand-in.qcow2"
_HMP = libvirt_qemu.VIR_DOMAIN_QEMU_MONITOR_COMMAND_HMP


class Exports:
    """The methods of ``LocalHypervisor`` that serve disks over NBD to QEMUs on other hosts."""

    connection: ConnectionPool

    def __init__(self) -> None:
        self._servers: dict[str, _NbdServer] = {}
        self._guard = threading.Lock()

    def qemu_user(self) -> tuple[int, int]:
        """Return the ids of the user and group that QEMU runs with."""
        raise NotImplementedError

    def serve(self, export: Export) -> None:
        """Start qemu-nbd for *export*, unless it is running already, and wait until it listens."""
        with self._guard:
            server = self._servers.get(export.id)
            if server and server.export != export:
                server.end()
                server = None
            if server is None:
                server = self._servers[export.id] = _NbdServer(export, self.qemu_user())
        server.wait()

    def serving(self, id: str) -> Export | None:
        """Return the export with this *id*; ``None`` if it is not being served."""
        server = self._servers.get(id)
        return server.export if server else None

    def unserve(self, id: str) -> None:
        """Stop the qemu-nbd of the export *id*, after it has flushed its caches."""
        with self._guard:
            server = self._servers.pop(id, None)
            if server:
                server.end()

    def reconnect_disk(self, uuid: str, socket: Path) -> None:
        """Make the QEMU of the domain *uuid* reconnect to its NBD disk at *socket*, by reading from the disk. QEMU
        reconnects only at the next read or write, and this read or write fails, so it must not be one of the guest's.
        libvirt 9.0 cannot set QEMU's option reconnect-delay, which would prevent the failure."""
        def read(conn: Any) -> None:
            domain = conn.lookupByUUIDString(uuid)
            if not domain.isActive():
                return
            blocks = json.loads(libvirt_qemu.qemuMonitorCommand(domain, '{"execute": "query-block"}', 0))["return"]
            for block in (device["inserted"] for device in blocks if "inserted" in device):
                if str(socket) in block.get("file", ""):
                    libvirt_qemu.qemuMonitorCommand(domain, f'qemu-io {block["node-name"]} "read 0 512"', _HMP)
        self.connection.ask(f"reconnect a disk of the domain {uuid}", uuid, read)

    def close_exports(self) -> None:
        """Stop the qemu-nbd processes of all exports."""
        for id in list(self._servers):
            self.unserve(id)


class _NbdServer(threading.Thread):
    """A thread that runs qemu-nbd for one disk and restarts it after a failure. The thread must not end before
    qemu-nbd, because setpriv kills qemu-nbd when the thread that started it ends."""

    def __init__(self, export: Export, user: tuple[int, int]) -> None:
        super().__init__(name=f"export {export.id[:8]}", daemon=True)
        self.export, self.user = export, user
        self._ended, self._listens = threading.Event(), threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._said, self._failures = "", 0
        self.start()

    def wait(self) -> None:
        """Wait until qemu-nbd listens. Raises ``HypervisorError`` with qemu-nbd's output if it does not."""
        deadline, failures = time.monotonic() + READY, self._failures + ATTEMPTS
        while not self._listens.wait(POLL_INTERVAL) and time.monotonic() < deadline and self._failures < failures:
            pass
        if not self._listens.is_set():
            raise HypervisorError(f"qemu-nbd does not serve the disk {self.export.disk.path}: "
                                  f"{self._said or 'it does not listen'}. It is tried again; see who else uses it.")

    def end(self) -> None:
        """Stop qemu-nbd and wait until it has closed the disk. Remove its socket and, if it served a temporary overlay
        instead of the disk itself, the overlay."""
        self._ended.set()
        process = self._process
        if process and process.poll() is None:
            process.terminate()
        self.join(LAST_WORDS + 5)
        self.export.socket.unlink(missing_ok=True)
        self._overlay().unlink(missing_ok=True)

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                self._serve()
            except (OSError, HypervisorError) as error:
                self._said = str(error)
            self._failures += 1
            if not self._ended.is_set():
                log.warning("the export of %s ended and is started again: %s", self.export.disk.path, self._said)
                self._ended.wait(AGAIN)

    def _serve(self) -> None:
        export = self.export
        export.socket.unlink(missing_ok=True)
        if export.stand_in:
            self._make_overlay()
        check_backing_files([export.disk], self.user)
        # As libvirt does before QEMU gets a disk. While a domain has it, libvirt has done so.
        os.chown(self._overlay() if export.stand_in else export.disk.path, *self.user)
        key = export.disk.key
        with bind_unix_socket(export.socket, self.user[1]) as listener, disk_keys.qemu_key_options(
            [key] if key else []) as (words, files):
            listener.listen(BACKLOG)
            process = self._process = subprocess.Popen(  # noqa: S603 (a list of ours; the shell's text is fixed)
                self._command(words), pass_fds=files, stdin=listener.fileno(), stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, start_new_session=True, env={**os.environ, "LC_ALL": "C"}, umask=UMASK)
        try:
            if self._ended.is_set():  # end() was called before there was a process
                process.terminate()
            self._until_it_listens()
            self._read(process)
        finally:
            self._listens.clear()
            self._kill(process)

    def _command(self, keys: list[str]) -> list[str]:
        direct = self.export.disk.block_device or direct_io(self.export.disk.path.parent)
        return [*_LISTENS, *bound_to_us(self.user),
                "qemu-nbd", "--persistent", "--shared=0", f"--export-name={self.export.name}",
                f"--cache={'none' if direct else 'writeback'}", f"--aio={'native' if direct else 'threads'}",
                "--discard=unmap", *keys, *(["--read-only"] if self.export.disk.readonly else []),
                "json:" + json.dumps(self._node())]

    def _node(self) -> dict[str, Any]:
        """Return the disk as a QEMU block node (JSON) for qemu-nbd. Formats and backing files are stated explicitly, so
        that a header written by a guest has no effect."""
        disk = self.export.disk
        file = {"driver": "host_device" if disk.block_device else "file", "filename": str(disk.path)}
        if disk.shareable:  # a multiattach disk is raw and is opened without a lock
            file["locking"] = "off"
        node: dict[str, Any] = {"driver": disk.format, "file": file}
        if disk.key:
            node.update({"driver": "luks", "key-secret": disk_keys.key_object_name(0)})
        if disk.format == "qcow2":
            node["backing"] = None
        if not self.export.stand_in:
            return node
        return {"driver": "qcow2", "file": {"driver": "file", "filename": str(self._overlay())},
                "backing": {**node, "read-only": True, "force-share": True}}

    def _overlay(self) -> Path:
        return self.export.socket.with_name(OVERLAY)

    def _make_overlay(self) -> None:
        disk, overlay = self.export.disk, self._overlay()
        overlay.unlink(missing_ok=True)
        size = inspect_disk(disk.path, "luks" if disk.key else disk.format).virtual_size
        # Without -u qemu-img would refuse, since a running QEMU has the disk; and it would open the disk.
        run_program(["qemu-img", "create", "-q", "-u", "-f", "qcow2", "-F", disk.format, "-b", str(disk.path), "--",
                     str(overlay), str(size)], f"make a stand-in for {disk.path}")

    def _until_it_listens(self) -> None:
        """Connect to qemu-nbd and wait for its NBD greeting, then mark it as listening. If qemu-nbd ends first, return
        without marking it."""
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.settimeout(READY)
            probe.connect(str(self.export.socket))
            if probe.recv(1):
                self._said = ""
                self._listens.set()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        """Log the output of qemu-nbd, whose *process* is running, until it ends. The last line is stored for error
        messages."""
        assert process.stderr is not None
        for line in iter(process.stderr.readline, b""):
            self._said = line.decode(errors="replace").strip()[:500]
            log.info("qemu-nbd of %s: %s", self.export.disk.path, self._said)
        process.wait()

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(LAST_WORDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.stderr:
            process.stderr.close()
