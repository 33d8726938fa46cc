# SPDX-License-Identifier: GPL-3.0-or-later
"""The flow of ``revertResize``: the server returns to its old flavor and host. No written data is lost."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence

from magnetar_control.conductor.steps import cross_cell
from magnetar_control.conductor.steps.migration import MigrationTask, NotMoved
from magnetar_control.conductor.steps.nics import observed_columns
from magnetar_control.conductor.worker.retry import retry_later
from magnetar_control.conductor.worker.work import HostDown, RunningAction, full_is_down
from magnetar_control.store.claims import allocations
from magnetar_control.store.claims.allocations import Amounts
from magnetar_control.store.servers import migrations
from magnetar_core.errors import Conflict, MagnetarError, NoSpace
from magnetar_core.power import ACTIVE, ERROR, RESIZED

from .server_power import stop_guest
from .server_resize import (
    Flavor,
    flavor_columns,
    flavor_with_grown_disks,
    power_after_move,
    resized_fields,
    server_after_move,
    settle_claims,
    spec_of_flavor,
)

log = logging.getLogger(__name__)


class NoRoom(NoSpace):
    """Raised when neither the old nor the current host has enough resources for the old flavor."""


def run_resize_revert(work: RunningAction) -> None:
    """Revert the resize of the server of the action *work*: restore the old flavor on the server's old host, or on its
    current host if the old host cannot accept the server."""
    with work.database.read() as connection:
        row = migrations.fetch_unconfirmed_migration(connection, work.id)
    if work.server.vm_state != RESIZED or row is None:
        work.failed(Conflict(f"Instance {work.id} has no resize that could be taken back."))
        return
    move = MigrationTask(work, row)
    if row.status == "reverting":
        cross_cell.map_to_this_cell(work)
    flavor = flavor_with_grown_disks(row.old_flavor, move.flavor)
    if row.type == migrations.RESIZE:
        move.becomes = resized_fields(move, flavor)
    try:
        move.note(status="reverting")
        with work.event(host=move.target):
            host = _move_back(move, flavor)
        if cross_cell.relocate_if_leaving(work):
            return
        with work.event("compute_finish_revert_resize", host), full_is_down():
            resource = move.ensure_on(host, server_after_move(move, flavor, host))
    except HostDown as error:
        if not retry_later(work):
            _fail(move, error, flavor)
    except MagnetarError as error:
        _fail(move, error, flavor)
    else:
        settle_claims(move, host, flavor)
        move.end("reverted", **observed_columns(work.nics, resource), **flavor_columns(flavor),
                 vm_state=row.old_vm_state or ACTIVE, old_flavor=None, host=host)


def _move_back(move: MigrationTask, flavor: Flavor) -> str:
    """Move the server back to the source host, or leave it on the target host if the source does not accept it. Claim
    the server's resources on the chosen host, and return the name of this host. Raises ``NoRoom`` if neither host has
    enough resources for the old flavor."""
    work, source, target, why = move.work, move.source, move.target, ""
    if source in (target, work.server.host):
        return source
    if _source_accepts(move, flavor):
        try:
            with full_is_down():
                stop_guest(work, target)
            move.move_server("cold", target, source)
        except NotMoved as stayed:
            why = f" ({stayed.cause.message})"
        else:
            with move.api.write() as connection:
                allocations.revert_claims_to_server(connection, work.id, move.id)
            move.note_host(source)
            return source
    with contextlib.suppress(MagnetarError):  # the source may have begun to accept it; otherwise the audit finds it
        move.abort(target, source)
    if not _claim(move, work.id, target, flavor, move.flavor):
        raise NoRoom(f"Host {source} does not take the server back{why}, and {target} has no room for the old flavor. "
                     "Confirm the resize, or try again when there is room.")
    return target


def _source_accepts(move: MigrationTask, flavor: Flavor) -> bool:
    """Return whether the source host can have the server back. This is true if the move back has already begun.
    Otherwise the host must be up and have space for the disks at their current sizes, and its agent must accept the
    move."""
    work, source, target = move.work, move.source, move.target
    with move.sides(target, source) as (source_agent, _target_agent):
        if source_agent.find(work.id) is None or source_agent.open_migrations(work.id):
            return True
    if not move.conductor.is_up(source):
        return False
    return _claim(move, move.id, source, flavor) and move.accepts(target, source)


def _claim(move: MigrationTask, consumer: str, host: str, *flavors: Flavor) -> bool:
    """Claim resources on *host* for *consumer* (uuid of the server or its migration): of each resource, the largest
    amount that any of *flavors* needs. Return ``False``, and claim nothing, if the host has too few resources left."""
    specs = [spec_of_flavor(move, flavor) for flavor in flavors]
    amounts = Amounts(*map(max, zip(*(spec.amounts for spec in specs), strict=True)))
    devices, resources = (_merge_largest([getattr(spec, kind) for spec in specs]) for kind in ("devices", "resources"))
    id = move.conductor.host(host).id
    with move.api.write() as connection:
        return allocations.claim_host_resources(connection, consumer, move.work.id, id, amounts, devices=devices,
                                                resources=resources, nics=specs[0].nics)


def _merge_largest(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return one mapping with all names in *counts*. Each name has its largest number."""
    return {name: max(amounts.get(name, 0) for amounts in counts)
            for name in {name for amounts in counts for name in amounts}}


def _fail(move: MigrationTask, error: MagnetarError, flavor: Flavor) -> None:
    """End the failed action. If nothing was changed, the server waits for confirm or revert as before. Otherwise set
    the server to error, and keep the claims on both hosts."""
    work = move.work
    if isinstance(error, NoRoom) and work.server.host == move.target:
        try:
            move.ensure_on(move.target, {"power": power_after_move(move)})
            move.end("finished", error)
            return
        except MagnetarError as why:
            log.warning("server %s does not start again on %s: %s", work.id, move.target, why.message)
    values = {}
    if work.server.host == move.source:
        settle_claims(move, move.source, flavor)
        values = flavor_columns(flavor)
    move.end("error", error, vm_state=ERROR, **values)
