# SPDX-License-Identifier: GPL-3.0-or-later
"""Migrations of servers: all of them, and the live migrations of one server that are in progress."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import select

from magnetar_control.compute.caller import Caller, use_case
from magnetar_control.compute.target import ServerTarget, check_unlocked, note_done_action, server_use_case
from magnetar_control.documents import FlavorOfServer
from magnetar_control.store.engine.tables import flavors
from magnetar_control.store.servers import migrations, servers
from magnetar_control.store.servers.migrations import MigrationRow
from magnetar_core.errors import Conflict, InvalidRequest, NotFound

ALL = "os_compute_api:os-migrations:"
OWN = "os_compute_api:servers:migrations:"
INDEX = f"{ALL}index"
#: Rules for reading the names of hosts, in all migrations and in the migrations of a server.
HOSTS_OF_ALL, HOSTS_OF_ONE = f"{INDEX}:host", f"{OWN}index:host"
#: Statuses in which a live migration can be aborted; only the first one when queued migrations cannot be aborted.
ABORTABLE = ("running", "queued", "preparing")


@use_case(INDEX)
def list_migrations(caller: Caller, equal: Mapping[str, str], host: str | None = None, since: str | None = None,
                    before: str | None = None, *, limit: int, newest: bool = True, marker: str | None = None,
                    hidden: bool = False) -> tuple[Sequence[MigrationRow], bool]:
    """Return (rows of migrations, whether more rows follow). Admins get the migrations of all projects, other callers
    get the migrations of their project.

    *equal*: required values by column. *host*: the source or the destination. *since*, *before*: earliest and latest
    time of a migration's last change. *newest*: sort the newest first. *marker*: the uuid of the last migration of the
    previous page. *hidden*: return only hidden migrations, which do not exist here, so the result is empty. Raises
    ``Forbidden``, ``InvalidRequest``.
    """
    if since and before and since > before:
        raise InvalidRequest("The value of changes-since must be less than or equal to changes-before.")
    conditions = dict(equal)
    if not caller.allows(f"{INDEX}:all_projects") and (
            conditions.setdefault("project_id", caller.project) != caller.project):
        return (), False
    if hidden:
        return (), False
    try:
        return migrations.fetch_migration_rows(caller.cloud.store, conditions, host, since, before, newest=newest,
                                               limit=limit, marker=marker)
    except KeyError:
        raise InvalidRequest(f"Marker {str(marker)[:255]} not found.") from None


def names_of_servers(caller: Caller, rows: Iterable[MigrationRow]) -> Mapping[str, str]:
    """Return the server names for the migrations *rows*, by the server's uuid. Deleted servers are included. Sends one
    query to each cell."""
    ids, names = {row.server_id for row in rows}, {}
    for _cell, database in caller.cloud.store.databases():
        with database.read() as connection:
            names.update({id: row.name for id, row in servers.fetch_server_rows(connection, ids).items()})
    return names


def flavor_numbers(caller: Caller, rows: Iterable[MigrationRow]) -> Mapping[str, int]:
    """Return the integer ids (Nova's database ids) of the flavors of the migrations *rows*, by flavor id. Sends one
    query."""
    ids = {flavor_id_of(flavor) for row in rows for flavor in (row.old_flavor, row.new_flavor)}
    with caller.cloud.store.api.read() as connection:
        flavor_rows = connection.execute(select(flavors.c.id, flavors.c.number).where(flavors.c.id.in_(ids))).all()
    return {row.id: row.number for row in flavor_rows}


def flavor_id_of(flavor: FlavorOfServer | None) -> str:
    """Return the id of a migration's *flavor*; "" when the migration has none."""
    return flavor["id"] if flavor else ""


@server_use_case(rule=f"{OWN}index")
def list_server_migrations(_caller: Caller, target: ServerTarget) -> Sequence[MigrationRow]:
    """Return the rows of the server's live migrations in progress."""
    with target.database.read() as connection:
        return migrations.fetch_open_migrations(connection, target.row.id, migrations.LIVE)


@server_use_case(rule=f"{OWN}show")
def show_server_migration(_caller: Caller, target: ServerTarget, number: str) -> MigrationRow:
    """Return the row of the server's live migration *number*, if it is in progress. Raises ``NotFound``."""
    row = _find_migration(target, number)
    about = f"Migration {row.id} for server {target.row.id}"
    if row.type != migrations.LIVE:
        raise NotFound(f"{about} is not live-migration.")
    if row.status in migrations.ENDED:
        raise NotFound(f"{about} is not in progress.")
    return row


def _find_migration(target: ServerTarget, number: str) -> MigrationRow:
    row = None
    if number.isascii() and number.isdigit() and len(number) < 10:
        with target.database.read() as connection:
            row = migrations.fetch_server_migration(connection, target.row.id, int(number))
    if row is None:
        raise NotFound(f"Migration {number[:40]} not found for instance {target.row.id}")
    return row


@server_use_case(rule=f"{OWN}delete")
def abort_live_migration(caller: Caller, target: ServerTarget, number: str, *, queued: bool = True) -> None:
    """Abort the live migration *number*; the server stays on its host. *queued*: also abort a migration that has not
    started; if false, such a migration is refused with ``InvalidRequest``."""
    _check_migrating(caller, target, "abort live migration")
    _request_outcome(caller, target, number, migrations.ABORT, ABORTABLE if queued else ABORTABLE[:1])


@server_use_case(rule=f"{OWN}force_complete")
def force_complete_migration(caller: Caller, target: ServerTarget, number: str) -> None:
    """Request that the guest of the live migration *number* is paused until its memory is transferred, so that the
    migration completes."""
    _check_migrating(caller, target, "force_complete")
    _request_outcome(caller, target, number, migrations.FORCE, ABORTABLE[:1])


def _check_migrating(caller: Caller, target: ServerTarget, action: str) -> None:
    """Raise ``Conflict`` unless the server is being migrated live and is unlocked. *action*: the name of the operation,
    for the error message."""
    server = target.row
    check_unlocked(caller, server)
    if server.task_state != "migrating":
        raise Conflict(f"Cannot '{action}' instance {server.id} while it is in task_state {server.task_state}")


#: The row of ``ACTIONS`` that records each wish.
KEYS = {migrations.ABORT: "live_migration_cancel", migrations.FORCE: "live_migration_force_complete"}


def _request_outcome(caller: Caller, target: ServerTarget, number: str, outcome: str, states: tuple[str, ...]) -> None:
    """Save the request to abort or force-complete (*outcome*) the migration *number*, and record it as an instance
    action. Raises ``InvalidRequest`` unless the migration's status is one of *states*. If the status changes during the
    call, check the new status and try to save again."""
    server, done = target.row, False
    while not done:
        row = _find_migration(target, number)
        if row.type != migrations.LIVE or row.status not in states:
            raise InvalidRequest(f"Migration {row.id} state of instance {server.id} is {row.status}. Cannot {outcome} "
                                 "while the migration is in this state.")
        with target.database.write() as connection:
            dropped = row.status == "queued" and migrations.cancel_queued_migration(connection, row)
            done = dropped or migrations.update_migration_row(connection, row.uuid, row.status, asked=outcome)
            if done:
                note_done_action(caller, target, connection, KEYS[outcome])
                target.database.notify(connection, servers.SERVERS_CHANGED)
