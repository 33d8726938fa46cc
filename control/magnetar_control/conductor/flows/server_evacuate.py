# SPDX-License-Identifier: GPL-3.0-or-later
"""The flow of ``evacuate``: rebuild a server of a dead host on another host, from its image or its root volume.

Statuses of its migration: ``accepted``; ``pre-migrating`` after a transaction has checked the heartbeats of the old
host, and saved that this host has lost the server; ``done`` when the server is on the new host. A ``done`` migration
keeps the claims on the old host until the old guest is removed there (``host_return``), and then is ``completed``.
docs/explanation/evacuation.md has the rules.

When a build on a new host fails, the flow saves the name of that host before it removes anything there. If that host
does not answer, the flow saves another migration, from that host, as ``done``: the server is removed when the host
returns.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from magnetar_control.agents import PATIENCE
from magnetar_control.conductor.steps import migration, nics
from magnetar_control.conductor.steps.migration import MigrationTask
from magnetar_control.conductor.steps.schedule import RANDOM, spec_of
from magnetar_control.conductor.steps.shared_disks import confirm_disks
from magnetar_control.conductor.steps.volume_homes import (
    hosts_for_volumes,
    move_volume,
    must_move,
    volumes_behind_fence,
)
from magnetar_control.conductor.worker.retry import retry_later
from magnetar_control.conductor.worker.work import HostDown, RunningAction, admin_message
from magnetar_control.documents import VolumeOfServer
from magnetar_control.fencing.host_fencing import HostFencing
from magnetar_control.scheduler.choose import NoValidHost
from magnetar_control.scheduler.place import place_server
from magnetar_control.scheduler.shared_disks import hosts_sharing_disks, narrow_to_disks
from magnetar_control.store.actions import actions
from magnetar_control.store.claims import allocations
from magnetar_control.store.engine.database import utc_now
from magnetar_control.store.hosts import hosts, services
from magnetar_control.store.hosts.shared_disks import shared_disks_of
from magnetar_control.store.servers import consoles, migrations, servers
from magnetar_core.document import Document
from magnetar_core.errors import Cancelled, Conflict, FencingFailed, MagnetarError, NotFound
from magnetar_core.power import ACTIVE, ERROR, OFF, REBUILD, RUNNING, STOPPED

from .server_create import make_server, refused_on_all_hosts
from .server_power import stop_guest

log = logging.getLogger(__name__)
#: Seconds after which an evacuation looks again at a host that another process fences.
WAIT_FOR_FENCE = 1.0


class SourceUp(Conflict):
    """Raised when a server cannot be evacuated, because the old host may still run it."""


class Evacuation(MigrationTask):
    """The evacuation of one server while its action runs. It claims a new host, and updates the evacuation's row in
    ``migrations``. The source host in this row is the failed host, called the old host here."""

    @property
    def tried(self) -> list[str]:
        """The names of the hosts where this action has failed to build the server."""
        tried_hosts: list[str] = self.work.args.get("tried", [])
        return tried_hosts

    def claimed(self) -> list[str]:
        """Return the names of the hosts on which the server has claimed resources, except the old host."""
        with self.api.read() as connection:
            return [claim.host for claim in allocations.fetch_server_claims(connection, self.work.id)
                    if claim.consumer_id == self.work.id and claim.host != self.source]

    def choose(self) -> str:
        """Claim a host for the server, transfer the claims on the old host to the migration, and return the name of the
        new host."""
        self._claim(frozenset(self.tried), self.work.args.get("host"), same=False, forced=bool(
            self.work.args.get("forced")))
        return self.target

    def _placed(self, tried: frozenset[str], host: str | None, same: bool | None, forced: bool) -> str:
        """Claim a host and return its name, never the old host or a host in *tried* (overrides
        ``MigrationTask._placed``). *host*: the only candidate, if given. *forced*: skip the scheduler's filters. *same*
        is ignored."""
        work, only = self.work, hosts_for_volumes(self.work, self.source)
        if host is None:
            only = narrow_to_disks(self.conductor.states, only, self._sharing())
        spec = spec_of(work, host=host, ignored=tried | {self.source}, cell_id=self.conductor.cell.id,
                       volume_hosts=only)
        if forced:
            spec = replace(spec.forced_to(), volume_hosts=only)
        return place_server(self.api, self.conductor.states, spec, map_cell=False, random=RANDOM).host

    def is_source_fenced(self) -> bool:
        """Fence the old host if necessary. Return ``True`` if the old host is certainly off, or has no fencing device.
        Return ``False`` while another process fences or unfences the host. Raises ``SourceUp`` if the host is up and
        not forced down, and ``FencingFailed``. Raises ``Conflict`` if the host may be on and could still write to a
        volume of the server."""
        answers = _source_heard_lately(self)
        if answers and not self._is_forced_down():
            raise self._source_up()
        fencing = HostFencing(self.conductor.store, self.conductor.settings)
        try:
            with self.work.resting():
                fenced = fencing.confirm_fenced(self.source, f"the evacuation of server {self.work.id}",
                                                str(self.row.created_at), answers=answers)
        except Conflict:  # another process was faster
            return False
        except MagnetarError as error:
            raise FencingFailed(
                f"Host {self.source} is not off for certain, since its fencing has failed, so nothing was evacuated. "
                f"An administrator finds the reason with `magnetar host fence-status {self.source}`.",
                explanation=error.message) from None
        if fenced:
            fencing.check_known_off(self.source, volumes_behind_fence(self.work, self.source),
                                    disks=self._may_keep_disks())
        return fenced

    def _sharing(self) -> frozenset[str]:
        """Return the hosts that can access the server's local disks on the old host through shared storage."""
        return hosts_sharing_disks(self.conductor.states, self.work.server, self.source)

    def _may_keep_disks(self) -> bool:
        """Return whether the server may be evacuated to a host that takes over its local disks."""
        sharing, host = self._sharing(), self.work.args.get("host")
        return bool(sharing) if host is None else host in sharing

    @property
    def former_owner(self) -> str | None:
        """The name of the old host if the new host takes over the server's disks, otherwise ``None``. Set by
        ``decide``."""
        owner: str | None = self.work.args.get("former_owner")
        return owner

    def decide(self, host: str) -> None:
        """Save that the old host must not run the server any more (migration status ``pre-migrating``), and whether the
        new host *host* takes over the server's disks. The transaction blocks new heartbeats of the old host, so that
        the host cannot come up at the same time. Raises ``SourceUp`` if the old host is up and not forced down."""
        silence, forced_down = self.conductor.settings.host_down_after, self._is_forced_down()
        shared = shared_disks_of(self.conductor.states.rows.get(self.source), self.work.server) if (
            host in self._sharing()) else {}
        self.work.args["former_owner"] = shared.get("owner")
        with self.work.database.write() as connection:
            self.work.confirm_lease(connection)
            up = services.is_host_heard(self.work.database, connection, self.source, silence, lock=True)
            if up and not forced_down:
                raise self._source_up()
            actions.update_evacuation_row(connection, self.work.action.id, args=servers.json_text(self.work.args))
            migrations.update_migration_row(connection, self.id, status=migrations.LOST)
            self.row = migrations.reload_migration_row(connection, self.id)

    def _is_forced_down(self) -> bool:
        """Return whether the old host is forced down, which means that it counts as down even if its agent answers.
        Return ``True`` also if the host was removed from the cloud."""
        with self.conductor.store.api.read() as connection:
            row = hosts.fetch_host_row(connection, self.source)
        return row is None or row.forced_down

    def _source_up(self) -> SourceUp:
        return SourceUp(f"Compute service of {self.source} is still in use.")

    def has_failed_on(self, host: str) -> None:
        """Save that the build has failed on *host*, so that this action does not choose *host* again."""
        work = self.work
        if host in self.tried:
            return
        work.args["tried"] = [*self.tried, host]
        with work.write() as connection:
            work.confirm_lease(connection)
            actions.update_evacuation_row(connection, work.action.id, args=servers.json_text(work.args))
            migrations.update_migration_row(connection, self.id, status="accepted")
            self.row = migrations.reload_migration_row(connection, self.id)


