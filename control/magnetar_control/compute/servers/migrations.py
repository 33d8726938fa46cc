# SPDX-License-Identifier: GPL-3.0-or-later
"""Migrations of servers: all of them, and the live migrations of one server that go on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import orjson
from sqlalchemy import select

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.compute.target import Target, check_unlocked, note_done, of_server
from magnetar_control.store.engine.tables import flavors
from magnetar_control.store.servers import migrations, servers
from magnetar_core.errors import Conflict, InvalidRequest, NotFound

ALL = "os_compute_api:os-migrations:"
OWN = "os_compute_api:servers:migrations:"
INDEX = f"{ALL}index"
#: Who reads the names of hosts, in all migrations and in those of a server.
HOSTS_OF_ALL, HOSTS_OF_ONE = f"{INDEX}:host", f"{OWN}index:host"
#: Statuses in which a live migration can be aborted; where queued ones cannot be, only in the first.
ABORTABLE = ("running", "queued", "preparing")
Row = migrations.Found


@use_case(INDEX)
def page(caller: Caller, equal: Mapping[str, str], host: str | None = None, since: str | None = None,
         before: str | None = None, *, limit: int, newest: bool = True, marker: str | None = None,
         hidden: bool = False) -> tuple[Sequence[Row], bool]:
    """The rows of migrations, and whether there are more: of all projects for admins, of the caller's for others.
    *equal*: column to value. *host*: source or destination. *newest*: first. *marker*: a uuid. *hidden*: those that are
    hidden, which none is here. Raises ``Forbidden``, ``InvalidRequest``."""
    if since and before and since > before:
        raise InvalidRequest("The value of changes-since must be less than or equal to changes-before.")
    asked = dict(equal)
    if not caller.allows(f"{INDEX}:all_projects") and (
            asked.setdefault("project_id", caller.project) != caller.project):
        return (), False
    if hidden:
        return (), False
    try:
        return migrations.listed(caller.cloud.store, asked, host, since, before, newest=newest, limit=limit,
                                 marker=marker)
    except KeyError:
        raise InvalidRequest(f"Marker {str(marker)[:255]} not found.") from None


def names_of_servers(caller: Caller, rows: Iterable[Row]) -> Mapping[str, str]:
    """Names of the servers of migrations by their uuids, also of deleted ones; one query of each cell."""
    ids, found = {row.server_id for row in rows}, {}
    for _cell, database in caller.cloud.store.databases():
        with database.read() as connection:
            found.update({id: row.name for id, row in servers.rows(connection, ids).items()})
    return found


def flavor_numbers(caller: Caller, rows: Iterable[Row]) -> Mapping[str, int]:
    """Flavor id to Nova's integer id of it, for the flavors of migrations; one query."""
    ids = {flavor_of(text) for row in rows for text in (row.old_flavor, row.new_flavor)}
    with caller.cloud.store.api.read() as connection:
        found = connection.execute(select(flavors.c.id, flavors.c.number).where(flavors.c.id.in_(ids))).all()
    return {row.id: row.number for row in found}


def flavor_of(text: str | None) -> str:
    """The id of a flavor that a migration keeps as JSON *text*; empty for none."""
    return str(orjson.loads(text)["id"]) if text else ""


@of_server(rule=f"{OWN}index")
def of_one(_caller: Caller, target: Target) -> Sequence[Row]:
    """The live migrations of a server that go on."""
    with target.database.read() as connection:
        return migrations.open_ones(connection, target.row.id, migrations.LIVE)


@of_server(rule=f"{OWN}show")
def show(_caller: Caller, target: Target, number: str) -> Row:
    """A live migration that goes on. Raises ``NotFound``."""
    row = _migration(target, number)
    about = f"Migration {row.id} for server {target.row.id}"
    if row.type != migrations.LIVE:
        raise NotFound(f"{about} is not live-migration.")
    if row.status in migrations.ENDED:
        raise NotFound(f"{about} is not in progress.")
    return row


def _migration(target: Target, number: str) -> Row:
    row = None
    if number.isascii() and number.isdigit() and len(number) < 10:
        with target.database.read() as connection:
            row = migrations.of_server(connection, target.row.id, int(number))
    if row is None:
        raise NotFound(f"Migration {number[:40]} not found for instance {target.row.id}")
    return row


@of_server(rule=f"{OWN}delete")
def abort(caller: Caller, target: Target, number: str, *, queued: bool = True) -> None:
    """The server stays where it is. One that waits in the queue ends at once; without *queued* it is refused."""
    _check_migrating(caller, target, "abort live migration")
    _ask(caller, target, number, migrations.ABORT, ABORTABLE if queued else ABORTABLE[:1])


@of_server(rule=f"{OWN}force_complete")
def force_complete(caller: Caller, target: Target, number: str) -> None:
    """The guest stands still until it is there."""
    _check_migrating(caller, target, "force_complete")
    _ask(caller, target, number, migrations.FORCE, ABORTABLE[:1])


def _check_migrating(caller: Caller, target: Target, what: str) -> None:
    """Raises ``Conflict`` unless the server is being migrated live, and not locked."""
    server = target.row
    check_unlocked(caller, server)
    if server.task_state != "migrating":
        raise Conflict(f"Cannot '{what}' instance {server.id} while it is in task_state {server.task_state}")


#: The row of ``ACTIONS`` under which each wish is noted.
KEYS = {migrations.ABORT: "live_migration_cancel", migrations.FORCE: "live_migration_force_complete"}


def _ask(caller: Caller, target: Target, number: str, wish: str, states: tuple[str, ...]) -> None:
    """Note what is asked, with its instance action; again when the migration went on meanwhile."""
    server, done = target.row, False
    while not done:
        row = _migration(target, number)
        if row.type != migrations.LIVE or row.status not in states:
            raise InvalidRequest(f"Migration {row.id} state of instance {server.id} is {row.status}. Cannot {wish} "
                                 "while the migration is in this state.")
        with target.database.write() as connection:
            dropped = row.status == "queued" and migrations.drop(connection, row)
            done = dropped or migrations.change(connection, row.uuid, row.status, asked=wish)
            if done:
                note_done(caller, target, connection, KEYS[wish])
                target.database.ring(connection, servers.SERVERS_BELL)
