# SPDX-License-Identifier: GPL-3.0-or-later
"""The flow of ``evacuate``: build a server of a dead host anew on another one, from its image or its root volume.

Statuses of its migration: ``accepted``; ``pre-migrating`` from the moment that its old host has lost it, which is
decided in one transaction against the heartbeats of that host; ``done`` when it is on the new host. Then it keeps the
claims of the old host until what is left there is removed (``host_return``), and is ``completed``. docs/evacuate.md has
the rules.

A host on which a build fails is noted before anything is taken back there. Where it cannot be told to remove the
server, it gets a migration of its own that is ``done``: when it returns, what it has of the server is removed.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson
from sqlalchemy import Connection

from magnetar_control.agents import PATIENCE
from magnetar_control.conductor.steps import migration_halves, nics
from magnetar_control.conductor.steps.migration import MigrationTask
from magnetar_control.conductor.steps.schedule import RANDOM, spec_of
from magnetar_control.conductor.worker.retry import retry
from magnetar_control.conductor.worker.work import HostDown, Work, admin_message
from magnetar_control.scheduler.choose import NoValidHost
from magnetar_control.scheduler.place import place
from magnetar_control.services import Document
from magnetar_control.store.actions import actions, evacuations
from magnetar_control.store.claims import allocations
from magnetar_control.store.engine.database import now
from magnetar_control.store.hosts import hosts, services
from magnetar_control.store.servers import consoles, migrations, servers
from magnetar_core.errors import Cancelled, Conflict, MagnetarError, NotFound
from magnetar_core.power import ACTIVE, ERROR, OFF, REBUILD, RUNNING, STOPPED

from .server_create import for_all_hosts, make
from .server_power import stop_guest

log = logging.getLogger(__name__)


class SourceUp(Conflict):
    """The compute service of the server's host is still in use."""


class Evacuation(MigrationTask):
    """The migration of an evacuation."""

    @property
    def tried(self) -> list[str]:
        """Hosts that have failed."""
        found: list[str] = self.work.args.get("tried", [])
        return found

    def claimed(self) -> list[str]:
        """Hosts other than the old one of which the server holds something."""
        with self.api.read() as connection:
            return [row["host"] for row in allocations.held(connection, self.work.id)
                    if row["consumer_id"] == self.work.id and row["host"] != self.source]

    def choose(self) -> str:
        """Claim a host for the server, and have the migration hold the old one; returns its name."""
        self._claim(frozenset(self.tried), self.work.args.get("host"), same=False, forced=bool(
            self.work.args.get("forced")))
        return self.target

    def _placed(self, tried: frozenset[str], host: str | None, same: bool | None, forced: bool) -> str:
        """*same*: not used; the old host is never one."""
        work, volumes = self.work, self.conductor.services.volume
        root = next((one for one in work.volumes if one["boot_index"] == 0), None)
        only = None if root is None else frozenset([volumes.where(root["volume_id"])])
        spec = spec_of(work, host=host, ignored=tried | {self.source}, cell_id=self.conductor.cell.id,
                       volume_hosts=only)
        if forced:
            spec = replace(spec.forced_to(), volume_hosts=only)
        return place(self.api, self.conductor.states, spec, map_cell=False, random=RANDOM).host

    def decide(self) -> None:
        """From here on the old host has lost the server. Raises ``SourceUp`` when it is up (again)."""
        silence = self.conductor.settings.host_down_after
        with self.conductor.store.api.read() as connection:
            row = hosts.show(connection, self.source)
        with self.work.database.write() as connection:
            self.work.confirm_lease(connection)
            up = services.heard_lately(self.work.database, connection, self.source, silence, lock=True)
            if up and not (row is None or row["forced_down"]):
                raise SourceUp(f"Compute service of {self.source} is still in use.")
            migrations.change(connection, self.id, status=migrations.LOST)
            self.row = migrations.find(connection, self.id)

    def has_failed_on(self, host: str) -> None:
        """Note it: the server is not built there by this action any more."""
        work = self.work
        if host in self.tried:
            return
        work.args["tried"] = [*self.tried, host]
        with work.write() as connection:
            work.confirm_lease(connection)
            evacuations.note(connection, work.action.id, args=servers.text(work.args))
            migrations.change(connection, self.id, status="accepted")
            self.row = migrations.find(connection, self.id)