def run_evacuation(work: RunningAction) -> None:
    """Evacuate the server of the action *work* from its failed host. ``work.args``: the migration, the requested host,
    whether it is forced (chosen without the scheduler), and whether the server stays stopped.

    The action is queued again for each host that is tried, because the number of parallel builds is limited for each
    host.
    """
    move = Evacuation.begin(work, migrations.EVACUATION, "accepted", work.flavor)
    claimed_hosts = move.claimed()
    host = next((name for name in claimed_hosts if name not in move.tried), None)
    if work.action.cancel:
        _undo_build(move, host, Cancelled("The server was deleted, or its state was reset, before it was evacuated."))
    elif failed := [name for name in claimed_hosts if name in move.tried]:  # a conductor died during this cleanup
        _undo_build(move, failed[0], Conflict(f"The build on host {failed[0]} has failed."))
    elif move.row.status == "accepted" and not _is_fenced(move):
        pass  # it has failed, or waits in the queue
    elif host is None:
        _choose(move)
    elif host != work.action.host or host != move.row.target:
        move.note(target=host)  # a conductor may have died after the claim
        work.put_back(0.0, host=host)
    else:
        _build_on(move, host)


def _is_fenced(move: Evacuation) -> bool:
    """Return whether the evacuation may continue, because the old host is certainly off or has no fencing device. If
    fencing has failed, end the action and return ``False``. If another process fences the host, queue the action again
    and return ``False``."""
    began = utc_now()
    try:
        if move.is_source_fenced():
            return True
    except MagnetarError as error:
        _note_failed_event(move, began, error)
        _fail(move, error)
    else:
        move.work.put_back(WAIT_FOR_FENCE)
    return False


