# SPDX-License-Identifier: GPL-3.0-or-later
"""The flow of ``confirmResize``, and resizes that nobody has confirmed in time."""

from __future__ import annotations

import uuid
from contextlib import suppress

from magnetar_control.conductor.steps.migration import MigrationTask
from magnetar_control.conductor.worker.environment import Environment
from magnetar_control.conductor.worker.work import Work
from magnetar_control.store.engine.database import now
from magnetar_control.store.servers import migrations, servers
from magnetar_core.errors import Conflict, MagnetarError
from magnetar_core.power import ACTIVE, CRASHED, OFF, RESIZED, STOPPED, number

#: Seconds between two searches for resizes that nobody has confirmed.
LOOK = 5.0


def confirm(work: Work) -> None:
    """Release the claims on the source. Needs no answer of a host."""
    with work.database.read() as connection:
        row = migrations.kept(connection, work.id)
    if work.server.vm_state != RESIZED:
        work.failed(Conflict(f"Instance {work.id} has no resize that could be confirmed."))
        return
    with work.event(host=row.source if row else None):
        power = int(work.server.power_state)
        if work.conductor.is_up(work.server.host):
            with suppress(MagnetarError), work.client() as client:
                power = number(client.get("server", work.id)["power_state"])
        if row is not None:
            MigrationTask(work, row).release()
            work.end_writes.append(lambda connection: migrations.change(connection, row.uuid, status="confirmed"))
    work.done(vm_state=STOPPED if power in (number(OFF), number(CRASHED)) else ACTIVE, power_state=power,
              old_flavor=None)


def confirm_expired(conductor: Environment) -> int:
    """Confirm resizes that have waited for longer than ``resize_confirm_window``; returns how many."""
    window, count = conductor.settings.resize_confirm_window, 0
    if window <= 0:
        return 0
    database = conductor.database
    with database.read() as connection:
        waiting = migrations.late(connection, now(-window))
    for server in waiting:
        with database.write() as connection:
            found = migrations.kept(connection, server.id)
            if found is None or not migrations.change(
                    connection, found.uuid, was="finished", status="confirming"):
                continue  # another conductor was first
            if servers.ask(connection, server, "confirmResize", f"req-{uuid.uuid4()}", server.user_id,
                           server.project_id):
                count += 1
                database.ring(connection, servers.ACTIONS_BELL)
            else:
                migrations.change(connection, found.uuid, status="finished")
    return count
