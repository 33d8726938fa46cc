# SPDX-License-Identifier: GPL-3.0-or-later
"""The flows of ``resize`` and ``migrate`` (cold). Afterwards the server is VERIFY_RESIZE until confirm or revert.

The agents move a server completely; nothing of it stays on the source. Only the migration's claim reserves the room for
revertResize, which moves the server back with everything that was written meanwhile. Disks never shrink: a disk that a
resize has grown keeps its size, which the server's flavor stores under ``grown`` for the claims."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

from magnetar_control.conductor.steps import cross_cell
from magnetar_control.conductor.steps.guest_data import guest_data, vendor_data
from magnetar_control.conductor.steps.migration import MigrationTask, NotMoved
from magnetar_control.conductor.steps.nics import observed_columns
from magnetar_control.conductor.steps.schedule import spec_of
from magnetar_control.conductor.worker.retry import retry_later
from magnetar_control.conductor.worker.vendordata import VendordataFailed
from magnetar_control.conductor.worker.work import HostDown, RunningAction, full_is_down
from magnetar_control.documents import FlavorOfServer
from magnetar_control.scheduler.request_spec import RequestSpec, flavor_disk_sizes
from magnetar_control.store.claims import allocations
from magnetar_control.store.claims.allocations import join_migration_claims
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.servers import migrations, servers
from magnetar_core.errors import Conflict, MagnetarError, NoSpace
from magnetar_core.hardware.merge import requested_hardware
from magnetar_core.local_disks import ephemeral_gib
from magnetar_core.power import ERROR, STOPPED

from .server_power import stop_guest

log = logging.getLogger(__name__)
Flavor = FlavorOfServer


def run_resize(work: RunningAction) -> None:
    """Resize the server of the action *work* to another flavor on another host. The server stays on its current host
    only if the settings allow it or no other host fits."""
    same = True if work.conductor.settings.allow_resize_to_same_host else None
    _migrate_cold(work, migrations.RESIZE, flavor_with_grown_disks(work.args["flavor"], work.flavor), same=same)


def run_cold_migration(work: RunningAction) -> None:
    """Migrate the server of the action *work* cold to another host, which the request may name. If the action's
    arguments allow it, the host may be in another cell."""
    _migrate_cold(work, migrations.MIGRATION, work.flavor, host=work.args.get("host"), same=False)


def flavor_with_grown_disks(flavor: Flavor, current_flavor: Flavor) -> Flavor:
    """Return *flavor* for a server that changes from *current_flavor* to *flavor*. Add the key ``grown`` with the disks
    that are larger in *current_flavor*, and their sizes there, because existing disks cannot shrink."""
    own_sizes = flavor_disk_sizes({**flavor, "grown": {}})
    larger = {name: size for name, size in flavor_disk_sizes(current_flavor).items() if size > own_sizes[name]}
    plain = cast("Flavor", {name: value for name, value in flavor.items() if name != "grown"})
    return {**plain, "grown": larger} if larger else plain


def flavor_columns(flavor: Flavor) -> dict[str, Any]:
    """Return the columns of a server's row that store *flavor*."""
    return {"flavor": servers.json_text(flavor), "flavor_id": flavor["id"]}


def agent_flavor(flavor: Flavor) -> dict[str, Any]:
    """Return the fields of *flavor* that the agent needs: vcpus, ram, swap and the sizes of the disks."""
    return {"vcpus": flavor["vcpus"], "ram": flavor["ram"], "swap": flavor["swap"], **flavor_disk_sizes(flavor)}


def power_after_move(move: MigrationTask) -> str:
    """Return the power state, running or off, that the server had before the move and must have again after it."""
    return "off" if move.row.old_vm_state == STOPPED else "running"


def server_after_move(move: MigrationTask, flavor: Flavor, host: str) -> dict[str, Any]:
    """Return the fields of the server that its agent on *host* must set after the move, for the given *flavor*. The
    fields include new data for the config drive, as in Nova."""
    return {"power": power_after_move(move), "guest_data": guest_data(move.work.conductor, move.work.server, host,
                                                                      flavor),
            **({} if move.row.type == migrations.MIGRATION else resized_fields(move, flavor))}


