# SPDX-License-Identifier: GPL-3.0-or-later
"""An agent's halves of migrations: taken back, or ended, when their server is deleted."""

from __future__ import annotations

import contextlib
import logging

from magnetar_core.client import Client
from magnetar_core.errors import Conflict, MagnetarError, NotFound
from magnetar_core.flows.migrate import Side

from .work import Work

log = logging.getLogger(__name__)


def recall(work: Work, names: list[str]) -> None:
    """The server is deleted: drop its migrations on these hosts. A host that does not answer keeps them for now."""
    for name in names:
        try:
            with work.client(name) as client:
                drop_halves(client, work.id)
        except MagnetarError as error:
            log.warning("server %s: its migration stays as it is on %s: %s", work.id, name, error.message)


def drop_halves(client: Client, server: str) -> None:
    """Abort the migrations of a server that is to be deleted on one agent, or settle them where it has left or
    arrived."""
    for half in Side(client).open_migrations(server):
        for operation in client.list("operations", kind="migration", key=half["id"], status="running"):
            with contextlib.suppress(Conflict, NotFound):
                client.cancel(operation["id"])
        try:
            client.delete("migration", half["id"])
        except Conflict:
            client.ensure("migration", half["id"], {"phase": "settled"})
