# SPDX-License-Identifier: GPL-3.0-or-later
"""Resize and cold migration, and the word that is waited for: confirmResize, revertResize, or the window's end.

The agents move a server for good, so nothing of it is left on the source while it waits: the claim there keeps the room
for the way back, and revertResize is that way, which loses nothing that was written meanwhile. Disks never shrink: one
that a resize has grown stays as it is, and the claim says so (``grown`` in the server's flavor).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from magnetar_control.scheduler.request_spec import sizes
from magnetar_control.store import allocations, migrations, servers
from magnetar_control.store.allocations import Amounts
from magnetar_control.store.database import now
from magnetar_core.errors import Conflict, MagnetarError
from magnetar_core.power import ERROR, STOPPED

from .migration import Migration, NotMoved
from .nics import nics_of, observed
from .placement import spec_of
from .retry import retry
from .work import HostDown, Work

log = logging.getLogger(__name__)
Flavor = Mapping[str, Any]


def resize(work: Work) -> None:
    """To another flavor: on another host, or the same where settings or need say so."""
    same = True if work.conductor.settings.allow_resize_to_same_host else None
    _cold(work, migrations.RESIZE, grown(work.args["flavor"], work.flavor), same=same)


def migrate(work: Work) -> None:
    """To another host, named or not; never the same."""
    _cold(work, migrations.MIGRATION, work.flavor, host=work.args.get("host"), same=False)


def grown(flavor: Flavor, had: Flavor) -> dict[str, Any]:
    """*flavor* with a note of what disks of a server that had flavor *had* are larger."""
    larger = {name: size for name, size in sizes(had).items() if size > int(flavor.get(name) or 0)}
    return {**{name: value for name, value in flavor.items() if name != "grown"},
            **({"grown": larger} if larger else {})}


def on_host(flavor: Flavor) -> dict[str, Any]:
    """The flavor as the agent is to have it."""
    return {**{name: flavor[name] for name in ("vcpus", "ram", "swap")}, **sizes(flavor)}


def want(move: Migration, flavor: Flavor) -> dict[str, Any]:
    power = "off" if move.row.old_vm_state == STOPPED else "running"
    return {"power": power, **({} if move.row.type == migrations.MIGRATION else {"flavor": on_host(flavor)})}


def _cold(work: Work, type: str, flavor: dict[str, Any], **where: Any) -> None:
    move = Migration.begin(work, type, "pre-migrating", flavor)
    try:
        if move.row.status == "pre-migrating":
            with work.event("compute_prep_resize"):
                _agreed(move)
                move.prepare("cold", **where)
            move.note({"task_state": "resize_migrating"}, status="migrating")
        if move.row.status == "migrating":
            with work.event("compute_resize_instance", move.source):
                if move.source != move.target:
                    move.stop(move.source)
                    move.bring("cold", move.source, move.target)
            move.note({"task_state": "resize_migrated", "host": move.target}, status="post-migrating")
        work.note(task_state="resize_finish")
        with work.event("compute_finish_resize", move.target):
            found = _finished(move)
    except HostDown as error:
        if not retry(work):
            _given_up(move, error)
    except NotMoved as error:
        _stays(move, error.cause, error.flavor)
    except MagnetarError as error:
        _given_up(move, error)
    else:
        _waits(move, found)


def _agreed(move: Migration) -> None:
    """Raise what the source says to the flavor, before anything is done."""
    if move.row.type == migrations.RESIZE:
        if move.work.flavor["ephemeral"] > move.flavor["ephemeral"]:
            raise Conflict(f"Resize error: the ephemeral disk has {move.work.flavor['ephemeral']} GiB, and disks do "
                           "not shrink. Choose a flavor with at least as much.")
        with move.work.client(move.source) as client:
            client.ensure("server", move.work.id, {"flavor": on_host(move.flavor)}, dry_run=True, allow_reboot=True)


def _finished(move: Migration) -> dict[str, Any]:
    """The server is of its new flavor. On the same host it is of its old one when that fails."""
    try:
        return move.on(move.target, want(move, move.flavor))
    except HostDown:
        raise
    except MagnetarError as error:
        if move.source != move.target:
            raise
        raise NotMoved(error, _undone(move)) from error


def _undone(move: Migration) -> dict[str, Any]:
    """The server is as before on its host, but for a disk that has grown already; returns the flavor that it has."""
    old = move.work.flavor
    for flavor in (old, grown(old, move.flavor)):
        try:
            move.on(move.source, want(move, flavor))
            return flavor
        except HostDown:
            raise
        except MagnetarError as error:
            why = error
    raise why


def _waits(move: Migration, found: Mapping[str, Any]) -> None:
    """VERIFY_RESIZE."""
    work, flavor = move.work, move.flavor
    move.look()
    move.ends("finished")
    disk_config = {"disk_config": work.args["disk_config"]} if work.args.get("disk_config") else {}
    work.done(**observed(nics_of(work), found), **disk_config, flavor=servers.text(flavor), flavor_id=flavor["id"],
              old_flavor=move.row.old_flavor, host=move.target, launched_at=now())


def _stays(move: Migration, error: MagnetarError, flavor: Flavor | None = None) -> None:
    """The server is at the source, of its old flavor (or *flavor*); its guest runs again if it ran."""
    values: dict[str, Any] = {} if flavor is None else {"flavor": servers.text(flavor)}
    if move.row.status != "pre-migrating" and move.row.old_vm_state != STOPPED:
        try:
            move.on(move.source, {"power": "running"})
        except HostDown:
            if retry(move.work):
                return
            values["vm_state"] = ERROR
        except MagnetarError as why:
            log.warning("server %s does not start again on %s: %s", move.work.id, move.source, why.message)
            values["vm_state"] = ERROR
    if flavor is None:
        move.unclaim()
    else:
        settle_claims(move, move.source, flavor)
    move.ends("error")
    move.work.failed(error, host=move.source, **values)


def _given_up(move: Migration, error: MagnetarError) -> None:
    """It has failed for good. Where nobody knows whose the server is, both hosts stay claimed: both may have something
    of it, and a deletion looks at both."""
    if move.row.status == "pre-migrating":
        _stays(move, error)
        return
    if move.row.status == "migrating":
        try:
            if move.source == move.target or move.take_back(move.source, move.target):
                _stays(move, error)
                return
        except MagnetarError as why:
            log.warning("server %s is between %s and %s: %s", move.work.id, move.source, move.target, why.message)
        move.ends("error")
        move.work.failed(error, vm_state=ERROR)
        return
    move.release()
    move.ends("error")
    flavor = move.flavor
    move.work.failed(error, vm_state=ERROR, flavor=servers.text(flavor), flavor_id=flavor["id"], host=move.target)


def settle_claims(move: Migration, host: str, flavor: Flavor) -> None:
    """The server holds what its old flavor says where it is, and the migration nothing."""
    held, id = amounts(move, flavor), move.host_id(host)
    with move.api.write() as connection:
        if host == move.source:
            allocations.revert(connection, move.work.id, move.id)
        allocations.release(connection, move.id)
        allocations.claim(connection, move.work.id, move.work.id, id, held)
    move.look()


def amounts(move: Migration, flavor: Flavor) -> Amounts:
    return spec_of(move.work, flavor=flavor).amounts