def _choose(move: Evacuation) -> None:
    """Claim a new host, and queue the action again for this host. If the scheduler finds no host, the server stays on
    its old host in error, and can be evacuated again (as in Nova's functional test ``test_evacuate_no_valid_host``). If
    the requested host was forced and has too few resources, the server is not changed (as in Nova's
    ``_allocate_for_evacuate_dest_host``)."""
    work, began = move.work, utc_now()
    try:
        host = move.choose()
    except NoValidHost as none:
        if work.conductor.settling():
            work.put_back(1.0)
            return
        _note_failed_event(move, began, none)
        _fail(move, none, **({} if work.args.get("forced") else {"vm_state": ERROR}))
    except MagnetarError as error:  # its root volume is gone
        _fail(move, error)
    else:
        work.put_back(0.0, host=host)


def _note_failed_event(move: Evacuation, began: str, error: MagnetarError) -> None:
    """Add a failed event to the instance action, in the transaction that ends the action. *began*: the time when the
    event began. *error*: why it failed."""
    work, why = move.work, admin_message(error)
    work.end_writes.append(lambda connection: actions.insert_ended_event(
        connection, work.action.id, work.rule.event, work.conductor.name, began, "Error", why))


def _build_on(move: Evacuation, host: str) -> None:
    work = move.work
    off = work.args.get("stopped") or move.row.old_vm_state == STOPPED
    try:
        if move.row.status == "accepted":
            move.decide(host)
        with work.event("compute_rebuild_instance", host, {"task_state": REBUILD[1 if work.volumes else -1]}):
            _stop_on_source(move)
            if work.volumes:
                _withdraw_volumes(work, move.source, host)
                work.note(task_state=REBUILD[-1])
            ports = nics.current_nics(work)
            resource = make_server(work, host, ports, OFF if off else RUNNING, move.former_owner)
    except SourceUp as error:  # nothing was begun on the new host
        _fail(move, error)
    except HostDown as error:
        if not retry_later(work):
            _undo_build(move, host, error)
    except MagnetarError as error:
        if not isinstance(error, Cancelled):
            work.conductor.states.count_build(host, well=False)
        _undo_build(move, host, error)
    else:
        work.conductor.states.count_build(host, well=True)
        move.read_hosts()
        work.end_writes.append(lambda connection: consoles.remove_console_tokens(connection, work.id))
        move.end("done", **nics.observed_columns(ports, resource), vm_state=STOPPED if off else ACTIVE, host=host,
                 launched_at=utc_now())
        if move.former_owner:
            confirm_disks(work.conductor, host, work.id, move.id)


