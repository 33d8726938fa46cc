# SPDX-License-Identifier: GPL-3.0-or-later
"""A migration (live, cold, resize) in a flow: its row, its claims, its options, the move of the server between two
agents, and a monitor of the move.

The row is written with the action, and the target is saved before anything is done there, so a flow that runs again
continues where it was. The agents' flow decides which host has the server (docs/explanation/migration.md)."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, Self

from sqlalchemy.exc import DBAPIError

from magnetar_control.conductor.worker.work import HostDown, RunningAction, admin_message, full_is_down, leased_database
from magnetar_control.documents import FlavorOfServer
from magnetar_control.scheduler.choose import NoValidHost
from magnetar_control.scheduler.place import place_server
from magnetar_control.scheduler.request_spec import MIB_PER_GIB, devices_of, needed_amounts
from magnetar_control.settings import Settings
from magnetar_control.store.claims import allocations
from magnetar_control.store.servers import consoles, migrations, servers
from magnetar_control.store.servers.migrations import MigrationRow
from magnetar_core.errors import Conflict, MagnetarError, NotFound
from magnetar_core.flows import migrate
from magnetar_core.flows.migrate import Side
from magnetar_core.http.client import Client

from . import cross_cell, keys, nics
from .schedule import RANDOM, spec_of
from .volume_homes import leave_dead_hosts

log = logging.getLogger(__name__)
#: Least size of a server in GiB, for the calculation of times.
LEAST_GIB = 2
#: Greatest ``time_limit`` and ``downtime_delay`` of agents, in seconds, and greatest downtime, in ms.
LONGEST_MIGRATION, LONGEST_DELAY, LONGEST_DOWNTIME = 604800, 86400, 60000
#: Seconds after the limit in which the agents end a migration by themselves.
MIGRATION_MARGIN = 600.0
#: Seconds between two polls, and between two writes of the progress.
POLL, SAVE = 0.2, 1.0


class NotMoved(Exception):
    """The error that a migration has failed and the server is certainly still on the source host. After a cold
    migration its guest is powered off. *cause*: the failure. *flavor*: the server's flavor now, if it has changed."""

    def __init__(self, cause: MagnetarError, flavor: FlavorOfServer | None = None) -> None:
        super().__init__(cause.message)
        self.cause, self.flavor = cause, flavor