def evacuate(work: Work) -> None:
    """``args``: migration; host, if one is named; whether it is forced, without the scheduler; whether the server stays
    stopped. Each host is a turn of its own in the queue, for its limit of builds."""
    move = Evacuation.begin(work, migrations.EVACUATION, "accepted", work.flavor)
    held = move.claimed()
    host = next((name for name in held if name not in move.tried), None)
    if work.action.cancel:
        _not_on(move, host, Cancelled("The server was deleted, or its state was reset, before it was evacuated."))
    elif failed := [name for name in held if name in move.tried]:  # a conductor died while it took that back
        _not_on(move, failed[0], Conflict(f"The build on host {failed[0]} has failed."))
    elif host is None:
        _choose(move)
    elif host != work.action.host or host != move.row.target:
        move.note(target=host)  # a conductor may have died after it had claimed it
        work.put_back(0.0, host=host)
    else:
        _build_on(move, host)


def _choose(move: Evacuation) -> None:
    """Claim a host; the action goes on there. Where the scheduler finds none the server is in error, on its old
    host, until it is evacuated again (Nova's functional test ``test_evacuate_no_valid_host``); a host that is forced
    and has no room leaves it as it was (Nova's ``_allocate_for_evacuate_dest_host``)."""
    work, began = move.work, now()
    try:
        host = move.choose()
    except NoValidHost as none:
        if work.conductor.settling():
            work.put_back(1.0)
            return
        why = admin_message(none)
        work.end_writes.append(lambda connection: actions.happened(
            connection, work.action.id, work.rule.event, work.conductor.name, began, "Error", why))
        _fail(move, none, **({} if work.args.get("forced") else {"vm_state": ERROR}))
    except MagnetarError as error:  # its root volume is gone
        _fail(move, error)
    else:
        work.put_back(0.0, host=host)


def _build_on(move: Evacuation, host: str) -> None:
    work = move.work
    off = work.args.get("stopped") or move.row.old_vm_state == STOPPED
    try:
        if move.row.status == "accepted":
            move.decide()
        with work.event("compute_rebuild_instance", host, {"task_state": REBUILD[1 if work.volumes else -1]}):
            _stop_where_it_was(move)
            if work.volumes:
                _withdraw_volumes(work, move.source, host)
                work.note(task_state=REBUILD[-1])
            ports = nics.current(work)
            resource = make(work, host, ports, OFF if off else RUNNING)
    except SourceUp as error:  # nothing was begun on the new one
        _fail(move, error)
    except HostDown as error:
        if not retry(work):
            _not_on(move, host, error)
    except MagnetarError as error:
        if not isinstance(error, Cancelled):
            work.conductor.states.built(host, well=False)
        _not_on(move, host, error)
    else:
        work.conductor.states.built(host, well=True)
        move.read_hosts()
        work.end_writes.append(lambda connection: consoles.end(connection, work.id))
        move.end("done", **nics.observed(ports, resource), vm_state=STOPPED if off else ACTIVE, host=host,
                 launched_at=now())


def _stop_where_it_was(move: Evacuation) -> None:
    """A host that is forced down may run the guest still, and its agent answer."""
    work = move.work
    if not _heard(move):
        return
    try:
        stop_guest(work, move.source)
    except MagnetarError as error:
        log.warning("server %s may run on host %s still: %s", work.id, move.source, error.message)


def _heard(move: Evacuation) -> bool:
    """Whether the agent of the old host was heard lately: it is forced down, or has returned."""
    database, silence = move.work.database, move.conductor.settings.host_down_after
    with database.read() as connection:
        return services.heard_lately(database, connection, move.source, silence)


def _withdraw_volumes(work: Work, source: str, host: str) -> None:
    """Nobody but *host* may use the server's volumes any more; what it has connected already stays. Raises ``HostDown``
    while the host of a volume does not answer, ``Conflict`` for a volume that lies on the old host."""
    peer = orjson.loads(work.conductor.host(host)["info"]).get("link_name")
    for entry in work.volumes:
        place, key = work.conductor.services.volume.where(entry["volume_id"]), f"{work.id}:{entry['volume_id']}"
        if place == source:
            raise volume_lost(entry["volume_id"], source)
        work.confirm_lease()
        with work.client(place) as client:
            try:
                export = client.get("volume_export", key)
            except NotFound:
                continue
            if place == host or export["peers"] != [peer]:
                client.delete("volume_export", key)
                work.conductor.services.volume.disconnected(entry["attachment_id"], work.confirm_lease)


