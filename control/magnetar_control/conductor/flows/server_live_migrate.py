# SPDX-License-Identifier: GPL-3.0-or-later
"""The flow of ``os-migrateLive``: move a server while its guest runs. When that fails, the server stays where it is."""

from __future__ import annotations

import logging
from contextlib import suppress

from magnetar_control.conductor.steps.migration import MigrationTask, NotMoved
from magnetar_control.conductor.steps.nics import observed_columns
from magnetar_control.conductor.worker.retry import retry_later
from magnetar_control.conductor.worker.work import HostDown, RunningAction
from magnetar_control.store.servers import migrations
from magnetar_core.errors import Cancelled, MagnetarError, TimedOut
from magnetar_core.power import ERROR, POWERS

log = logging.getLogger(__name__)


def run_live_migration(work: RunningAction) -> None:
    """Migrate the running server of the action *work* to another host. The migration's status changes from queued
    (until a conductor takes it) to preparing, running, post-migrating, and finally completed, cancelled or error."""
    move = MigrationTask.begin(work, migrations.LIVE, "preparing", work.flavor)
    try:
        if move.row.status == "preparing":
            with work.event("compute_check_can_live_migrate_destination"):
                move.prepare("live", work.args.get("host"), forced=bool(work.args.get("forced")))
                with work.database.read() as connection:
                    request = migrations.fetch_migration_request(connection, move.id)
                if request == migrations.ABORT or work.cancelled.is_set():
                    raise Cancelled("The live migration was aborted.")
            move.note(status="running")
        if move.row.status == "running":
            with work.event(host=move.source):
                move.move_server("live", move.source, move.target)
            move.note({"host": move.target}, status="post-migrating")
        with work.event("compute_post_live_migration_at_destination", move.target), work.client(move.target) as client:
            resource = client.get("server", work.id)
    except HostDown as error:
        if not retry_later(work):
            _give_up(move, error)
    except NotMoved as error:
        _roll_back(move, error.cause)
    except MagnetarError as error:
        _give_up(move, error)
    else:
        move.release()
        power = POWERS.get(resource["power_state"])
        move.end("completed", **observed_columns(work.nics, resource), progress=0,
                 vm_state=(power and power.vm_state) or work.server.vm_state)


def _roll_back(move: MigrationTask, error: MagnetarError) -> None:
    """End the failed or cancelled action. The server stays unchanged on the source host."""
    move.unclaim()
    if isinstance(error, Cancelled):
        move.end("cancelled", progress=0)
    elif isinstance(error, TimedOut):
        log.warning("server %s stays on %s: %s", move.work.id, move.source, error.message)
        move.end("cancelled", error, progress=0)
    else:
        move.end("error", error, progress=0)


def _give_up(move: MigrationTask, error: MagnetarError) -> None:
    """End the action after a failure, or after a host has not answered for long. If it is certain which host has the
    server, save that host in the server's row. Otherwise set the server to error, and keep the claims on both hosts,
    because both may have parts of the server."""
    back = move.row.status == "preparing"
    with suppress(MagnetarError):
        back = back or (move.row.status == "running" and move.abort(move.source, move.target))
    if back:
        _roll_back(move, error)
    elif move.row.status == "post-migrating":  # it has arrived, whatever the host does now
        move.release()
        move.end("completed", progress=0)
    else:
        move.end("error", error, vm_state=ERROR, progress=0)
