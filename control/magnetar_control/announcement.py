# SPDX-License-Identifier: GPL-3.0-or-later
"""The announcement of a process of the control plane: which release it is, and what it can do. A process that is too
old for the others does not start, and ends when it comes back after a silence."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence

from sqlalchemy.exc import DBAPIError

from magnetar_control.store.engine.database import Database
from magnetar_control.store.hosts import conductors, processes
from magnetar_control.store.hosts.capability_marks import CapabilityMark, fetch_capability_marks
from magnetar_control.store.hosts.conductors import FORGOTTEN
from magnetar_control.store.hosts.processes import ProcessRow
from magnetar_control.store.store import Store
from magnetar_core.capabilities import capabilities_of
from magnetar_core.errors import ProcessTooOld
from magnetar_core.version import explain_distant_releases, installed_version

log = logging.getLogger(__name__)
#: Seconds between two announcements of an API process. Conductors announce with their heartbeats.
HEARTBEAT = 20.0


def new_holder(name: str) -> str:
    """Return a unique id for a process with the name *name*: the name and a random suffix, because several processes
    may have the same name."""
    return f"{name}:{uuid.uuid4().hex[:12]}"


class Announcement:
    """The database row that announces one running process to the other processes of the control plane. It contains the
    release of the process and its capabilities: the names of features that processes of an earlier release may lack.
    *kind*: ``api`` or ``conductor``."""

    def __init__(self, store: Store, kind: str, name: str, database: Database) -> None:
        self.kind, self.name, self.holder = kind, name, new_holder(name)
        self.version, self.capabilities = installed_version(), capabilities_of(kind)
        self._store, self._database = store, database
        self._renewed_at = float("-inf")

    def join(self) -> None:
        """Write the row of this process, and check that the process is compatible with the other running processes. If
        this process is not compatible, remove the row and raise ``ProcessTooOld``."""
        self._write()
        try:
            self.check()
        except ProcessTooOld:
            self.leave()
            raise
        self._renewed_at = time.monotonic()

    def renew(self) -> None:
        """Update the heartbeat in the row of this process. After a long pause, in which the other processes may have
        considered this process gone, also check again that this process is compatible with them. Raises
        ``ProcessTooOld``."""
        if time.monotonic() - self._renewed_at > FORGOTTEN / 2:
            self.join()
        else:
            self._write()
            self._renewed_at = time.monotonic()

    def leave(self) -> None:
        """Remove the row of this process when the process stops. Ignores database errors."""
        remove = processes.remove_api_process if self.kind == "api" else conductors.remove_conductor_row
        with contextlib.suppress(DBAPIError):
            remove(self._database, self.holder)

    def _write(self) -> None:
        write: Callable[..., None] = \
            processes.write_api_heartbeat if self.kind == "api" else conductors.write_conductor_heartbeat
        write(self._database, self.holder, self.name, self.version, self.capabilities)

    def check(self) -> None:
        """Check that this process is compatible with the cloud. Raises ``ProcessTooOld`` if the cloud already uses a
        feature that the release of this process lacks. Also raises ``ProcessTooOld`` if this process and another
        running process are more than one release apart, whichever of the two is newer."""
        me = ProcessRow(self.kind, self.name, "", self.version, frozenset(self.capabilities), None, up=True)
        with self._store.api.read() as connection:
            marks = fetch_capability_marks(connection)
        for mark in marks:
            if self.kind in mark.kinds and mark.name not in self.capabilities:
                raise _capability_error(me.title(), mark)
        running_processes = processes.fetch_processes(self._store, FORGOTTEN, agents=False)
        for other in running_processes.processes:
            if other.up and other.holder != self.holder:
                _refuse_other_process(me, other)


def _capability_error(title: str, mark: CapabilityMark) -> ProcessTooOld:
    return ProcessTooOld(
        f"The {title} does not start: the cloud uses {mark.name}, which this release does not know. Run the release "
        f"{mark.version} or a newer one, as the others do; `magnetar upgrade status` lists them.",
        capability=mark.name, version=mark.version)


def _refuse_other_process(me: ProcessRow, other: ProcessRow) -> None:
    """Raise ``ProcessTooOld`` if the releases of *me* (this process) and *other* are more than one apart, whichever of
    the two processes is newer."""
    reason = explain_distant_releases((me.title(), me.release), (other.title(), other.release))
    if reason is None:
        return
    older, newer = sorted((me, other), key=lambda process: process.number or 0)
    ended = "; if it has ended, try again in a minute" if older is other else ""
    raise ProcessTooOld(f"The {me.title()} does not start beside the {other.title()}: {reason}{ended}.",
                        older=older.release, newer=newer.release)


class AnnouncingThread:
    """A thread that renews the row of an API process (its ``Announcement``) every ``HEARTBEAT`` seconds until ``stop``
    is called."""

    def __init__(self, announcement: Announcement) -> None:
        self._announcement, self._over = announcement, threading.Event()
        self._thread = threading.Thread(target=self._run, name="announcement", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and remove the row of the API process."""
        self._over.set()
        self._thread.join()
        self._announcement.leave()

    def _run(self) -> None:
        while not self._over.wait(HEARTBEAT):
            renew_or_end(self._announcement)


def renew_or_end(announcement: Announcement) -> None:
    """Renew the announcement of this process. If the renewal raises ``ProcessTooOld``, send SIGTERM to this process, so
    that this process stops. Database errors are only logged."""
    try:
        announcement.renew()
    except ProcessTooOld as error:
        log.error("this process ends: %s", error.message)  # noqa: TRY400
        os.kill(os.getpid(), signal.SIGTERM)
    except DBAPIError as error:
        log.warning("this process is not announced: %s", error.orig)


def process_name(configured: str | None, parts: Sequence[str] = ()) -> str:
    """Return the name *configured* and *parts*, joined by slashes, such as ``kvm1/2``. *configured*: the name of the
    process in the settings; ``None``: use the host name. *parts*: for example, the number of an API process."""
    return "/".join((configured or socket.gethostname(), *parts))