def volume_lost(id: str, host: str) -> Conflict:
    """The volume *id* lies on the dead *host*."""
    return Conflict(f"Volume {id} of the server lies on host {host}, which is down: the server cannot be evacuated "
                    "with its data. Bring the host up.")


def _not_on(move: Evacuation, host: str | None, error: MagnetarError) -> None:
    """It could not be built on *host*: take back what there is. Another host is tried, if there may be one, and it is
    certain that this one has nothing of the server."""
    work, certain = move.work, True
    if host:
        move.has_failed_on(host)
        work.conductor.delivery.forget(host)
        certain = _removed(work, host)
    last = isinstance(error, Cancelled) or for_all_hosts(error) or bool(work.args.get("host")) or len(
        move.tried) >= work.conductor.settings.max_attempts
    if last or not certain:
        _fail(move, error, None if certain else host)
        return
    with move.api.write() as connection:
        allocations.release(connection, work.id)
    work.conductor.read_host(str(host))
    work.put_back(0.0, host=None)


def _removed(work: Work, host: str) -> bool:
    """Remove what there is of the server on a host; ``False`` where that is not certain."""
    work.confirm_lease()
    try:
        with work.client(host, PATIENCE) as client:
            migration_halves.remove(client, work.id)
    except MagnetarError as error:
        log.warning("server %s: what is left of it on %s is removed when that host returns: %s", work.id, host,
                    error.message)
        return False
    return True


def _fail(move: Evacuation, error: MagnetarError, left: str | None = None, **values: Any) -> None:
    """The action has failed: the server is on its old host as before but for *values* of its row, and may be evacuated
    again. *left*: a host that may run it, for which it is in error."""
    work, id = move.work, str(uuid.uuid5(uuid.UUID(move.id), str(left)))
    _give_volumes_back(move)
    work.conductor.services.network.stay(work.id, work.confirm_lease)
    move.unclaim()
    if left:
        def noted(connection: Connection) -> None:
            migrations.make(connection, work.server, id, user_id=work.action.user_id, type=migrations.EVACUATION,
                            status="done", source=left)

        work.end_writes.append(noted)
        values["vm_state"] = ERROR
    elif _heard(move):
        _start_again(move)
    move.end("failed" if move.tried else "error", error, **values)


def _give_volumes_back(move: Evacuation) -> None:
    """Let the old host use the volumes again, for its return; one whose host does not answer now is not given back."""
    work = move.work
    row = work.conductor.states.rows.get(move.source)
    peer = orjson.loads(row["info"]).get("link_name") if row else None
    if not move.tried or not peer:
        return
    for entry in work.volumes:
        try:
            place = work.conductor.services.volume.where(entry["volume_id"])
            if place == move.source:
                continue
            work.confirm_lease()
            with work.client(place, PATIENCE) as client:
                client.ensure("volume_export", f"{work.id}:{entry['volume_id']}", _leave(work, entry, peer))
        except MagnetarError as error:
            log.warning("server %s: its volume %s is not given back to host %s: %s", work.id, entry["volume_id"],
                        move.source, error.message)


def _leave(work: Work, entry: Mapping[str, Any], peer: str) -> Document:
    volume = work.conductor.services.volume.show(work.context(), entry["volume_id"]) or {}
    return {"server": work.id, "server_name": work.server.hostname or work.server.name, "volume": entry["volume_id"],
            "peers": [peer], "readonly": bool(volume.get("readonly"))}


def _start_again(move: Evacuation) -> None:
    """The old host has returned meanwhile: its guest runs again if it ran."""
    work = move.work
    try:
        with work.client(move.source, PATIENCE) as client:
            client.get("server", work.id)
            client.ensure("server", work.id, {"power": RUNNING} if move.row.old_vm_state == ACTIVE else {})
    except MagnetarError as error:
        log.warning("server %s does not start again on host %s: %s", work.id, move.source, error.message)
