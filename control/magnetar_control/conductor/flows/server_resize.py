# SPDX-License-Identifier: GPL-3.0-or-later
"""The flows of ``resize`` and ``migrate`` (cold). The server is VERIFY_RESIZE afterwards, until confirm or revert.

The agents move a server for good, so nothing of it is left on the source. Only the migration's claim keeps the room for
revertResize, which moves the server back with everything that was written meanwhile. Disks never shrink: a disk that a
resize has grown stays so, and the flavor of the server notes it under ``grown`` for the claims.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import orjson

from magnetar_control.conductor.steps import cross_cell
from magnetar_control.conductor.steps.guest_data import guest_data, vendor_data
from magnetar_control.conductor.steps.migration import MigrationTask, NotMoved
from magnetar_control.conductor.steps.nics import observed
from magnetar_control.conductor.steps.schedule import spec_of
from magnetar_control.conductor.worker.retry import retry
from magnetar_control.conductor.worker.vendordata import VendordataFailed
from magnetar_control.conductor.worker.work import HostDown, Work, full_is_down
from magnetar_control.scheduler.request_spec import RequestSpec, sizes
from magnetar_control.store.claims import allocations
from magnetar_control.store.claims.joint_claims import join
from magnetar_control.store.engine.database import now
from magnetar_control.store.servers import migrations, servers
from magnetar_core.errors import Conflict, MagnetarError, NoSpace
from magnetar_core.hardware.merge import asked_of
from magnetar_core.local_disks import ephemeral_gib
from magnetar_core.power import ERROR, STOPPED

from .server_power import stop_guest

log = logging.getLogger(__name__)
Flavor = Mapping[str, Any]


def resize(work: Work) -> None:
    """To another flavor: on another host, or on the same where the settings allow it or no other host fits."""
    same = True if work.conductor.settings.allow_resize_to_same_host else None
    _migrate_cold(work, migrations.RESIZE, grown(work.args["flavor"], work.flavor), same=same)


def migrate(work: Work) -> None:
    """To another host, which the caller may name; to one of another cell where the caller is allowed that."""
    _migrate_cold(work, migrations.MIGRATION, work.flavor, host=work.args.get("host"), same=False)


def grown(flavor: Flavor, had: Flavor) -> dict[str, Any]:
    """*flavor*, with ``grown`` for the disks that are larger in the flavor *had* that the server had before."""
    larger = {name: size for name, size in sizes(had).items() if size > int(flavor.get(name) or 0)}
    return {**{name: value for name, value in flavor.items() if name != "grown"},
            **({"grown": larger} if larger else {})}


def columns(flavor: Flavor) -> dict[str, Any]:
    """Columns of a server that has the flavor."""
    return {"flavor": servers.text(flavor), "flavor_id": flavor["id"]}


def agent_flavor(flavor: Flavor) -> dict[str, Any]:
    """The flavor in the agent's form."""
    return {**{name: flavor[name] for name in ("vcpus", "ram", "swap")}, **sizes(flavor)}


def power(move: MigrationTask) -> str:
    """What it is to be afterwards: running or off, as before."""
    return "off" if move.row.old_vm_state == STOPPED else "running"


def want(move: MigrationTask, flavor: Flavor, host: str) -> dict[str, Any]:
    """What the server is to be on *host* with the flavor. Its config drive is written again, as at Nova."""
    return {"power": power(move), "guest_data": guest_data(move.work.conductor, move.work.server, host, flavor),
            **({} if move.row.type == migrations.MIGRATION else sized(move, flavor))}


def sized(move: MigrationTask, flavor: Flavor) -> dict[str, Any]:
    """Fields that follow from the *flavor*; without hardware where neither it nor any before asked for some."""
    image = orjson.loads(move.work.server.image)
    asks = image.get("properties") or any(one.get("extra_specs") for one in (flavor, move.work.flavor, move.flavor))
    hardware = {"hardware": asked_of(flavor, image).get("hardware", {})} if asks else {}
    return {"flavor": agent_flavor(flavor), **hardware}


def _migrate_cold(work: Work, type: str, flavor: dict[str, Any], **where: Any) -> None:
    move = MigrationTask.begin(work, type, "pre-migrating", flavor)
    if type == migrations.RESIZE:
        move.becomes = sized(move, move.flavor)
    try:
        told = _bring(move, where)
        if cross_cell.leaves(work):
            return
        work.note(task_state="resize_finish")
        with work.event("compute_finish_resize", move.target):
            found = _finish(move, _told_again(work) if told is None else {"vendor_data": told})
    except HostDown as error:
        if not retry(work):
            _give_up(move, error)
    except NotMoved as error:
        _roll_back(move, error.cause, error.flavor)
    except MagnetarError as error:
        _give_up(move, error)
    else:
        move.read_hosts()
        disk_config = {"disk_config": work.args["disk_config"]} if work.args.get("disk_config") else {}
        move.end("finished", **observed(work.nics, found), **disk_config, **columns(move.flavor),
                 old_flavor=move.row.old_flavor, host=move.target, launched_at=now())