class MigrationTask:
    """A migration (live, cold or resize) while its action runs. It updates the row in ``migrations``, claims the target
    host, and moves the server."""

    #: Fields of the server that a resize changes on the target: flavor and hardware in the agent's form; set by its
    #: flow.
    becomes: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, work: RunningAction, row: MigrationRow) -> None:
        self.work, self.row, self.conductor = work, row, work.conductor
        self.api = leased_database(work.confirm_lease, work.conductor.store.api)

    @property
    def id(self) -> str:
        """The migration's uuid. During the migration, the claims on the source host belong to this uuid instead of the
        server's."""
        return self.row.uuid

    @property
    def source(self) -> str:
        """The name of the source host."""
        return self.row.source

    @property
    def target(self) -> str:
        """The name of the target host."""
        return str(self.row.target)

    @property
    def flavor(self) -> FlavorOfServer:
        """The flavor that the server will have after the migration."""
        return self.row.new_flavor

    @classmethod
    def begin(cls, work: RunningAction, type: str, status: str, flavor: FlavorOfServer) -> Self:
        """Return the migration of the action *work*; at the first attempt, create the migration's row with this *type*,
        *status* and new *flavor*. Set other open migrations of the server to error. Such migrations remain if their
        action has ended and an operator has reset the server's state."""
        drawn = work.args.get("migration")
        with work.database.write() as connection:
            work.confirm_lease(connection)
            for row in migrations.fetch_open_migrations(connection, work.id):
                if row.uuid != drawn:
                    migrations.update_migration_row(connection, row.uuid, status="error")
            if drawn is None:
                drawn = migrations.insert_action_migration(connection, work.action, work.args, work.server, type=type,
                                                           status=status, new_flavor=servers.json_text(flavor))
            task = cls(work, migrations.reload_migration_row(connection, drawn))
        task._take_over_claims()
        if task.row.status == "queued":
            task.note(status=status)
        return task

    def _take_over_claims(self) -> None:
        """Clean up the claims of earlier migrations of the server that failed halfway. Transfer the claims of those
        migrations on the source host to this migration, and release their claims on other hosts."""
        with self.api.read() as connection:
            if all(claim.consumer_id in (self.id, self.work.id)
                   for claim in allocations.fetch_server_claims(connection, self.work.id)):
                return
        with self.api.write() as connection:
            claims = allocations.fetch_server_claims(connection, self.work.id)
            holds_source = any(claim.consumer_id == self.work.id and claim.host == self.source for claim in claims)
            for claim in claims:
                if claim.consumer_id in (self.id, self.work.id):
                    continue
                if claim.host == self.source and not holds_source:
                    allocations.move_claims_to_migration(connection, claim.consumer_id, self.id, claim.host_id)
                allocations.release_consumer_claims(connection, claim.consumer_id)

    def note(self, server: Mapping[str, Any] | None = None, **values: Any) -> None:
        """Set the columns *values* of the migration's row and the columns *server* of the server's row, in one
        transaction."""
        if values.get("target") not in (None, self.row.target):
            self.work.notifications.selected(values["target"])
        with self.work.database.write() as connection:
            self.work.confirm_lease(connection)
            migrations.update_migration_row(connection, self.id, **values)
            if server:
                servers.update_server_progress(connection, self.work.id, **server)
            if server and "host" in server:
                consoles.remove_console_tokens(connection, self.work.id)
            self.work.database.notify(connection, servers.SERVERS_CHANGED)
            self.row = migrations.reload_migration_row(connection, self.id)
            self.work.notifications.write(connection, self.work.server)
        self.work.notifications.written()
        self.work.load()

    def note_host(self, host: str, server: Mapping[str, Any] | None = None, **values: Any) -> None:
        """Save that the server is now on *host*. In the same transaction set the columns *values* of the migration's
        row and *server* of the server's row. If *host* is in another cell, also mark the server as leaving this cell,
        so that its rows are moved to the other cell's database later (see ``cross_cell``)."""
        where = cross_cell.host_and_cell_columns(self.work, host)
        if len(where) > 1:
            self.work.flush()  # do the deferred writes: after this transaction nothing changes the row here
        self.note({**(server or {}), **where}, **values)

    def end(self, status: str, error: MagnetarError | None = None, **values: Any) -> None:
        """End the action and set the migration's *status*, in one transaction. The action ends as failed if there is an
        *error*. *values*: columns to set in the server's row."""
        self.work.end_writes.append(lambda connection: migrations.update_migration_row(connection, self.id,
                                                                                       status=status))
        if error is None:
            self.work.done(**values)
        else:
            self.work.failed(error, **values)

    def prepare(self, kind: str, host: str | None = None, same: bool | None = False, forced: bool = False) -> None:
        """Find a target host that accepts the server, claim the server's resources there, and save the host's name.

        *kind*: live or cold. *host*: the only candidate; ``None`` for any host. *same*: whether the source host is a
        candidate; ``None``: only if no other host fits. *forced*: skip most of the scheduler's filters. Raises the
        error of the last host that refused the server. If no host was tried, raises ``NoValidHost``, or ``HostDown`` if
        a host that is down may return soon, or if ``Conductor.settling`` is true.
        """
        most = self._max_target_hosts(kind)
        leave_dead_hosts(self.work, self.source, [volume["volume_id"] for volume in self.work.volumes])
        tried: set[str] = set()
        error: MagnetarError | None = None
        while True:
            try:
                self._claim(frozenset(tried), host, same, forced)
            except NoValidHost as none:
                if error is None and self.conductor.settling():
                    raise HostDown("The conductor has started a moment ago and does not know yet which hosts are up."
                                   ) from None
                raise error or none from None
            try:
                self._check_target(kind)
                return
            except MagnetarError as refused:
                error = refused
                log.info("server %s cannot go to %s: %s", self.work.id, self.target, refused.message)
                self.conductor.delivery.forget(self.target)
                tried.add(self.target)
                with self.api.write() as connection:
                    allocations.release_consumer_claims(connection, self.work.id)
                self.conductor.read_host(self.target)
                if host or len(tried) >= most:
                    raise

    def _check_target(self, kind: str) -> None:
        """Check with the agents that the target accepts the server. This check changes nothing on the target, except
        that the server's networks are created there. Raises the error of an agent that refuses."""
        if self.target != self.source:
            self._plan(kind, self.source, self.target)
        elif self.becomes:
            with self.work.client(self.target) as client:
                client.ensure("server", self.work.id, dict(self.becomes), dry_run=True, allow_reboot=True)

    def _max_target_hosts(self, kind: str) -> float:
        """Return how many target hosts may be tried for a migration of *kind* (live or cold); ``math.inf`` for no
        limit."""
        settings = self.conductor.settings
        if kind != "live":
            return settings.max_attempts
        return math.inf if settings.migrate_max_retries < 0 else settings.migrate_max_retries + 1

    def migration_request(self, kind: str, target_host: str) -> dict[str, Any]:
        """Return the migration request for the agents: ``type``, the options of a live migration or the server's new
        fields after a resize (``becomes``), and ``cards``, the network cards on *target_host* for the server's virtual
        functions. *kind*: live or cold."""
        work, cards = self.work, nics.claimed_cards(self.work, target_host, self.work.nics)
        request: dict[str, Any] = {"type": kind, **({"cards": cards} if cards else {})}
        if kind != "live":
            return {**request, **({"becomes": self.becomes} if self.becomes else {})}
        backed = any(volume.get("boot_index") == 0 for volume in work.volumes)
        return {**request, **live_migration_options(self.conductor.settings, work.flavor, backed,
                                                                bool(work.volumes))}

    def _claim(self, tried: frozenset[str], host: str | None, same: bool | None, forced: bool) -> None:
        api, work, source = self.api, self.work, self.conductor.host(self.source).id

        def once() -> list[str]:
            with api.write() as connection:
                allocations.move_claims_to_migration(connection, work.id, self.id, source)
                return [claim.host for claim in allocations.fetch_server_claims(connection, work.id)
                        if claim.consumer_id == work.id]

        claimed_hosts = api.retried(once)
        target = claimed_hosts[0] if claimed_hosts else self._placed(tried, host, same, forced)
        self.note(target=target)
        self.conductor.read_host(target)

    def _placed(self, tried: frozenset[str], host: str | None, same: bool | None, forced: bool) -> str:
        rounds = [(host, tried if same else tried | {self.source})]
        if same is None and host is None:
            rounds.append((self.source, tried))
        why, own_cell, awaited = [], self.conductor.cell.id, False
        cells = {"near_cell": own_cell} if self.work.args.get("cross_cell") else {"cell_id": own_cell}
        has = {self.source: devices_of(self.work.flavor, self.work.nics)}
        # Volumes stay where they are. The agents connect those that the hosts do not open themselves.
        volume_hosts = self.conductor.services.volume.homes.hosts_for_moves({self.work.id: self.work.volumes})[
            self.work.id]
        for only, ignored in rounds:
            request = spec_of(self.work, flavor=self.flavor, keeps_reserve=True, host=only, ignored=ignored,
                              volume_hosts=volume_hosts, has_devices=has, **cells)
            try:
                request = request.forced_to() if forced else request
                return place_server(self.api, self.conductor.states, request, map_cell=False, random=RANDOM).host
            except NoValidHost as error:
                log.info("server %s: %s", self.work.id, admin_message(error))
                why.append(error.explanation)
                awaited = awaited or (not tried and self.conductor.awaits_host(request))
        if awaited:
            raise HostDown(f"No host takes the server now, and one that is down may be back soon. {' '.join(why)}")
        raise NoValidHost(explanation=" ".join(why))

    def unclaim(self) -> None:
        """Transfer the migration's claims on the source host back to the server, and release the server's claims on
        other hosts."""
        with self.api.write() as connection:
            allocations.revert_claims_to_server(connection, self.work.id, self.id)
        self.read_hosts()

    def release(self) -> None:
        """Release the migration's claims on the source host."""
        with self.api.write() as connection:
            allocations.release_consumer_claims(connection, self.id)
        self.read_hosts()

    def read_hosts(self) -> None:
        """Reload source and target host into the scheduler's memory, because their claims have changed."""
        for name in {self.row.source, self.row.target} - {None}:
            self.conductor.read_host(name)

    def sides(self, source_host: str, target_host: str) -> AbstractContextManager[tuple[migrate.Side, migrate.Side]]:
        """Return a context manager that yields the agents of *source_host* and *target_host*. Raises ``HostDown`` if an
        agent does not answer."""
        return self.work.sides(source_host, target_host, f"{source_host} or {target_host}")

    def _plan(self, kind: str, source_host: str, target_host: str) -> None:
        """Create the server's networks on the target host. Then let both agents check whether they can do the
        migration, without doing it. Raises the error of an agent that refuses."""
        with self.sides(source_host, target_host) as (source, target):
            nics.make_nic_networks(self.work, target.client, target_host,
                                   self.conductor.services.network.ports(self.work.id))
            migrate.Migrate(source, target, self.work.id, self.migration_request(kind, target_host)).plan()

    def accepts(self, source_host: str, target_host: str) -> bool:
        """Return whether *target_host* accepts the server for a cold migration."""
        try:
            self._plan("cold", source_host, target_host)
        except MagnetarError as error:
            log.info("server %s cannot go from %s to %s: %s", self.work.id, source_host, target_host, error.message)
            self.conductor.delivery.forget(target_host)
            return False
        return True

    def move_server(self, kind: str, source_host: str, target_host: str) -> None:
        """Move the server to *target_host*, then save the new host in the network and volume services. *kind*: live or
        cold. Raises ``NotMoved`` if the server is certainly still on *source_host*, and ``HostDown`` if it is unknown
        which host has the server."""
        services, work = self.conductor.services, self.work  # both services learn the new host
        try:
            services.network.prepare(work.id, target_host, work.confirm_lease, running=kind == "live")
            self._run_flow(kind, source_host, target_host)
        except HostDown:
            raise
        except MagnetarError as error:
            self._abort_or_complete(kind, source_host, target_host, error)
        services.network.bind(work.id, target_host, work.confirm_lease, nics.nic_devices_on_host(work, target_host))
        for volume in work.volumes:
            if volume.get("attachment_id"):
                services.volume.attached(volume["attachment_id"], target_host, volume.get("device") or "",
                                         work.confirm_lease)

    def _abort_or_complete(self, kind: str, source_host: str, target_host: str, error: MagnetarError) -> None:
        """Handle a migration that failed with *error*. Abort the migration and raise ``NotMoved``: the server is then
        on the source host. If the server has already left the source host, complete the migration instead, and raise
        the error of a step that fails. A full disk raises ``HostFull``, so that the action is repeated."""
        with full_is_down():
            if self.abort(source_host, target_host):
                raise NotMoved(error) from error
            self._run_flow(kind, source_host, target_host)  # it has left: only going on is possible

    def _run_flow(self, kind: str, source_host: str, target_host: str) -> None:
        work = self.work
        with self.sides(source_host, target_host) as (source, target), MigrationMonitor(work, self.id, source_host):
            request = self.migration_request(kind, target_host)
            limit = live_migration_patience(work.conductor.settings, request) if kind == "live" else None
            flow = migrate.Migrate(source, target, work.id, request, timeout=limit,
                                   id=str(uuid.uuid5(uuid.UUID(self.id), f"{source_host} {target_host}")))
            for step in flow.steps():
                work.confirm_lease()
                log.info("server %s: %s", work.id, step.text, extra={"request_id": work.action.request_id})

    def abort(self, source_host: str, target_host: str) -> bool:
        """Abort the migration, so that the server stays on *source_host*. Return ``False`` if the server has already
        left this host, which cannot be undone.
        """
        self.work.confirm_lease()
        with self.sides(source_host, target_host) as (source, target):
            try:
                migrate.abort_host_migration(source, target, self.work.id)
            except Conflict:
                return False
            stays = source.find(self.work.id) is not None
        if stays:  # the source may have lost it since
            self.conductor.services.network.bind(self.work.id, source_host, self.work.confirm_lease,
                                                 nics.nic_devices_on_host(self.work, source_host))
        return stays

    def ensure_on(self, host: str, want: Mapping[str, Any]) -> dict[str, Any]:
        """Let the agent of *host* change the server to the fields *want*, and restart the guest if necessary. Return
        the server as its agent reports it."""
        self.work.confirm_lease()
        with self.work.client(host) as client, self.work.guest(client) as watch:
            request = {**want, **keys.tpm_secret_field(self.work, want.get("hardware"))}
            resource: dict[str, Any] = client.ensure("server", self.work.id, request, allow_reboot=True,
                                                     progress=watch)["resource"]
        return resource


