# SPDX-License-Identifier: GPL-3.0-or-later
"""The flow of ``revertResize``: the server goes back to its old flavor and host. Nothing that was written is lost."""

from __future__ import annotations

import logging
from typing import Any

import orjson

from magnetar_control.store import allocations, migrations, servers
from magnetar_control.store.allocations import Amounts
from magnetar_core.errors import Conflict, MagnetarError, NoSpace
from magnetar_core.power import ACTIVE, ERROR, RESIZED

from .migration import Migration, NotMoved
from .nics import nics_of, observed
from .resize import Flavor, amounts, grown, settle_claims, want
from .retry import retry
from .work import HostDown, Work

log = logging.getLogger(__name__)


class NoRoom(NoSpace):
    """No host has room for what a resize would go back to."""


def revert(work: Work) -> None:
    """Back to the flavor that it had, on the host that it had; where that cannot take it, on the one that it has."""
    with work.database.read() as connection:
        row = migrations.kept(connection, work.id)
    if work.server.vm_state != RESIZED or row is None:
        work.failed(Conflict(f"Instance {work.id} has no resize that could be taken back."))
        return
    move = Migration(work, row)
    flavor = grown(orjson.loads(row.old_flavor), move.flavor)
    try:
        move.note(status="reverting")
        with work.event(host=move.target):
            host = _returned(move, flavor)
        with work.event("compute_finish_revert_resize", host):
            found = move.on(host, want(move, flavor))
    except HostDown as error:
        if not retry(work):
            _not_reverted(move, error, flavor)
    except MagnetarError as error:
        _not_reverted(move, error, flavor)
    else:
        settle_claims(move, host, flavor)
        move.ends("reverted")
        work.done(**observed(nics_of(work), found), vm_state=row.old_vm_state or ACTIVE, flavor=servers.text(flavor),
                  flavor_id=flavor["id"], old_flavor=None, host=host)


def _returned(move: Migration, flavor: Flavor) -> str:
    """Bring the server to where it goes; returns the host. What it needs there is claimed."""
    work, source, target = move.work, move.source, move.target
    if source == target:
        return source
    if work.server.host == source or _goes(move, flavor):
        if work.server.host != source:
            try:
                move.stop(target)
                move.bring("cold", target, source)
            except NotMoved as stayed:
                return _in_place(move, flavor, stayed.cause)
        with move.api.write() as connection:
            allocations.revert(connection, work.id, move.id)
        move.note({"host": source})
        return source
    return _in_place(move, flavor)


def _goes(move: Migration, flavor: Flavor) -> bool:
    """Whether the source takes the server back: it is on its way already, or the host answers, has room for the disks
    as they are now, and refuses nothing."""
    work, source, target = move.work, move.source, move.target
    with move.sides(target, source) as (here, _there):
        if here.find(work.id) is None or here.open_migrations(work.id):
            return True
    if not move.conductor.is_up(source):
        return False
    return _claimed(move, move.id, source, amounts(move, flavor)) and move.fits(target, source)


def _in_place(move: Migration, flavor: Flavor, cause: MagnetarError | None = None) -> str:
    """The server takes its old flavor where it is. Raises ``NoRoom`` when there is none for that either."""
    old, new = amounts(move, flavor), amounts(move, move.flavor)
    if not _claimed(move, move.work.id, move.target, Amounts(*map(max, old, new))):
        why = f" ({cause.message})" if cause else ""
        raise NoRoom(f"Host {move.source} does not take the server back{why}, and {move.target} has no room for the "
                     "old flavor. Confirm the resize, or try again when there is room.")
    return move.target


def _claimed(move: Migration, consumer: str, host: str, needed: Amounts) -> bool:
    id = move.host_id(host)
    with move.api.write() as connection:
        return allocations.claim(connection, consumer, move.work.id, id, needed)


def _not_reverted(move: Migration, error: MagnetarError, flavor: Flavor) -> None:
    """It waits for a word as before where nothing was done; where something was, it is in error, and what it may have
    on either host stays claimed."""
    work = move.work
    if isinstance(error, NoRoom) and work.server.host == move.target:
        try:
            move.on(move.target, {"power": want(move, flavor)["power"]})
            work.also.append(lambda connection: migrations.change(connection, move.id, status="finished"))
            work.failed(error)
            return
        except MagnetarError as why:
            log.warning("server %s does not start again on %s: %s", work.id, move.target, why.message)
    values: dict[str, Any] = {}
    if work.server.host == move.source:
        settle_claims(move, move.source, flavor)
        values = {"flavor": servers.text(flavor), "flavor_id": flavor["id"]}
    move.ends("error")
    work.failed(error, vm_state=ERROR, **values)
