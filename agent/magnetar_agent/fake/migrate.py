# SPDX-License-Identifier: GPL-3.0-or-later
"""Migration between two fakes: state and disks are sent as one JSON line over a socket in place of libvirt's."""

from __future__ import annotations

import atexit
import base64
import contextlib
import json
import os
import socket
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magnetar_agent.host.hypervisor import DomainEvent
from magnetar_agent.virt.domain.migrated_xml import migrated_disks, target_domain_xml
from magnetar_core.errors import HypervisorError
from magnetar_core.power import LIVE, OFF, PAUSED

from .state import FakeDomain, State, parse_domain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from magnetar_agent.host.hypervisor import CutOverCallback, MigrationParams, ProgressCallback
    from magnetar_agent.host.storage import DiskKey

#: The longest path of a unix socket in bytes (sockaddr_un).
LONGEST = 107


class Migrations(State):
    """A base class of ``FakeHypervisor``, the fake for tests: its ``LocalHypervisor`` methods for migrations.

    Tests set *lose* to simulate a lost connection: the next migration raises an error on the source, although the
    domain has arrived on the target. If *lose* is ``answer``, the guest on the source also continues to run; if *lose*
    is ``end``, that guest has stopped.
    """

    lose: str | None = None
    #: A CPU that the host cannot provide.
    alien_cpu: str | None = None
    _listener: socket.socket | None = None

    def libvirt_socket(self) -> Path:
        with self._lock:
            if self._listener is None:
                self._listener = socket.socket(socket.AF_UNIX)
                self._where = self._socket_path()
                self._where.unlink(missing_ok=True)
                self._listener.bind(str(self._where))
                self._listener.listen()
                threading.Thread(target=self._serve, args=(self._listener,), name="fake-libvirt", daemon=True).start()
        return self._where

    def _socket_path(self) -> Path:
        """Return the path of the unix socket for incoming domains: in the folder of the fake's state, or in the folder
        for temporary files if that path is too long for a socket."""
        name = f"libvirt-{os.getpid()}-{id(self):x}.sock"
        if self._folder is not None and len(os.fsencode(self._folder / name)) <= LONGEST:
            self._folder.mkdir(parents=True, exist_ok=True)
            return self._folder / name
        where = Path(tempfile.gettempdir()) / f"magnetar-fake-{name}"
        atexit.register(where.unlink, missing_ok=True)
        return where

    def close_socket(self) -> None:
        """Close the socket for incoming domains."""
        if self._listener is not None:
            self._where.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None

    def cpu(self, uuid: str) -> str | None:
        return "<cpu>fake</cpu>"

    def cpu_lacks(self, cpu: str) -> str:
        return "fake: Host CPU does not provide required features: avx512f" if cpu == self.alien_cpu else ""

    def arrived(self, uuid: str) -> bool:
        with self._call("arrived"):
            domain = self._domains.get(uuid)
            return bool(domain and domain.persistent and domain.state in LIVE)

    def abort_stale_job(self, uuid: str) -> None:
        with self._call("abort_stale_job"):
            return

    def post_copy(self, uuid: str) -> bool:
        with self._call("post_copy", f"domain {uuid}"):
            self.post_copied.append(uuid)
            return True

    def migrate(self, uuid: str, params: MigrationParams, on_progress: ProgressCallback,
                on_cut_over: CutOverCallback) -> None:
        with self._call("migrate"):
            domain = self._domains[uuid]
        if domain.state not in LIVE:
            raise HypervisorError(f"libvirt could not migrate the domain {uuid}: domain is not running.")
        self._must_answer(uuid, "migrate")
        copied = migrated_disks(domain.xml, params.folder[0]) if params.copies_disks else []
        disks = [d.path for d in domain.seen().disks if d.target in copied]
        for tenth in range(11):
            on_progress({"done": tenth, "total": 10, "remaining": 10 - tenth, "dirty_rate": 4096 * tenth})
        source_folder, target_folder = params.folder
        sent = {"uuid": uuid, "tpm": domain.tpm, "live": target_domain_xml(domain.live, params),
                "xml": params.persistent,
                "disks": {str(target_folder / path.relative_to(source_folder)): base64.b64encode(
                    path.read_bytes()).decode()
                          for path in disks}}
        answer = b""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(params.libvirt))
            with sock.makefile("rwb") as talk:
                talk.write(json.dumps(sent).encode() + b"\n")
                talk.flush()
                answer = talk.readline()
        if not answer:
            raise HypervisorError(f"libvirt could not migrate the domain {uuid}: the other side does not answer.")
        lost, self.lose = self.lose, None
        if lost != "answer":
            with self._change(f"domain {uuid}"):
                domain.state, domain.reason = OFF, "unknown"
                self._events.append(DomainEvent(uuid, "stopped"))
        if lost:
            raise HypervisorError(f"libvirt could not migrate the domain {uuid}: connection reset.")
        on_cut_over()

    def lend_keys(self, uuid: str, keys: Sequence[DiskKey], secret: str | None) -> None:
        with self._call("lend_keys"):
            self.lent.update({key.id: key.secret for key in keys})
            if secret is not None:
                self.lent[uuid] = secret

    def take_back_keys(self, uuid: str, ids: Sequence[str]) -> None:
        with self._call("take_back_keys"):
            for id in (uuid, *ids):
                self.lent.pop(id, None)

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _address = listener.accept()
            except OSError:
                return
            with sock, sock.makefile("rwb") as talk:
                line = talk.readline()
                if line:
                    try:
                        self._come(json.loads(line))
                    except HypervisorError:  # a key is missing: the other side gets no message about it
                        continue
                    talk.write(b"{}\n")

    def _come(self, sent: dict[str, Any]) -> None:
        if any(disk.key and not self.lent.get(disk.key.id) for disk in parse_domain(sent["live"]).disks) or (
                sent["tpm"] and not sent["tpm"].startswith(self.lent.get(sent["uuid"], "-"))):
            raise HypervisorError("There is no secret.")
        for path, content in sent["disks"].items():
            Path(path).write_bytes(base64.b64decode(content))
        with self._change(f"domain {sent['uuid']}"):
            self._domains[sent["uuid"]] = FakeDomain(sent["xml"], PAUSED, live=sent["live"], tpm=sent["tpm"])
            self._events.append(DomainEvent(sent["uuid"], "started"))
