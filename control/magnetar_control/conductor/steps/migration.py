# SPDX-License-Identifier: GPL-3.0-or-later
"""A migration (live, cold, resize) in a flow: its row, its claims, and the move of the server between two agents.

The row is written with the action, and the target is saved before anything is done there, so a flow that runs again
continues where it was. The agents' flow decides which host has the server (docs/migration.md).
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, Self

import orjson

from magnetar_control.conductor.worker.work import HostDown, Work, admin_message, full_is_down, leased
from magnetar_control.scheduler.choose import NoValidHost
from magnetar_control.scheduler.place import place
from magnetar_control.scheduler.request_spec import devices_of
from magnetar_control.store.claims import allocations
from magnetar_control.store.servers import consoles, migrations, servers
from magnetar_core.errors import Conflict, MagnetarError
from magnetar_core.flows import migrate

from . import cross_cell, live_policy, nics, tpm_secrets
from .migration_halves import MigrationMonitor
from .schedule import RANDOM, spec_of

log = logging.getLogger(__name__)


class NotMoved(Exception):
    """The server is certainly on the source, with its guest off after a cold move. *cause*: why. *flavor*: its flavor
    now, where that differs from before."""

    def __init__(self, cause: MagnetarError, flavor: dict[str, Any] | None = None) -> None:
        super().__init__(cause.message)
        self.cause, self.flavor = cause, flavor


def _column(name: str, read: Callable[[Any], Any] = str) -> Any:
    """A property: a column of the migration's row."""
    return property(lambda move: read(getattr(move.row, name)))


