# SPDX-License-Identifier: GPL-3.0-or-later
"""An agent's halves of migrations: watched while the server moves; ended when the server is deleted."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any, Self

from sqlalchemy.exc import DBAPIError

from magnetar_control.conductor.worker.work import Work
from magnetar_control.store.servers import migrations, servers
from magnetar_core.errors import Conflict, MagnetarError, NotFound
from magnetar_core.flows.migrate import Side
from magnetar_core.http.client import Client

log = logging.getLogger(__name__)
#: Seconds between two polls, and between two saves of the progress.
POLL, SAVE = 0.2, 1.0


class MigrationMonitor(threading.Thread):
    """``with MigrationMonitor(work, migration_id, source):`` while the agents move the server: a thread that aborts the
    migration or forces it to complete when somebody asks, and saves its progress."""

    def __init__(self, work: Work, id: str, host: str) -> None:
        super().__init__(name=f"monitor {id}", daemon=True)
        self.work, self.id, self.host = work, id, host
        self.over = threading.Event()
        self._forced = False
        self._saved: Any = None
        self._saved_at = 0.0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.over.set()
        self.join()

    def run(self) -> None:
        while not self.over.wait(POLL):
            try:
                self._poll()
            except (MagnetarError, DBAPIError) as error:
                log.info("migration %s: %s", self.id, error)

    def _poll(self) -> None:
        with self.work.database.read() as connection:
            asked = migrations.asked(connection, self.id)
        if self.work.cancelled.is_set():
            asked = migrations.ABORT
        if asked is None and time.monotonic() - self._saved_at < SAVE:
            return
        with self.work.client(self.host) as client:
            half = next((one for one in Side(client).open_migrations(self.work.id) if one["side"] == "source"), None)
            if half is None:
                return
            if asked == migrations.ABORT:
                _cancel(client, half["id"])
            elif asked == migrations.FORCE and not self._forced:
                client.event("migration", half["id"], "force_complete")
                self._forced = True
            self._save_progress(half["progress"])

    def _save_progress(self, progress: Any) -> None:
        self._saved_at = time.monotonic()
        if not progress or progress == self._saved:
            return
        self._saved = progress
        share = 100 * progress["done"] // progress["total"] if progress.get("total") else 0
        with self.work.database.write() as connection:
            migrations.change(connection, self.id, progress=servers.text(progress))
            servers.change(connection, self.work.id, progress=max(0, min(100, share)))


def remove(client: Client, server: str) -> None:
    """Remove a server that is deleted from a host, with all that has come of it or is to leave. The other host of a
    migration is not asked: it may be down, or have nothing of the server any more."""
    for half in Side(client).open_migrations(server):
        _cancel(client, half["id"])
        with contextlib.suppress(NotFound):  # it has gone meanwhile
            client.event("migration", half["id"], "discard")
    client.delete("server", server)


def _cancel(client: Client, id: str) -> None:
    for operation in client.list("operations", kind="migration", key=id, status="running"):
        with contextlib.suppress(Conflict, NotFound):  # it has ended meanwhile
            client.cancel(operation["id"])
