# SPDX-License-Identifier: GPL-3.0-or-later
"""The flow of ``confirmResize``, and the automatic confirmation of old resizes."""

from __future__ import annotations

import uuid
from contextlib import suppress

from magnetar_control.conductor.steps.migration import MigrationTask
from magnetar_control.conductor.worker.conductor import Conductor
from magnetar_control.conductor.worker.work import RunningAction
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.servers import migrations, servers
from magnetar_core.errors import Conflict, MagnetarError
from magnetar_core.power import ACTIVE, CRASHED, OFF, RESIZED, STOPPED, power_number

#: Seconds between two searches for unconfirmed resizes.
POLL_INTERVAL = 5.0


def run_resize_confirmation(work: RunningAction) -> None:
    """Confirm the resize or cold migration of the server of the action *work*: release the claims on the source host.
    This also works while the hosts are down."""
    with work.database.read() as connection:
        row = migrations.fetch_unconfirmed_migration(connection, work.id)
    if work.server.vm_state != RESIZED:
        work.failed(Conflict(f"Instance {work.id} has no resize that could be confirmed."))
        return
    with work.event(host=row.source if row else None):
        power = int(work.server.power_state)
        if work.conductor.is_up(work.server.host):
            with suppress(MagnetarError), work.client() as client:
                power = power_number(client.get("server", work.id)["power_state"])
        if row is not None:
            MigrationTask(work, row).release()
            work.end_writes.append(lambda connection: migrations.update_migration_row(connection, row.uuid,
                                                                                      status="confirmed"))
    work.done(vm_state=STOPPED if power in (power_number(OFF), power_number(CRASHED)) else ACTIVE, power_state=power,
              old_flavor=None)


def confirm_expired(conductor: Conductor) -> int:
    """Queue the action ``confirmResize`` for servers that have waited for confirmation longer than the setting
    ``resize_confirm_window``. Return the number of these servers."""
    window, count = conductor.settings.resize_confirm_window, 0
    if window <= 0:
        return 0
    database = conductor.database
    with database.read() as connection:
        waiting = migrations.fetch_unconfirmed_servers(connection, utc_now(-window))
    for server in waiting:
        with database.write() as connection:
            migration = migrations.fetch_unconfirmed_migration(connection, server.id)
            if migration is None or not migrations.update_migration_row(
                    connection, migration.uuid, expected_status="finished", status="confirming"):
                continue  # another conductor was first
            if servers.request_server_action(connection, server, "confirmResize", f"req-{uuid.uuid4()}", server.user_id,
                                             server.project_id):
                count += 1
                database.notify(connection, servers.ACTIONS_CHANGED)
            else:
                migrations.update_migration_row(connection, migration.uuid, status="finished")
    return count
