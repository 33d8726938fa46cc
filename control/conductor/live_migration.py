# SPDX-License-Identifier: GPL-3.0-or-later
"""``os-migrateLive``: a server changes hosts while its guest works. What fails leaves it where it is."""

from __future__ import annotations

from magnetar_control.store import migrations
from magnetar_core.errors import Cancelled, MagnetarError
from magnetar_core.power import ERROR, POWERS

from .migration import Migration, NotMoved
from .nics import nics_of, observed
from .retry import retry
from .work import HostDown, Work


def live_migrate(work: Work) -> None:
    """queued (until it is taken), preparing, running; completed, cancelled or error."""
    move = Migration.begin(work, migrations.LIVE, "preparing", work.flavor)
    try:
        if move.row.status == "preparing":
            with work.event("compute_check_can_live_migrate_destination"):
                move.prepare("live", work.args.get("host"))
                _not_aborted(move)
            move.note(status="running")
        if move.row.status == "running":
            with work.event(host=move.source):
                move.bring("live", move.source, move.target)
            move.note({"host": move.target}, status="post-migrating")
        with work.event("compute_post_live_migration_at_destination", move.target), work.client(move.target) as client:
            found = client.get("server", work.id)
    except HostDown as error:
        if not retry(work):
            _given_up(move, error)
    except NotMoved as error:
        _stays(move, error.cause)
    except MagnetarError as error:
        if move.row.status == "preparing":
            _stays(move, error)
        else:
            _given_up(move, error)
    else:
        move.release()
        move.ends("completed")
        power = POWERS.get(found["power_state"])
        state = (power and power.vm_state) or work.server.vm_state
        work.done(**observed(nics_of(work), found), progress=0, vm_state=state)


def _not_aborted(move: Migration) -> None:
    """Raise ``Cancelled`` when nobody wants it any more."""
    with move.work.database.read() as connection:
        wish = migrations.asked(connection, move.id)
    if wish == migrations.ABORT or move.work.cancelled.is_set():
        raise Cancelled("The live migration was aborted.")


def _stays(move: Migration, error: MagnetarError) -> None:
    """The server is at the source as it was."""
    move.unclaim()
    if isinstance(error, Cancelled):
        move.ends("cancelled")
        move.work.done(progress=0)
    else:
        move.ends("error")
        move.work.failed(error, progress=0)


def _given_up(move: Migration, error: MagnetarError) -> None:
    """A host did not answer for long. Where the server is for sure is noted; else it is in error, and both hosts stay
    claimed, for both may have something of it."""
    if move.row.status == "preparing":
        _stays(move, error)
        return
    try:
        if move.row.status == "running" and move.take_back(move.source, move.target):
            _stays(move, error)
            return
    except MagnetarError:
        pass
    if move.row.status == "post-migrating":  # it has arrived, whatever the host does since
        move.release()
        move.ends("completed")
        move.work.done(progress=0)
        return
    move.ends("error")
    move.work.failed(error, vm_state=ERROR, progress=0)
