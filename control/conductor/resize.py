# SPDX-License-Identifier: GPL-3.0-or-later
"""Resize and cold migration, and the word that is waited for: confirmResize, revertResize, or the window's end.

The agents move a server for good, so nothing of it is left on the source while it waits: the claim there keeps the room
for the way back, and revertResize is that way, which loses nothing that was written meanwhile. Disks never shrink: one
that a resize has grown stays as it is, and the claim says so (``grown`` in the server's flavor).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import orjson

from magnetar_control.scheduler.request import sizes
from magnetar_control.store import allocations, migrations, servers
from magnetar_control.store.allocations import Amounts
from magnetar_control.store.database import now
from magnetar_core.actions import ACTIVE, ERROR, POWER, RESIZED, STOPPED
from magnetar_core.errors import Conflict, MagnetarError, NoSpace

from .build import nics_of, seen
from .conductor import Conductor
from .move import Move, Stayed
from .power import patient
from .schedule import wanted
from .work import HostDown, Work

log = logging.getLogger(__name__)
#: Seconds between two looks for resizes that nobody has confirmed.
LOOK = 5.0
Flavor = Mapping[str, Any]


class NoRoom(NoSpace):
    """No host has room for what a resize would go back to."""


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


def _want(move: Move, flavor: Flavor) -> dict[str, Any]:
    power = "off" if move.row.old_vm_state == STOPPED else "running"
    return {"power": power, **({} if move.row.type == migrations.MIGRATION else {"flavor": on_host(flavor)})}


# There ------------------------------------------------------------------------------------------------------------
def _cold(work: Work, type: str, flavor: dict[str, Any], **where: Any) -> None:
    move = Move.begin(work, type, "pre-migrating", flavor)
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
        if not patient(work):
            _given_up(move, error)
    except Stayed as error:
        _stays(move, error.cause, error.flavor)
    except MagnetarError as error:
        _given_up(move, error)
    else:
        _waits(move, found)


def _agreed(move: Move) -> None:
    """Raise what the source says to the flavor, before anything is done."""
    if move.row.type == migrations.RESIZE:
        if move.work.flavor["ephemeral"] > move.flavor["ephemeral"]:
            raise Conflict(f"Resize error: the ephemeral disk has {move.work.flavor['ephemeral']} GiB, and disks do "
                           "not shrink. Choose a flavor with at least as much.")
        with move.work.client(move.source) as client:
            client.ensure("server", move.work.id, {"flavor": on_host(move.flavor)}, dry_run=True, allow_reboot=True)


def _finished(move: Move) -> dict[str, Any]:
    """The server is of its new flavor. On the same host it is of its old one when that fails."""
    try:
        return move.on(move.target, _want(move, move.flavor))
    except HostDown:
        raise
    except MagnetarError as error:
        if move.source != move.target:
            raise
        raise Stayed(error, _undone(move)) from error


def _undone(move: Move) -> dict[str, Any]:
    """The server is as before on its host, but for a disk that has grown already; returns the flavor that it has."""
    old = move.work.flavor
    for flavor in (old, grown(old, move.flavor)):
        try:
            move.on(move.source, _want(move, flavor))
            return flavor
        except HostDown:
            raise
        except MagnetarError as error:
            why = error
    raise why


def _waits(move: Move, found: Mapping[str, Any]) -> None:
    """VERIFY_RESIZE."""
    work, flavor = move.work, move.flavor
    move.look()
    move.ends("finished")
    disk_config = {"disk_config": work.args["disk_config"]} if work.args.get("disk_config") else {}
    work.done(**seen(nics_of(work), found), **disk_config, flavor=servers.text(flavor), flavor_id=flavor["id"],
              old_flavor=move.row.old_flavor, host=move.target, launched_at=now())


def _stays(move: Move, error: MagnetarError, flavor: Flavor | None = None) -> None:
    """The server is at the source, of its old flavor (or *flavor*); its guest runs again if it ran."""
    values: dict[str, Any] = {} if flavor is None else {"flavor": servers.text(flavor)}
    if move.row.status != "pre-migrating" and move.row.old_vm_state != STOPPED:
        try:
            move.on(move.source, {"power": "running"})
        except HostDown:
            if patient(move.work):
                return
            values["vm_state"] = ERROR
        except MagnetarError as why:
            log.warning("server %s does not start again on %s: %s", move.work.id, move.source, why.message)
            values["vm_state"] = ERROR
    if flavor is None:
        move.unclaim()
    else:
        _settle_claims(move, move.source, flavor)
    move.ends("error")
    move.work.failed(error, host=move.source, **values)


def _given_up(move: Move, error: MagnetarError) -> None:
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


# And the word -----------------------------------------------------------------------------------------------------
def confirm(work: Work) -> None:
    """The server stays as it is: what was kept for its way back is free. Needs no host."""
    with work.database.read() as connection:
        row = migrations.kept(connection, work.id)
    if work.server.vm_state != RESIZED:
        work.failed(Conflict(f"Instance {work.id} has no resize that could be confirmed."))
        return
    with work.event(host=row.source if row else None):
        power = _power(work)
        if row is not None:
            move = Move(work, row)
            move.release()
            move.ends("confirmed")
    work.done(vm_state=STOPPED if power in (POWER["off"], POWER["crashed"]) else ACTIVE, power_state=power,
              old_flavor=None)


def _power(work: Work) -> int:
    """What the guest does now; what it did last when its host does not answer."""
    if not work.conductor.is_up(work.server.host):
        return int(work.server.power_state)
    try:
        with work.client() as client:
            return POWER.get(client.get("server", work.id)["power_state"], 0)
    except MagnetarError:
        return int(work.server.power_state)


def revert(work: Work) -> None:
    """Back to the flavor that it had, on the host that it had; where that cannot take it, on the one that it has."""
    with work.database.read() as connection:
        row = migrations.kept(connection, work.id)
    if work.server.vm_state != RESIZED or row is None:
        work.failed(Conflict(f"Instance {work.id} has no resize that could be taken back."))
        return
    move = Move(work, row)
    flavor = grown(orjson.loads(row.old_flavor), move.flavor)
    try:
        move.note(status="reverting")
        with work.event(host=move.target):
            host = _returned(move, flavor)
        with work.event("compute_finish_revert_resize", host):
            found = move.on(host, _want(move, flavor))
    except HostDown as error:
        if not patient(work):
            _not_reverted(move, error, flavor)
    except MagnetarError as error:
        _not_reverted(move, error, flavor)
    else:
        _settle_claims(move, host, flavor)
        move.ends("reverted")
        work.done(**seen(nics_of(work), found), vm_state=row.old_vm_state or ACTIVE, flavor=servers.text(flavor),
                  flavor_id=flavor["id"], old_flavor=None, host=host)


def _returned(move: Move, flavor: Flavor) -> str:
    """Bring the server to where it goes; returns the host. What it needs there is claimed."""
    work, source, target = move.work, move.source, move.target
    if source == target:
        return source
    if work.server.host == source or _goes(move, flavor):
        if work.server.host != source:
            try:
                move.stop(target)
                move.bring("cold", target, source)
            except Stayed as stayed:
                return _in_place(move, flavor, stayed.cause)
        with move.claims.write() as connection:
            allocations.revert(connection, work.id, move.id)
        move.note({"host": source})
        return source
    return _in_place(move, flavor)


def _goes(move: Move, flavor: Flavor) -> bool:
    """Whether the source takes the server back: it is on its way already, or the host answers, has room for the disks
    as they are now, and refuses nothing."""
    work, source, target = move.work, move.source, move.target
    with move.sides(target, source) as (here, _there):
        if here.find(work.id) is None or here.open_migrations(work.id):
            return True
    if not move.conductor.is_up(source):
        return False
    return _claimed(move, move.id, source, _amounts(move, flavor)) and move.fits(target, source)


def _in_place(move: Move, flavor: Flavor, cause: MagnetarError | None = None) -> str:
    """The server takes its old flavor where it is. Raises ``NoRoom`` when there is none for that either."""
    old, new = _amounts(move, flavor), _amounts(move, move.flavor)
    if not _claimed(move, move.work.id, move.target, Amounts(*map(max, old, new))):
        why = f" ({cause.message})" if cause else ""
        raise NoRoom(f"Host {move.source} does not take the server back{why}, and {move.target} has no room for the "
                     "old flavor. Confirm the resize, or try again when there is room.")
    return move.target


def _settle_claims(move: Move, host: str, flavor: Flavor) -> None:
    """The server holds what its old flavor says where it is, and the migration nothing."""
    amounts, id = _amounts(move, flavor), move.host_id(host)
    with move.claims.write() as connection:
        if host == move.source:
            allocations.revert(connection, move.work.id, move.id)
        allocations.release(connection, move.id)
        allocations.claim(connection, move.work.id, move.work.id, id, amounts)
    move.look()


def _amounts(move: Move, flavor: Flavor) -> Amounts:
    return wanted(move.work, flavor=flavor).amounts


def _claimed(move: Move, consumer: str, host: str, amounts: Amounts) -> bool:
    id = move.host_id(host)
    with move.claims.write() as connection:
        return allocations.claim(connection, consumer, move.work.id, id, amounts)


def _not_reverted(move: Move, error: MagnetarError, flavor: Flavor) -> None:
    """It waits for a word as before where nothing was done; where something was, it is in error, and what it may have
    on either host stays claimed."""
    work = move.work
    if isinstance(error, NoRoom) and work.server.host == move.target:
        try:
            move.on(move.target, {"power": _want(move, flavor)["power"]})
            work.also.append(lambda connection: migrations.change(connection, move.id, status="finished"))
            work.failed(error)
            return
        except MagnetarError as why:
            log.warning("server %s does not start again on %s: %s", work.id, move.target, why.message)
    values: dict[str, Any] = {}
    if work.server.host == move.source:
        _settle_claims(move, move.source, flavor)
        values = {"flavor": servers.text(flavor), "flavor_id": flavor["id"]}
    move.ends("error")
    work.failed(error, vm_state=ERROR, **values)


# The window -------------------------------------------------------------------------------------------------------
def confirm_late(conductor: Conductor) -> int:
    """One look; how many are confirmed."""
    window, count = conductor.settings.resize_confirm_window, 0
    if window <= 0:
        return 0
    before = (datetime.fromisoformat(now()) - timedelta(seconds=window)).isoformat(timespec="microseconds")
    database = conductor.database
    with database.read() as connection:
        waiting = migrations.late(connection, before)
    for server in waiting:
        with database.write() as connection:
            found = migrations.kept(connection, server.id)
            if found is None or not migrations.became(connection, found, "finished", "confirming"):
                continue  # another conductor was quicker
            if servers.ask(connection, server, "confirmResize", f"req-{uuid.uuid4()}", server.user_id,
                           server.project_id):
                count += 1
                database.ring(connection, servers.ACTIONS_BELL)
            else:
                migrations.change(connection, found.uuid, status="finished")
    return count