def size_in_gib(flavor: FlavorOfServer, volume_backed: bool) -> int:
    """Return how many GiB of memory and local disks are copied when a server of *flavor* moves. Time limits depend on
    this size."""
    amounts = needed_amounts(flavor, volume_backed)
    return max(LEAST_GIB, -(-amounts.memory_mb // MIB_PER_GIB) + amounts.disk_gb)


def live_migration_options(settings: Settings, flavor: FlavorOfServer, volume_backed: bool,
                           volumes: bool) -> dict[str, Any]:
    """Return the options of a live migration of a server with this *flavor*: the fields of the agents'
    ``kinds.Migration``. *volume_backed*: whether the server's root disk is a volume. *volumes*: whether the server has
    any volumes; then post-copy is off, because volumes can switch hosts only while the guest is paused."""
    size = size_in_gib(flavor, volume_backed)
    post_copy = settings.live_migration_permit_post_copy and not volumes
    limit = settings.live_migration_completion_timeout * size
    late = "abort" if settings.live_migration_timeout_action == "abort" else "post_copy" if post_copy else "pause"
    return {
        "max_downtime": min(settings.live_migration_downtime, LONGEST_DOWNTIME),
        "downtime_steps": settings.live_migration_downtime_steps,
        "downtime_delay": min(settings.live_migration_downtime_delay * size, LONGEST_DELAY),
        "bandwidth": settings.live_migration_bandwidth or None, "post_copy": post_copy,
        "auto_converge": settings.live_migration_permit_auto_converge, "on_time_limit": late,
        "time_limit": min(limit, LONGEST_MIGRATION) or None}


def live_migration_patience(settings: Settings, request: Mapping[str, Any]) -> float:
    """Return the client timeout, in seconds, for calls to the agents during a live migration: longer than the migration
    may take. *request*: the result of ``MigrationTask.migration_request``."""
    return max(settings.action_timeout, (request.get("time_limit") or LONGEST_MIGRATION) + MIGRATION_MARGIN)


class MigrationMonitor(threading.Thread):
    """A thread that saves the progress of a live migration. It also aborts the migration or forces its completion when
    a user requests this.

    Use ``with MigrationMonitor(work, migration_id, source_host):`` around the call that moves the server."""

    def __init__(self, work: RunningAction, id: str, host: str) -> None:
        super().__init__(name=f"monitor {id}", daemon=True)
        self.work, self.id, self.host = work, id, host
        self.over = threading.Event()
        self._forced = False
        self._saved: Any = None
        self._saved_at = 0.0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.over.set()
        self.join()

    def run(self) -> None:
        while not self.over.wait(POLL):
            try:
                self._poll()
            except (MagnetarError, DBAPIError) as error:
                log.info("migration %s: %s", self.id, error)

    def _poll(self) -> None:
        with self.work.database.read() as connection:
            request = migrations.fetch_migration_request(connection, self.id)
        if self.work.cancelled.is_set():
            request = migrations.ABORT
        if request is None and time.monotonic() - self._saved_at < SAVE:
            return
        with self.work.client(self.host) as client:
            migration = next((migration for migration in Side(client).open_migrations(self.work.id)
                              if migration["side"] == "source"), None)
            if migration is None:
                return
            if request == migrations.ABORT:
                _cancel(client, migration["id"])
            elif request == migrations.FORCE and not self._forced:
                client.event("migration", migration["id"], "force_complete")
                self._forced = True
            self._save_progress(migration["progress"])

    def _save_progress(self, progress: Any) -> None:
        self._saved_at = time.monotonic()
        if not progress or progress == self._saved:
            return
        self._saved = progress
        share = 100 * progress["done"] // progress["total"] if progress.get("total") else 0
        with self.work.database.write() as connection:
            migrations.update_migration_row(connection, self.id, progress=servers.json_text(progress))
            servers.update_server_row(connection, self.work.id, progress=max(0, min(100, share)))


def remove_server_from_host(client: Client, server: str) -> None:
    """Delete a server, and the data of its migrations, from the host of *client*. *server*: the uuid. The other hosts
    of these migrations are not called, since they may be down."""
    for migration in Side(client).open_migrations(server):
        _cancel(client, migration["id"])
        with contextlib.suppress(NotFound):  # it has gone meanwhile
            client.event("migration", migration["id"], "discard")
    client.delete("server", server)


def _cancel(client: Client, id: str) -> None:
    for operation in client.list("operations", kind="migration", key=id, status="running"):
        with contextlib.suppress(Conflict, NotFound):  # it has ended meanwhile
            client.cancel(operation["id"])