def _stop_on_source(move: Evacuation) -> None:
    """Stop the guest on the old host if its agent still answers, because a host that is forced down may still run the
    guest. Raises ``SourceUp`` if the guest cannot be stopped and could still write to a volume, or to disks that the
    new host takes over."""
    work = move.work
    if not _source_heard_lately(move):
        return
    try:
        stop_guest(work, move.source)
    except MagnetarError as error:
        volumes = volumes_behind_fence(work, move.source)
        if volumes or move.former_owner:
            where = f"volume {volumes[0]}" if volumes else "its disks"
            raise SourceUp(f"Host {move.source} answers, but has not stopped the server, which can still write to "
                           f"{where}: {error.message} Switch the host off, then repeat the evacuation.") from None
        log.warning("server %s may run on host %s still: %s", work.id, move.source, error.message)


def _source_heard_lately(move: Evacuation) -> bool:
    """Return whether the agent of the old host has sent a heartbeat recently. This is possible if the host was forced
    down while it works, or has returned."""
    database, silence = move.work.database, move.conductor.settings.host_down_after
    with database.read() as connection:
        return services.is_host_heard(database, connection, move.source, silence)


def _withdraw_volumes(work: RunningAction, source: str, host: str) -> None:
    """Remove the access of all hosts except *host* to the server's volumes. Also make *host* the storing host of the
    root volume, and of volumes that are stored on *source* or another host that is down. Only volumes in pools that
    *host* can reach are changed in this way. Raises ``HostDown`` while the host that stores a volume does not answer,
    ``Conflict`` for a volume that cannot leave the old host *source*."""
    peer, volumes = work.conductor.host(host).info.get("link_name"), work.conductor.services.volume
    access = volumes.homes.access_of_all([attachment["volume_id"] for attachment in work.volumes])
    for attachment in work.volumes:
        volume, key = access[attachment["volume_id"]], f"{work.id}:{attachment['volume_id']}"
        place, movable = volume.host, host in volume.hosts
        if place == source and not (movable and place != host):
            raise volume_lost(attachment["volume_id"], source)
        work.confirm_lease()
        if movable and (place == source or must_move(work, attachment, place, host)):
            volumes.disconnected(attachment["attachment_id"], work.confirm_lease)
            move_volume(work, attachment["volume_id"], host)
            continue
        with work.client(place) as client:
            try:
                export = client.get("volume_export", key)
            except NotFound:
                continue
            if place == host or export["peers"] != [peer]:
                client.delete("volume_export", key)
                work.conductor.services.volume.disconnected(attachment["attachment_id"], work.confirm_lease)


def volume_lost(id: str, host: str) -> Conflict:
    """Return the error that the volume *id* is unavailable because it is stored on the failed *host*."""
    return Conflict(f"Volume {id} of the server lies on host {host}, which is down: the server cannot be evacuated "
                    "with its data. Bring the host up.")


