# SPDX-License-Identifier: GPL-3.0-or-later
"""The flows of ``softDelete`` and ``restore``, and servers that have been soft-deleted for long enough.

A soft-deleted server is off, and keeps all that it has: disks, volumes, ports and its claim. So it can be restored as
long as nothing else was asked for.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import Connection

from magnetar_control.conductor.steps import tpm_secrets
from magnetar_control.conductor.worker.environment import Environment
from magnetar_control.conductor.worker.expired import ask_for_expired, waiting_since
from magnetar_control.conductor.worker.retry import attempt, of_host, retry_forever
from magnetar_control.conductor.worker.work import Work
from magnetar_control.store.engine.database import now
from magnetar_control.store.servers import servers
from magnetar_core.errors import Conflict
from magnetar_core.http.client import Client
from magnetar_core.power import OFF, RESIZED, RUNNING, SOFT_DELETED, number

from .server_power import stop_guest
from .server_rescue import release_disk
from .server_shelve import delete_image

#: Seconds between two searches for servers that have been soft-deleted for long enough.
LOOK = 15.0


def soft_delete(work: Work) -> None:
    """Power the guest off; the server stays until it is restored, or its time is over. The image that it was shelved in
    goes: its root disk is on the host still. While the host does not answer the server waits, and can be deleted."""
    def do() -> dict[str, Any]:
        server = work.server
        work.begin("The server was deleted for good, or its state was reset, before it was soft-deleted.")
        if server.vm_state == RESIZED:  # the action before this one was to confirm it
            raise Conflict("The resize of the server could not be confirmed, so it was not soft-deleted. Confirm or "
                           "revert the resize, and delete it again.")
        stop_guest(work, server.host)
        work.confirm_lease()
        delete_image(work, server.shelved_image_id)
        return {"power_state": number(OFF), "soft_deleted_at": now(), "shelved_at": None, "shelved_image_id": None}

    attempt(work, do, work.failed, partial(retry_forever, work))


@of_host(Work.failed, retry_forever)
def restore(work: Work, client: Client) -> dict[str, Any]:
    """Start the guest of a soft-deleted server, from its root disk. It stays soft-deleted when that fails."""
    client.ensure("server", work.id, {"rescue": None, "power": RUNNING, **tpm_secrets.given(work)})
    return {"power_state": number(RUNNING), "fault": None, "soft_deleted_at": None, **release_disk(work)}


def reclaim_expired(conductor: Environment) -> int:
    """Delete servers that have been soft-deleted for ``reclaim_instance_interval``; returns how many."""
    return ask_for_expired(conductor, conductor.settings.reclaim_instance_interval,
                           partial(waiting_since, SOFT_DELETED, "soft_deleted_at"), "delete", _still)


def _still(connection: Connection, server: servers.Found) -> servers.Found | None:
    """The row of a server unless it is restored or deleted meanwhile: a deletion may be asked for in any state."""
    row = servers.row(connection, server.id, lock=True)
    if row is None or row.task_state or (row.vm_state, row.soft_deleted_at) != (SOFT_DELETED, server.soft_deleted_at):
        return None
    return row
