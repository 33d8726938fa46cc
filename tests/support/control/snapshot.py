# SPDX-License-Identifier: GPL-3.0-or-later
"""Helpers for tests of snapshot."""

from __future__ import annotations

import pytest
from sqlalchemy import select, update

from magnetar_control.conductor.flows import volume_attach
from magnetar_control.conductor.worker import retry
from magnetar_control.conductor.worker.work import HostDown, RunningAction
from magnetar_control.store.engine import tables
from magnetar_control.store.servers import servers
from tests.unit.control.attachments.asking import Owner


def queued(owner: Owner, server: str, action: str) -> bool:
    """Return whether an action is queued for another attempt, because its host did not answer."""
    with owner.cloud.parts.working.database.read() as connection:
        return connection.execute(select(tables.actions.c.id).where(
            tables.actions.c.server_id == server, tables.actions.c.action == action,
            tables.actions.c.state == "queued", tables.actions.c.attempts > 0)).first() is not None


def unreachable(patched: pytest.MonkeyPatch) -> None:
    """Patch flows so that no host answers, and failed actions are not tried again by themselves."""
    def client(work: RunningAction, host: str | None = None) -> None:
        raise HostDown(f"host {host or work.server.host} does not answer")

    patched.setattr(RunningAction, "client", client)
    patched.setattr(volume_attach, "connect_volume", lambda work, host, _entry: client(work, host))
    patched.setattr(retry, "AGAIN", 600.0)


def go_on(owner: Owner, server: str) -> None:
    """Let conductors try the queued actions of the server again immediately."""
    database = owner.cloud.parts.working.database
    with database.write() as connection:
        connection.execute(update(tables.actions).where(tables.actions.c.server_id == server).values(not_before=None))
        database.notify(connection, servers.ACTIONS_CHANGED)