def _undo_build(move: Evacuation, host: str | None, error: MagnetarError) -> None:
    """Remove everything of the server from *host* after a failed build. Then try another host, if another attempt is
    allowed and *host* certainly has nothing of the server left."""
    work, certain = move.work, True
    if host:
        move.has_failed_on(host)
        work.conductor.delivery.forget(host)
        certain = _remove_from_host(work, host)
    last = isinstance(error, Cancelled) or refused_on_all_hosts(error) or bool(work.args.get("host")) or len(
        move.tried) >= work.conductor.settings.max_attempts
    if last or not certain:
        _fail(move, error, None if certain else host)
        return
    with move.api.write() as connection:
        allocations.release_consumer_claims(connection, work.id)
    work.conductor.read_host(str(host))
    work.put_back(0.0, host=None)


def _remove_from_host(work: RunningAction, host: str) -> bool:
    """Remove everything of the server from *host*. Return ``False`` if it is uncertain whether something is left."""
    work.confirm_lease()
    try:
        with work.client(host, PATIENCE) as client:
            migration.remove_server_from_host(client, work.id)
    except MagnetarError as error:
        log.warning("server %s: what is left of it on %s is removed when that host returns: %s", work.id, host,
                    error.message)
        return False
    return True


def _fail(move: Evacuation, error: MagnetarError, uncertain_host: str | None = None, **values: Any) -> None:
    """End the action as failed. The server stays on its old host and can be evacuated again. *values*: columns to save
    in the server's row. *uncertain_host*: a host that may run the server after a failed build; if it is given, the
    server is set to error."""
    work, id = move.work, str(uuid.uuid5(uuid.UUID(move.id), str(uncertain_host)))
    _give_volumes_back(move)
    work.conductor.services.network.stay(work.id, work.confirm_lease)
    move.unclaim()
    if uncertain_host:
        def noted(connection: Connection) -> None:
            migrations.insert_migration_row(connection, work.server, id, user_id=work.action.user_id,
                                            type=migrations.EVACUATION, status="done", source=uncertain_host)

        work.end_writes.append(noted)
        values["vm_state"] = ERROR
    elif _source_heard_lately(move):
        _start_again(move)
    move.end("failed" if move.tried else "error", error, **values)


def _give_volumes_back(move: Evacuation) -> None:
    """Give the old host access to the server's volumes again, so that the server works when the host returns. Volumes
    on a host that does not answer are skipped."""
    work = move.work
    row = work.conductor.states.rows.get(move.source)
    peer = row.info.get("link_name") if row else None
    if not move.tried or not peer:
        return
    for attachment in work.volumes:
        try:
            volumes = work.conductor.services.volume
            place = volumes.where(attachment["volume_id"])
            if place == move.source or volumes.homes.move_back(attachment["volume_id"], move.source,
                                                               work.confirm_lease):
                continue
            work.confirm_lease()
            with work.client(place, PATIENCE) as client:
                client.ensure("volume_export", f"{work.id}:{attachment['volume_id']}",
                              _export_document(work, attachment, peer))
        except MagnetarError as error:
            log.warning("server %s: its volume %s is not given back to host %s: %s", work.id, attachment["volume_id"],
                        move.source, error.message)


def _export_document(work: RunningAction, attachment: VolumeOfServer, peer: str) -> Document:
    volume = work.conductor.services.volume.show(work.context(), attachment["volume_id"]) or {}
    return {"server": work.id, "server_name": work.server.hostname or work.server.name,
            "volume": attachment["volume_id"], "peers": [peer], "readonly": bool(volume.get("readonly"))}


def _start_again(move: Evacuation) -> None:
    """Start the guest on the old host if it was running before and this host answers again."""
    work = move.work
    try:
        with work.client(move.source, PATIENCE) as client:
            client.get("server", work.id)
            client.ensure("server", work.id, {"power": RUNNING} if move.row.old_vm_state == ACTIVE else {})
    except MagnetarError as error:
        log.warning("server %s does not start again on host %s: %s", work.id, move.source, error.message)
