# SPDX-License-Identifier: GPL-3.0-or-later
"""Beside a server on its way: hears that it is to be aborted or hurried, and notes how far it is."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any, Self

from sqlalchemy.exc import DBAPIError

from magnetar_control.store import migrations, servers
from magnetar_core.client import Client
from magnetar_core.errors import Conflict, MagnetarError, NotFound
from magnetar_core.flows.migrate import Side

from .work import Work

log = logging.getLogger(__name__)
#: Seconds between two looks at what is asked, and between two notes of the progress.
LOOK, NOTE = 0.2, 1.0


class MigrationMonitor(threading.Thread):
    """``with MigrationMonitor(work, migration_id, source):`` while the agents move the server."""

    def __init__(self, work: Work, id: str, host: str) -> None:
        super().__init__(name=f"monitor {id}", daemon=True)
        self.work, self.id, self.host = work, id, host
        self.over = threading.Event()
        self._forced = False
        self._noted: Any = None
        self._noted_at = 0.0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.over.set()
        self.join()

    def run(self) -> None:
        while not self.over.wait(LOOK):
            try:
                self._look()
            except (MagnetarError, DBAPIError) as error:
                log.info("migration %s: %s", self.id, error)

    def _look(self) -> None:
        with self.work.database.read() as connection:
            wish = migrations.asked(connection, self.id)
        if self.work.cancelled.is_set():
            wish = migrations.ABORT
        if wish is None and time.monotonic() - self._noted_at < NOTE:
            return
        with self.work.client(self.host) as client:
            half = next((one for one in Side(client).open_migrations(self.work.id) if one["side"] == "source"), None)
            if half is None:
                return
            if wish == migrations.ABORT:
                _cancel(client, half["id"])
            elif wish == migrations.FORCE and not self._forced:
                client.event("migration", half["id"], "force_complete")
                self._forced = True
            self._note(half["progress"])

    def _note(self, progress: Any) -> None:
        self._noted_at = time.monotonic()
        if not progress or progress == self._noted:
            return
        self._noted = progress
        share = 100 * progress["done"] // progress["total"] if progress.get("total") else 0
        with self.work.database.write() as connection:
            migrations.change(connection, self.id, progress=servers.text(progress))
            servers.change(connection, self.work.id, progress=max(0, min(100, share)))


def _cancel(client: Client, id: str) -> None:
    for operation in client.list("operations", kind="migration", key=id, status="running"):
        with contextlib.suppress(Conflict, NotFound):  # it has ended meanwhile
            client.cancel(operation["id"])