def _bring(move: MigrationTask, where: Mapping[str, Any]) -> dict[str, Any] | None:
    """Have the server on the target. Returns its vendor data, where that was asked for: before anything is done, as it
    may fail."""
    work, told = move.work, None
    if move.row.status == "post-migrating":
        cross_cell.arrived(work)
    if move.row.status == "pre-migrating":
        with work.event("compute_prep_resize"):
            _check_with_source(move)
            told = vendor_data(work)
            move.prepare("cold", **where)
        move.note({"task_state": "resize_migrating"}, status="migrating")
    if move.row.status == "migrating":
        with work.event("compute_resize_instance", move.source):
            if move.source != move.target:
                stop_guest(work, move.source)
                move.move_server("cold", move.source, move.target)
        move.note_host(move.target, {"task_state": "resize_migrated"}, status="post-migrating")
    return told


def _check_with_source(move: MigrationTask) -> None:
    """Raise what the source's agent refuses of the flavor's disks, before anything is done. All else the target must
    have, and the source need not."""
    if move.row.type == migrations.RESIZE:
        had = ephemeral_gib(move.work.flavor, move.work.request.get("blocks") or ())
        if had > move.flavor["ephemeral"]:
            raise Conflict(f"Resize error: the ephemeral disks have {had} GiB, and disks do not shrink. Choose a "
                           "flavor with at least as much.")
        with move.work.client(move.source) as client:
            disks = {name: size for name, size in agent_flavor(move.flavor).items() if name not in ("vcpus", "ram")}
            client.ensure("server", move.work.id, {"flavor": disks}, dry_run=True, allow_reboot=True)


def _told_again(work: Work) -> dict[str, Any]:
    """``vendor_data`` where a try before has begun to move the server. It keeps what it had where a target fails whose
    failure is fatal: there is no way back any more."""
    try:
        return {"vendor_data": vendor_data(work)}
    except VendordataFailed as error:
        log.warning("server %s keeps its dynamic vendordata: %s", work.id, error.message)
        return {}


def _finish(move: MigrationTask, told: Mapping[str, Any]) -> dict[str, Any]:
    """Give the server its new flavor at the target, and have its guest *told* what the operator says. When that fails
    on the same host, it gets its old flavor again."""
    wish = {**want(move, move.flavor, move.target), **told}
    if move.source != move.target:
        with full_is_down():
            return move.ensure_on(move.target, wish)
    try:
        return move.ensure_on(move.target, wish)
    except HostDown:
        raise
    except MagnetarError as error:
        with full_is_down():
            raise NotMoved(error, _undo(move)) from error


def _undo(move: MigrationTask) -> dict[str, Any]:
    """Give the server its old flavor on its host; a disk that has grown stays. Returns the flavor that it has."""
    old = move.work.flavor
    try:
        move.ensure_on(move.source, want(move, old, move.source))
    except (HostDown, NoSpace):
        raise
    except MagnetarError:
        old = grown(old, move.flavor)
        move.ensure_on(move.source, want(move, old, move.source))
    return old


def _roll_back(move: MigrationTask, error: MagnetarError, flavor: Flavor | None = None) -> None:
    """The action has failed; the server is on the source with its old flavor (or *flavor*), and runs if it ran."""
    values: dict[str, Any] = {} if flavor is None else {"flavor": servers.text(flavor)}
    if move.row.status != "pre-migrating" and move.row.old_vm_state != STOPPED:
        try:
            with full_is_down():
                move.ensure_on(move.source, {"power": "running"})
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
    move.end("error", error, host=move.source, **values)


def _give_up(move: MigrationTask, error: MagnetarError) -> None:
    """The action has failed. Where it is unknown which host has the server, both stay claimed: a deletion asks both."""
    status = move.row.status
    back = status == "pre-migrating"
    try:
        back = back or (status == "migrating" and (move.source == move.target or move.abort(move.source, move.target)))
    except MagnetarError as why:
        log.warning("server %s is between %s and %s: %s", move.work.id, move.source, move.target, why.message)
    if back:
        _roll_back(move, error)
    elif status == "migrating":
        move.end("error", error, vm_state=ERROR)
    else:
        move.release()
        move.end("error", error, vm_state=ERROR, **columns(move.flavor), host=move.target)


def settle_claims(move: MigrationTask, host: str, flavor: Flavor) -> None:
    """The server holds the claims of its old flavor on *host*, and the migration none. On the source it takes them out
    of what both held there, so that it needs no room: operators may have lowered what the host gives. Where it is
    refused all the same, the server keeps what it holds: nobody else may get what the guest has. The audit says so."""
    held, id = needed(move, flavor), move.conductor.host(host)["id"]
    with move.api.write() as connection:
        if host == move.source:
            join(connection, move.work.id, move.id, id)
        allocations.release(connection, move.id)
        if not allocations.claim(connection, move.work.id, move.work.id, id, held.amounts, devices=held.devices,
                                 resources=held.resources, nics=held.nics):
            log.warning("server %s keeps what it holds of host %s, which has not what its flavor needs left. See what "
                        "magnetar audit says of it, and give the host more, or move servers away.", move.work.id, host)
    move.read_hosts()


def needed(move: MigrationTask, flavor: Flavor) -> RequestSpec:
    """What the server with *flavor* holds of a host."""
    return spec_of(move.work, flavor=flavor)