def resized_fields(move: MigrationTask, flavor: Flavor) -> dict[str, Any]:
    """Return the fields of the server that the agent must set for *flavor*: ``flavor``, and also ``hardware`` if the
    image has properties or the old or new flavor has extra specs."""
    image = move.work.server.image
    asks = image.get("properties") or any(any_flavor.get("extra_specs")
                                          for any_flavor in (flavor, move.work.flavor, move.flavor))
    hardware = {"hardware": requested_hardware(flavor, image).get("hardware", {})} if asks else {}
    return {"flavor": agent_flavor(flavor), **hardware}


def _migrate_cold(work: RunningAction, type: str, flavor: Flavor, **where: Any) -> None:
    move = MigrationTask.begin(work, type, "pre-migrating", flavor)
    if type == migrations.RESIZE:
        move.becomes = resized_fields(move, move.flavor)
    try:
        new_vendor_data = _move_to_target(move, where)
        if cross_cell.relocate_if_leaving(work):
            return
        work.note(task_state="resize_finish")
        with work.event("compute_finish_resize", move.target):
            resource = _finish_on_target(move, _vendor_data_again(work) if new_vendor_data is None
                                         else {"vendor_data": new_vendor_data})
    except HostDown as error:
        if not retry_later(work):
            _give_up(move, error)
    except NotMoved as error:
        _roll_back(move, error.cause, error.flavor)
    except MagnetarError as error:
        _give_up(move, error)
    else:
        move.read_hosts()
        disk_config = {"disk_config": work.args["disk_config"]} if work.args.get("disk_config") else {}
        move.end("finished", **observed_columns(work.nics, resource), **disk_config, **flavor_columns(move.flavor),
                 old_flavor=move.row.stored.old_flavor, host=move.target, launched_at=utc_now())


def _move_to_target(move: MigrationTask, where: Mapping[str, Any]) -> dict[str, Any] | None:
    """Move the server to the target host. *where*: keyword arguments of ``MigrationTask.prepare`` that restrict the
    choice of this host. Return the field ``vendor_data`` with new data for the guest. The data is fetched before the
    move, because fetching may fail; return ``None`` if an earlier attempt has fetched it."""
    work, new_vendor_data = move.work, None
    if move.row.status == "post-migrating":
        cross_cell.map_to_this_cell(work)
    if move.row.status == "pre-migrating":
        with work.event("compute_prep_resize"):
            _check_with_source(move)
            new_vendor_data = vendor_data(work)
            move.prepare("cold", **where)
        move.note({"task_state": "resize_migrating"}, status="migrating")
    if move.row.status == "migrating":
        with work.event("compute_resize_instance", move.source):
            if move.source != move.target:
                stop_guest(work, move.source)
                move.move_server("cold", move.source, move.target)
        move.note_host(move.target, {"task_state": "resize_migrated"}, status="post-migrating")
    return new_vendor_data


def _check_with_source(move: MigrationTask) -> None:
    """Check a resize before anything is changed; a cold migration needs no check. Raises ``Conflict`` if the new flavor
    has smaller ephemeral disks, or the error with which the agent of the source host refuses the new disks."""
    if move.row.type == migrations.RESIZE:
        had = ephemeral_gib(move.work.flavor, move.work.request.get("blocks") or ())
        if had > move.flavor["ephemeral"]:
            raise Conflict(f"Resize error: the ephemeral disks have {had} GiB, and disks do not shrink. Choose a "
                           "flavor with at least as much.")
        with move.work.client(move.source) as client:
            disks = {name: size for name, size in agent_flavor(move.flavor).items() if name not in ("vcpus", "ram")}
            client.ensure("server", move.work.id, {"flavor": disks}, dry_run=True, allow_reboot=True)


