# SPDX-License-Identifier: GPL-3.0-or-later
"""The flows of ``softDelete`` and ``restore``, and the periodic deletion of servers that were soft-deleted long enough.

A soft-deleted server is off, and keeps everything: disks, volumes, ports and its claim. So it can be restored until
another action is requested."""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import Connection

from magnetar_control.conductor.steps import keys
from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.conductor.worker.expired import ask_for_expired, waiting_since
from magnetar_control.conductor.worker.retry import attempt_action, flow_on_host, retry_forever
from magnetar_control.conductor.worker.work import RunningAction
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.servers import servers
from magnetar_control.store.servers.server_row import ServerRow
from magnetar_core.errors import Conflict
from magnetar_core.http.client import Client
from magnetar_core.power import OFF, RESIZED, RUNNING, SOFT_DELETED, power_number

from .server_power import stop_guest
from .server_rescue import release_rescue_disk
from .server_shelve import delete_image

#: Seconds between two searches for servers that were soft-deleted long enough.
POLL_INTERVAL = 15.0


def run_soft_deletion(work: RunningAction) -> None:
    """Power off the guest of the server that the action *work* soft-deletes. The server remains until it is restored or
    removed (``reclaim_expired``). The image of a shelved server is deleted: a restoration does not need it, because the
    root disk remains on the host. While the host does not answer, the action is retried; the server can be deleted
    meanwhile."""
    def do() -> dict[str, Any]:
        server = work.server
        work.begin("The server was deleted for good, or its state was reset, before it was soft-deleted.")
        if server.vm_state == RESIZED:  # the action before this one should have confirmed it
            raise Conflict("The resize of the server could not be confirmed, so it was not soft-deleted. Confirm or "
                           "revert the resize, and delete it again.")
        stop_guest(work, server.host)
        work.confirm_lease()
        delete_image(work, server.shelved_image_id)
        return {"power_state": power_number(OFF), "soft_deleted_at": utc_now(), "shelved_at": None,
                "shelved_image_id": None}

    attempt_action(work, do, work.failed, partial(retry_forever, work))


@flow_on_host(RunningAction.failed, retry_forever)
def run_restore(work: RunningAction, client: Client) -> dict[str, Any]:
    """Start the guest of the soft-deleted server of the action *work*; return the changed columns of the server's row.
    If this fails, the server remains soft-deleted."""
    client.ensure("server", work.id, {"rescue": None, "power": RUNNING, **keys.tpm_secret_field(work)})
    return {"power_state": power_number(RUNNING), "fault": None, "soft_deleted_at": None, **release_rescue_disk(work)}


def reclaim_expired(conductor: Conductor) -> int:
    """Queue the action ``delete`` for servers that have been soft-deleted longer than the setting
    ``reclaim_instance_interval``. Return the number of these servers."""
    return ask_for_expired(conductor, conductor.settings.reclaim_instance_interval,
                           partial(waiting_since, SOFT_DELETED, "soft_deleted_at"), "delete", _lock_soft_deleted_row)


def _lock_soft_deleted_row(connection: Connection, server: ServerRow) -> ServerRow | None:
    """Lock and return the current row of *server* if the server is still soft-deleted. Return ``None`` if it was
    restored or deleted since *server* was read."""
    row = servers.fetch_server_row(connection, server.id, lock=True)
    if row is None or row.task_state or (row.vm_state, row.soft_deleted_at) != (SOFT_DELETED, server.soft_deleted_at):
        return None
    return row