class MigrationTask:
    """A row of ``migrations`` and the action that it belongs to."""

    id: str = _column("uuid")  # the uuid, which is the consumer of the claims on the source
    source: str = _column("source")  # name of the host, as ``target``
    target: str = _column("target")
    flavor: dict[str, Any] = _column("new_flavor", orjson.loads)  # the flavor that the server will have
    #: What a resize has the server be at the target: flavor and hardware in the agent's form; set by its flow.
    becomes: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, work: Work, row: Any) -> None:
        self.work, self.row, self.conductor = work, row, work.conductor
        self.api = leased(work.confirm_lease, work.conductor.store.api)

    @classmethod
    def begin(cls, work: Work, type: str, status: str, flavor: Mapping[str, Any]) -> Self:
        """The migration of an action; its row is written the first time. Other migrations of the server end in error:
        an operator's reset-state has allowed this one."""
        drawn = work.args.get("migration")
        with work.database.write() as connection:
            work.confirm_lease(connection)
            for row in migrations.open_ones(connection, work.id):
                if row.uuid != drawn:
                    migrations.change(connection, row.uuid, status="error")
            if drawn is None:
                drawn = migrations.begin(connection, work.action, work.args, work.server, type=type, status=status,
                                         new_flavor=servers.text(flavor))
            found = cls(work, migrations.find(connection, drawn))
        found._take_over_claims()
        if found.row.status == "queued":
            found.note(status=status)
        return found

    def _take_over_claims(self) -> None:
        """Claims of a migration that failed between two hosts: on the source this one's now, elsewhere released."""
        with self.api.read() as connection:
            if all(row["consumer_id"] in (self.id, self.work.id) for row in allocations.held(connection, self.work.id)):
                return
        with self.api.write() as connection:
            held = allocations.held(connection, self.work.id)
            own = any(row["consumer_id"] == self.work.id and row["host"] == self.source for row in held)
            for row in held:
                if row["consumer_id"] in (self.id, self.work.id):
                    continue
                if row["host"] == self.source and not own:
                    allocations.move(connection, row["consumer_id"], self.id, row["host_id"])
                allocations.release(connection, row["consumer_id"])

    def note(self, server: Mapping[str, Any] | None = None, **values: Any) -> None:
        """Set columns of the migration, and those of *server* in the same transaction."""
        if values.get("target") not in (None, self.row.target):
            self.work.notifications.selected(values["target"])
        with self.work.database.write() as connection:
            self.work.confirm_lease(connection)
            migrations.change(connection, self.id, **values)
            if server:
                servers.progress(connection, self.work.id, **server)
            if server and "host" in server:
                consoles.end(connection, self.work.id)
            self.work.database.ring(connection, servers.SERVERS_BELL)
            self.row = migrations.find(connection, self.id)
            self.work.notifications.write(connection, self.work.server)
        self.work.notifications.written()
        self.work.load()

    def note_host(self, host: str, server: Mapping[str, Any] | None = None, **values: Any) -> None:
        """As ``note``, when the server is on *host*: where that is in another cell, it leaves (``cross_cell``)."""
        where = cross_cell.departure(self.work, host)
        if len(where) > 1:
            self.work.flush()  # what waits for the next transaction: after this one nothing changes the row here
        self.note({**(server or {}), **where}, **values)

    def end(self, status: str, error: MagnetarError | None = None, **values: Any) -> None:
        """The action ends, failed where there is an *error*, and the migration in that status: in one transaction."""
        self.work.end_writes.append(lambda connection: migrations.change(connection, self.id, status=status))
        if error is None:
            self.work.done(**values)
        else:
            self.work.failed(error, **values)

    def prepare(self, kind: str, host: str | None = None, same: bool | None = False, forced: bool = False) -> None:
        """Find and claim a target that accepts the server, and save it. *kind*: live or cold. *host*: only this one;
        *forced*: whatever the scheduler thinks of it. *same*: whether the source is a candidate; ``None``: only when no
        other fits. Raises ``NoValidHost``, or the last refusal of the hosts that were tried."""
        most = self._most(kind)
        tried: set[str] = set()
        error: MagnetarError | None = None
        while True:
            try:
                self._claim(frozenset(tried), host, same, forced)
            except NoValidHost as none:
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
                    allocations.release(connection, self.work.id)
                self.conductor.read_host(self.target)
                if host or len(tried) >= most:
                    raise

    def _check_target(self, kind: str) -> None:
        """Raise what the target's agent refuses, before anything is done."""
        if self.target != self.source:
            self._plan(kind, self.source, self.target)
        elif self.becomes:
            with self.work.client(self.target) as client:
                client.ensure("server", self.work.id, dict(self.becomes), dry_run=True, allow_reboot=True)

    def _most(self, kind: str) -> float:
        """How many hosts may be asked."""
        settings = self.conductor.settings
        if kind != "live":
            return settings.max_attempts
        return math.inf if settings.migrate_max_retries < 0 else settings.migrate_max_retries + 1

    def wish(self, kind: str, there: str) -> dict[str, Any]:
        """What the agents are asked for: the type, how a live migration is steered, what a resize makes of the server,
        and of which cards its virtual functions are *there*."""
        work, cards = self.work, nics.claimed_cards(self.work, there, self.work.nics)
        asked: dict[str, Any] = {"type": kind, **({"cards": cards} if cards else {})}
        if kind != "live":
            return {**asked, **({"becomes": self.becomes} if self.becomes else {})}
        backed = any(one.get("boot_index") == 0 for one in work.volumes)
        return {**asked, **live_policy.options(self.conductor.settings, work.flavor, backed, bool(work.volumes))}

    def _claim(self, tried: frozenset[str], host: str | None, same: bool | None, forced: bool) -> None:
        api, work, source = self.api, self.work, self.conductor.host(self.source)["id"]

        def once() -> list[str]:
            with api.write() as connection:
                allocations.move(connection, work.id, self.id, source)
                return [row["host"] for row in allocations.held(connection, work.id) if row["consumer_id"] == work.id]

        held = api.retried(once)
        found = held[0] if held else self._placed(tried, host, same, forced)
        self.note(target=found)
        self.conductor.read_host(found)

    def _placed(self, tried: frozenset[str], host: str | None, same: bool | None, forced: bool) -> str:
        rounds = [(host, tried if same else tried | {self.source})]
        if same is None and host is None:
            rounds.append((self.source, tried))
        why, own = [], self.conductor.cell.id
        cells = {"near_cell": own} if self.work.args.get("cross_cell") else {"cell_id": own}
        has = {self.source: devices_of(self.work.flavor, self.work.nics)}
        for only, ignored in rounds:
            # Volumes stay where they are, and the agents connect them remotely: any host will do.
            request = spec_of(self.work, flavor=self.flavor, host=only, ignored=ignored, volume_hosts=None,
                              has_devices=has, **cells)
            try:
                request = request.forced_to() if forced else request
                return place(self.api, self.conductor.states, request, map_cell=False, random=RANDOM).host
            except NoValidHost as error:
                log.info("server %s: %s", self.work.id, admin_message(error))
                why.append(error.explanation)
        raise NoValidHost(explanation=" ".join(why))

    def unclaim(self) -> None:
        """The server has its claims on the source again, and no others."""
        with self.api.write() as connection:
            allocations.revert(connection, self.work.id, self.id)
        self.read_hosts()

    def release(self) -> None:
        """Release the claims on the source."""
        with self.api.write() as connection:
            allocations.release(connection, self.id)
        self.read_hosts()

    def read_hosts(self) -> None:
        """Read source and target again for the scheduler: their claims have changed."""
        for name in {self.row.source, self.row.target} - {None}:
            self.conductor.read_host(name)

    def sides(self, here: str, there: str) -> AbstractContextManager[tuple[migrate.Side, migrate.Side]]:
        """The agents of two hosts. Raises ``HostDown``."""
        return self.work.sides(here, there, f"{here} or {there}")

    def _plan(self, kind: str, here: str, there: str) -> None:
        """Bring the networks to the target, and raise what one of the agents would refuse."""
        with self.sides(here, there) as (source, target):
            nics.networks(self.work, target.client, there, self.conductor.services.network.ports(self.work.id))
            migrate.Migrate(source, target, self.work.id, self.wish(kind, there)).plan()

    def accepts(self, here: str, there: str) -> bool:
        """Whether *there* accepts the server for a cold move."""
        try:
            self._plan("cold", here, there)
        except MagnetarError as error:
            log.info("server %s cannot go from %s to %s: %s", self.work.id, here, there, error.message)
            self.conductor.delivery.forget(there)
            return False
        return True

    def move_server(self, kind: str, here: str, there: str) -> None:
        """Move the server to *there*. Raises ``NotMoved`` when it is certainly *here*, ``HostDown`` when unknown."""
        services, work = self.conductor.services, self.work  # which are told the new host
        try:
            services.network.prepare(work.id, there, work.confirm_lease, running=kind == "live")
            self._run_flow(kind, here, there)
        except HostDown:
            raise
        except MagnetarError as error:
            self._back_or_on(kind, here, there, error)
        services.network.bind(work.id, there, work.confirm_lease, nics.devices_on(work, there))
        for one in work.volumes:
            if one.get("attachment_id"):
                services.volume.attached(one["attachment_id"], there, one.get("device") or "", work.confirm_lease)

    def _back_or_on(self, kind: str, here: str, there: str, error: MagnetarError) -> None:
        """A move has failed with *error*. Raises as ``move_server`` does."""
        with full_is_down():
            if self.abort(here, there):
                raise NotMoved(error) from error
            self._run_flow(kind, here, there)  # it has left: only going on is possible

    def _run_flow(self, kind: str, here: str, there: str) -> None:
        work = self.work
        with self.sides(here, there) as (source, target), MigrationMonitor(work, self.id, here):
            wish = self.wish(kind, there)
            limit = live_policy.patience(work.conductor.settings, wish) if kind == "live" else None
            flow = migrate.Migrate(source, target, work.id, wish, timeout=limit,
                                   id=str(uuid.uuid5(uuid.UUID(self.id), f"{here} {there}")))
            for step in flow.steps():
                work.confirm_lease()
                log.info("server %s: %s", work.id, step.text, extra={"request_id": work.action.request_id})

    def abort(self, here: str, there: str) -> bool:
        """Abort the move: the server stays *here*. ``False`` when it has left already."""
        self.work.confirm_lease()
        with self.sides(here, there) as (source, target):
            try:
                migrate.abort(source, target, self.work.id)
            except Conflict:
                return False
            stays = source.find(self.work.id) is not None
        if stays:  # and no more may be there
            self.conductor.services.network.bind(self.work.id, here, self.work.confirm_lease,
                                                 nics.devices_on(self.work, here))
        return stays

    def ensure_on(self, host: str, want: Mapping[str, Any]) -> dict[str, Any]:
        """Have the server on a host as *want* says; it may be restarted for that. Returns the agent's resource."""
        self.work.confirm_lease()
        with self.work.client(host) as client, self.work.guest(client) as watch:
            wish = {**want, **tpm_secrets.given(self.work, want.get("hardware"))}
            found: dict[str, Any] = client.ensure("server", self.work.id, wish, allow_reboot=True,
                                                  progress=watch)["resource"]
        return found