def _vendor_data_again(work: RunningAction) -> dict[str, Any]:
    """Fetch new vendor data for a move that an earlier attempt has begun, and return it as the field ``vendor_data``.
    If fetching fails, return an empty dict: the move cannot be undone any more, so the server keeps its old vendor
    data."""
    try:
        return {"vendor_data": vendor_data(work)}
    except VendordataFailed as error:
        log.warning("server %s keeps its dynamic vendordata: %s", work.id, error.message)
        return {}


def _finish_on_target(move: MigrationTask, vendor_data_fields: Mapping[str, Any]) -> dict[str, Any]:
    """Apply the new flavor to the server on the target host, and return the server as its agent reports it.
    *vendor_data_fields*: the field ``vendor_data``, the operator's data for the guest; {} keeps the old data. If the
    new flavor cannot be applied and the target is also the source, restore the old flavor and raise ``NotMoved``, which
    contains the cause."""
    wish = {**server_after_move(move, move.flavor, move.target), **vendor_data_fields}
    if move.source != move.target:
        with full_is_down():
            return move.ensure_on(move.target, wish)
    try:
        return move.ensure_on(move.target, wish)
    except HostDown:
        raise
    except MagnetarError as error:
        with full_is_down():
            raise NotMoved(error, _restore_flavor(move)) from error


def _restore_flavor(move: MigrationTask) -> Flavor:
    """Apply the old flavor to the server on its host again. Disks that have grown cannot shrink, so the returned flavor
    may have larger disks than the old one."""
    old = move.work.flavor
    try:
        move.ensure_on(move.source, server_after_move(move, old, move.source))
    except (HostDown, NoSpace):
        raise
    except MagnetarError:
        old = flavor_with_grown_disks(old, move.flavor)
        move.ensure_on(move.source, server_after_move(move, old, move.source))
    return old


def _roll_back(move: MigrationTask, error: MagnetarError, flavor: Flavor | None = None) -> None:
    """End the failed action: the server stays on the source host with its old flavor (or *flavor*), and is started if
    it ran before."""
    values: dict[str, Any] = {} if flavor is None else {"flavor": servers.json_text(flavor)}
    if move.row.status != "pre-migrating" and move.row.old_vm_state != STOPPED:
        try:
            with full_is_down():
                move.ensure_on(move.source, {"power": "running"})
        except HostDown:
            if retry_later(move.work):
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
    """End a failed resize. Roll the resize back if the source host has the server; complete it if the target host has
    the server.

    If it is unknown which host has the server, keep the claims on both hosts. A later deletion of the server then asks
    both hosts.
    """
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
        move.end("error", error, vm_state=ERROR, **flavor_columns(move.flavor), host=move.target)


def settle_claims(move: MigrationTask, host: str, flavor: Flavor) -> None:
    """Replace all claims of the server and its migration by a claim for *flavor* on *host*.

    On the source host, the claims of the migration are first merged into the claim of the server. So no free resources
    are needed, even if operators have lowered the host's limits. If the new claim is refused nevertheless, the server
    keeps the old claim, because the guest uses the claimed resources. The audit then reports that the claim differs
    from the flavor.
    """
    spec, id = spec_of_flavor(move, flavor), move.conductor.host(host).id
    with move.api.write() as connection:
        if host == move.source:
            join_migration_claims(connection, move.work.id, move.id, id)
        allocations.release_consumer_claims(connection, move.id)
        if not allocations.claim_host_resources(connection, move.work.id, move.work.id, id, spec.amounts,
                                                devices=spec.devices, resources=spec.resources, nics=spec.nics):
            log.warning("server %s keeps what it holds of host %s, which has not what its flavor needs left. See what "
                        "magnetar audit says of it, and give the host more, or move servers away.", move.work.id, host)
    move.read_hosts()


def spec_of_flavor(move: MigrationTask, flavor: Flavor) -> RequestSpec:
    """Return the scheduler request for the server with *flavor*. It contains the resources that the server must claim
    on a host."""
    return spec_of(move.work, flavor=flavor)
