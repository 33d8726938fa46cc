# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers: finding them in the cells' databases, and changing them in the same transaction as the action that causes
the change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from operator import itemgetter
from typing import Any, Final, NamedTuple

import orjson
from sqlalchemy import (
    Connection,
    Row,
    RowMapping,
    Update,
    bindparam,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.sql.expression import BindParameter

from magnetar_control.store.actions.action_row import ActionRow, StoppedAction
from magnetar_control.store.actions.stopped_actions import overtake_server_actions
from magnetar_control.store.engine.database import (
    Database,
    drop_null_columns,
    insert_if_absent,
    insert_if_absent_returning,
    insert_returning_rows,
    returning_rows,
    utc_now,
)
from magnetar_control.store.engine.prepared import PreparedQuery
from magnetar_control.store.engine.tables import actions, server_mappings, servers
from magnetar_control.store.scatter_gather import scatter_gather_cells
from magnetar_control.store.store import CELL0, Store
from magnetar_core.actions import ACTIONS, ANY
from magnetar_core.adoption import REFUSED_ACTIONS
from magnetar_core.hardware import merge
from magnetar_core.power import OFFLOADED, SOFT_DELETED

from . import consoles
from .filter_rows import insert_filter_rows, save_filter_rows
from .server_row import ServerRow

#: The value of ``shares`` of a server without shares.
NO_SHARES = "[]"
#: A part of the JSON text of ``request`` of every adopted server.
ADOPTED = '"adopted":'
#: The task_states of a server that is being deleted, soft-deleted, or built by its host.
DELETING, SOFT_DELETING, SPAWNING = "deleting", "soft-deleting", "spawning"
#: The task_states of a new server with volumes while its ports are created, and then its volumes.
NETWORKING, MAPPING = "networking", "block_device_mapping"
#: Statements, built once: building one takes longer than executing it.
_ID: BindParameter[str] = bindparam("id")
_AT: BindParameter[str] = bindparam("at")  # for updates, where no parameter may have the name of a column
_WHOLE = select(servers).where(servers.c.id == _ID)
_LOCKED = _WHOLE.with_for_update()
_ANY, _ALIVE = PreparedQuery(_WHOLE), PreparedQuery(_WHOLE.where(servers.c.deleted_at.is_(None)))
_MAPPED = select(server_mappings.c.cell_id).where(server_mappings.c.server_id == _ID)
_INSERT_SERVERS, _INSERT_ACTIONS = insert(servers), insert(actions)
_CHANGED = update(servers).where(servers.c.id == _AT, servers.c.leaving.is_(None))
#: Columns whose changes are reported to running guests, and the statement for such a change.
GUEST_COLUMNS = frozenset(("name", "hostname", "metadata", "security_groups"))
_GUEST_CHANGED = _CHANGED.values(guest_revision=servers.c.guest_revision + 1, guest_data_due=True)
#: The task_states of deletions, evacuations, and actions that overtake others. The end of another action does not
#: change them.
_COMING = {DELETING, SOFT_DELETING, *ACTIONS["evacuate"].tasks[:1]}.union(
    *(action.tasks for action in ACTIONS.values() if action.over))
_PROGRESSED = _CHANGED.values(task_state=case(
    (servers.c.task_state.in_(bindparam("kept", expanding=True)), servers.c.task_state), else_=bindparam("task")))
_IDS: BindParameter[Any] = bindparam("ids", expanding=True)
_EACH = select(servers).where(servers.c.id.in_(_IDS))
_ON_HOST = select(servers).where(servers.c.host == _AT, servers.c.deleted_at.is_(None)).order_by(
    servers.c.name, servers.c.id)
_STAMPS = select(
    servers.c.id, servers.c.updated_at, servers.c.vm_state, servers.c.task_state,
    select(func.max(actions.c.updated_at)).where(actions.c.server_id == servers.c.id).scalar_subquery()).where(
    servers.c.id.in_(_IDS), servers.c.deleted_at.is_(None))
#: Events are deleted with their actions (CASCADE).
_FORGET_ACTIONS = delete(actions).where(actions.c.server_id.in_(_IDS)).returning(actions)
_FORGET_SERVERS = delete(servers).where(servers.c.id.in_(_IDS)).returning(servers)
_CANCELLED = update(actions).where(actions.c.server_id == _AT, actions.c.state == "running").values(cancel=True)
#: Queued or running actions that are exclusive (``alone``).
_OTHERS = select(actions.c.id).where(
    actions.c.server_id == _AT, actions.c.action.in_([key for key, action in ACTIONS.items() if action.exclusive]),
    actions.c.state.in_(("queued", "running"))).limit(1)
#: Queued actions that overtake other ones.
_NEXT = select(actions.c.id).where(
    actions.c.server_id == _AT, actions.c.action.in_([key for key, action in ACTIONS.items() if action.over]),
    actions.c.state == "queued").limit(1)
#: The signal that conductors of a cell wait for, and the signal that a server has changed.
ACTIONS_CHANGED, SERVERS_CHANGED = "actions", "servers"
#: Columns that every lookup of a server needs: its owner, and whether it is in this cell.
NEEDED = frozenset(("id", "project_id", "user_id", "leaving"))
_DUE = update(servers).where(servers.c.id == bindparam("server"), servers.c.leaving.is_(None)).values(
    guest_revision=servers.c.guest_revision + 1, guest_data_due=True)
#: The key in a server's ``request`` with the owner of its TPM secret (``user`` or ``deployment``), if the key manager
#: may have such a secret. It stays while the server has a flavor without a TPM.
TPM_DRAWN: Final = "tpm_secret_drawn"


class Moved(Exception):
    """The error for a server that is moving to another cell, or has moved since it was looked up. The caller must look
    it up again."""


def json_text(document: Any) -> str:
    """Return the JSON text of a document, as the columns store it."""
    return orjson.dumps(document).decode()


def find_server_row(store: Store, id: str, *, deleted: bool = False,
                    columns: frozenset[str] | None = None) -> tuple[Database, ServerRow] | None:
    """Return (database, row) of the server; ``None`` when there is no such server.

    *deleted*: also find a deleted server. *columns*: read only these columns and the server's id and owner. Uses one
    query when the server was found in its cell before, otherwise two. While a server moves to another cell, its row in
    the source cell is used only if the target cell has none.
    """
    query = _ANY if deleted else _ALIVE if columns is None else live_server_query(columns)
    leaving = None
    for database in candidate_databases(store, id):
        with database.read() as connection:
            row = query.first(connection, {"id": id})
        if row is not None and row.leaving:
            leaving = database, ServerRow(row)
        elif row is not None:
            if not deleted:
                store.remember_database(id, database)
            return database, ServerRow(row)
    return leaving


def candidate_databases(store: Store, id: str) -> Iterable[Database]:
    """Yield the databases that may have the server, the most probable first: the database of the last lookup, the
    server's cell, and cell0. Finally yield the server's cell again, because the server may have moved there from cell0
    between two queries."""
    cached_database = store.known_database(id)
    if cached_database is not None:
        yield cached_database
    for last in (False, True):
        with store.api.read() as connection:
            cell = connection.execute(_MAPPED, {"id": id}).scalar()
        if cell is not None:
            yield store.cell(cell)
        if not last:
            yield store.cell0


def find_servers_named(store: Store, project_id: str, name: str) -> list[tuple[Database, ServerRow]]:
    """Return (database, row) for each server of a project with this name, except for soft-deleted ones.

    Queries cell0 first, then each cell. This misses no server, because a server is inserted into its cell before it is
    removed from cell0.
    """
    matches: list[tuple[Database, ServerRow]] = []
    for _cell, database in store.databases():
        with database.read() as connection:
            rows = connection.execute(select(servers).where(
                servers.c.project_id == project_id, servers.c.name == name, servers.c.deleted_at.is_(None),
                servers.c.vm_state != SOFT_DELETED).order_by(servers.c.created_at, servers.c.id)).all()
        matches.extend((database, ServerRow(row)) for row in rows)
    matches.sort(key=lambda pair: pair[1].leaving is None)  # the row in the target cell counts
    return list({row.id: (database, row) for database, row in matches}.values())


def find_server_rows(store: Store, ids: Collection[str]) -> dict[str, tuple[Database, ServerRow | None]]:
    """Return (database, row) of each existing server among *ids*, by uuid; the row is ``None`` when the database does
    not answer. Uses one query for each cell that has some of the servers."""
    with store.api.read() as connection:
        cells = dict(connection.execute(select(server_mappings.c.server_id, server_mappings.c.cell_id).where(
            server_mappings.c.server_id.in_(ids), ~server_mappings.c.deleted)).all())
    cell_ids = {*cells.values(), CELL0}
    databases = {cell.id: (cell, database) for cell, database in store.databases() if cell.id in cell_ids}
    rows_by_cell = scatter_gather_cells(list(databases.values()), lambda database: _alive(database, ids))
    located: dict[str, tuple[Database, ServerRow | None]] = {
        id: (databases[cell][1], None) for id, cell in cells.items() if cell in databases
        and rows_by_cell[cell] is None}
    rows = [(databases[cell][1], row) for cell in sorted(databases, key=lambda id: id != CELL0)
            for row in rows_by_cell[cell] or ()]
    rows.sort(key=lambda pair: pair[1].leaving is None)  # a leaving row is older, and so is a moved row in cell0
    located.update({row.id: (database, row) for database, row in rows})
    return located


def _alive(database: Database, ids: Collection[str]) -> Sequence[ServerRow]:
    with database.read() as connection:
        return ServerRow.several(connection.execute(_EACH.where(servers.c.deleted_at.is_(None)), {"ids": list(ids)}))


def fetch_server_mapping(store: Store, id: str) -> Row[Any] | None:
    """Return the row of ``server_mappings`` with the cell and project of a server; ``None`` while the server is in
    cell0, because it has no host yet."""
    with store.api.read() as connection:
        return connection.execute(select(server_mappings).where(server_mappings.c.server_id == id)).one_or_none()


def fetch_server_row(connection: Connection, id: str, lock: bool = False) -> ServerRow | None:
    """Return the row of a server; ``None`` when there is none. *lock*: lock the row until the transaction ends."""
    return ServerRow.optional(connection.execute(_LOCKED if lock else _WHOLE, {"id": id}).one_or_none())


def fetch_server_rows(connection: Connection, ids: Collection[str]) -> dict[str, ServerRow]:
    """Return the rows of several servers, by uuid."""
    return {row.id: ServerRow(row) for row in connection.execute(_EACH, {"ids": list(ids)})}


def fetch_host_servers(connection: Connection, host: str) -> dict[str, ServerRow]:
    """Return the rows of the servers on a host by uuid, in the order of their names. Deleted servers are left out."""
    return {row.id: ServerRow(row) for row in connection.execute(_ON_HOST, {"at": host})}


def fetch_server_stamps(connection: Connection, ids: Collection[str]) -> dict[str, tuple[Any, ...]]:
    """Return, by server uuid, a tuple that changes whenever the server or one of its actions changes."""
    return {row.id: tuple(row) for row in connection.execute(_STAMPS, {"ids": list(ids)})}


def is_adopted_server(server: ServerRow) -> bool:
    """Return whether the server is a libvirt domain that another program has defined, and that was adopted."""
    return ADOPTED in server.stored.request and bool(server.request.get("adopted"))


def action_is_allowed(server: ServerRow, key: str) -> bool:
    """Return whether the server's vm_state and task_state allow the action *key*, such as ``resize``, now."""
    action = ACTIONS[key]
    if key in REFUSED_ACTIONS and is_adopted_server(server):
        return False
    ready = not action.placed or server.host is not None or server.vm_state == OFFLOADED
    return (action.states == ANY or server.vm_state in action.states) and (
        action.during(server.task_state)) and ready


def update_server_row(connection: Connection, id: str, **values: Any) -> None:
    """Set columns of a server; values of JSON columns must be JSON text. If the guest's metadata shows one of the
    columns (``GUEST_COLUMNS``), also record that a conductor must send new metadata to the guest. Raises ``Moved``."""
    statement = _CHANGED if GUEST_COLUMNS.isdisjoint(values) else _GUEST_CHANGED
    if not connection.execute(statement, {"at": id, "updated_at": utc_now(), **values}).rowcount:
        raise Moved
    save_filter_rows(connection, id, values)
    end_consoles(connection, id, values.get("vm_state"))


def end_consoles(connection: Connection, id: str, vm_state: str | None) -> None:
    """Remove a server's console tokens if its new *vm_state* allows no consoles, so that no old token works after the
    guest has stopped and started again. *vm_state*: ``None`` if it does not change."""
    if vm_state is not None and vm_state not in ACTIONS["remote_console"].states:
        consoles.remove_console_tokens(connection, id)


def update_list_column(connection: Connection, id: str, column: str,
                       change_: Callable[[list[Any]], list[Any]]) -> list[Any]:
    """Change a list of a server under a lock, and return the new list; empty when there is no such server. *column*:
    ``volumes``, ``interfaces`` or ``shares``. *change_*: receives the stored list and returns the new one."""
    server = fetch_server_row(connection, id, lock=True)
    if server is None:
        return []
    revised = change_(orjson.loads(getattr(server.stored, column)))
    update_server_row(connection, id, **{column: json_text(revised)})
    return revised


def update_server_progress(connection: Connection, id: str, own_states: tuple[str, ...] = (), **values: Any) -> None:
    """Set columns of a server for a running action. Does not change the task_state if a deletion, or an action that
    replaces the running one, has set it. *own_states*: the running action's task_states. *values*: by column; values of
    JSON columns must be JSON text."""
    connection.execute(*_progress(id, own_states, values))
    save_filter_rows(connection, id, values)
    end_consoles(connection, id, values.get("vm_state"))


def update_progress_returning(connection: Connection, id: str, own_states: tuple[str, ...] = (),
                              **values: Any) -> ServerRow | None:
    """Set columns of a server as ``update_server_progress`` does, and return the new row; ``None`` when there is no
    such server."""
    statement, parameters = _progress(id, own_states, values)
    end_consoles(connection, id, values.get("vm_state"))
    row = connection.execute(returning_rows(statement), parameters).one_or_none()
    if row is not None:
        save_filter_rows(connection, id, values)
    return ServerRow.optional(row)


@cache
def _reserved_states(own_states: tuple[str, ...]) -> list[str]:
    return sorted(_COMING.difference(own_states))


def _progress(id: str, own_states: tuple[str, ...], values: Mapping[str, Any]) -> tuple[Update, dict[str, Any]]:
    parameters = {"at": id, "updated_at": utc_now(), **values}
    if "task_state" not in values:
        return _CHANGED, parameters
    parameters.update(task=parameters.pop("task_state"), kept=_reserved_states(own_states))
    return _PROGRESSED, parameters


def overtaking_action_waits(connection: Connection, id: str) -> bool:
    """Return whether an action that replaces other actions of the server, such as a deletion, is queued. Locks the
    server's row, so that no such action is added before the transaction ends."""
    fetch_server_row(connection, id, lock=True)
    return connection.execute(_NEXT, {"at": id}).first() is not None


@cache
def _asking(key: str) -> Update:
    """Return the UPDATE statement for the server's row when the action *key*, such as ``resize``, is requested. The
    statement changes the row only if the server's states allow the action. Cached for each action."""
    action, free = ACTIONS[key], servers.c.task_state.is_(None)
    asking = _CHANGED.where(servers.c.vm_state.in_(bindparam("states", expanding=True)), servers.c.deleted_at.is_(None))
    if not action.busy:
        asking = asking.where(or_(free, servers.c.task_state.in_(action.over)) if action.over else free)
    return asking.where(servers.c.shares == NO_SHARES) if action.bare else asking


def request_server_action(connection: Connection, server: ServerRow, key: str, request_id: str, user_id: str,
                          project_id: str, args: Mapping[str, Any] | None = None, message: str | None = None,
                          stopped: Callable[[Connection, Sequence[StoppedAction]], None] = lambda *_none: None,
                          **values: Any) -> bool:
    """Queue the action *key* and update the server's row (task_state and *values*) in the same transaction. Return
    ``False`` when the server's state no longer allows the action: the caller must then roll back. Raises ``Moved``.

    *message*: a warning to store with the action. *stopped*: called with the started actions that this action replaces.
    """
    action = ACTIONS[key]
    # before the server's row is locked, see stopped_actions
    stopped(connection, overtake_server_actions(connection, server.id, action.overtakes()))
    if action.exclusive:  # locked first, so that a concurrent request is seen before anything changes
        fetch_server_row(connection, server.id, lock=True)
        if connection.execute(_OTHERS, {"at": server.id}).first():
            return False
    if action.task:
        values["task_state"] = action.task
    # Several states are allowed if the action overtakes another one, which may have ended meanwhile.
    changed = connection.execute(_asking(key), {
        "at": server.id, "states": action.states if action.over else (server.vm_state,), "updated_at": utc_now(),
        **values})
    if changed.rowcount != 1:
        current = fetch_server_row(connection, server.id)
        if current is not None and current.leaving:
            raise Moved
        return False
    insert_action_row(connection, server.id, key, request_id, user_id, project_id, args, server.host, message=message)
    return True


def insert_action_row(connection: Connection, id: str, key: str, request_id: str, user_id: str, project_id: str,
                      args: Mapping[str, Any] | None = None, host: str | None = None, state: str = "queued",
                      message: str | None = None) -> int:
    """Insert the action *key*, such as ``resize``, of the server *id* into the queue of actions; return the action's
    id. The other arguments are columns of ``actions``."""
    inserted = connection.execute(_INSERT_ACTIONS, {
        "request_id": request_id, "server_id": id, "action": key, "project_id": project_id, "user_id": user_id,
        "start_time": utc_now(), "updated_at": utc_now(), "state": state, "args": json_text(args or {}), "host": host,
        "kind": ACTIONS[key].kind, "message": message})
    return int(inserted.inserted_primary_key[0])  # type: ignore[index]


def insert_server_rows(connection: Connection, rows: Sequence[Mapping[str, Any]], request_id: str,
                       message: str | None = None,
                       args: Mapping[str, Any] | None = None, not_before: Any = None) -> None:
    """Insert new servers into cell0, where they stay until the scheduler has chosen a host, and queue a create action
    for each. *rows*: columns of the servers. *message*, *args*, *not_before*: columns of the actions."""
    connection.execute(_INSERT_SERVERS, [dict(row) for row in rows])
    insert_filter_rows(connection, rows)
    # PostgreSQL's time is an SQL expression, which a statement takes as one of its values and not as a parameter.
    connection.execute(_INSERT_ACTIONS if not_before is None else _INSERT_ACTIONS.values(not_before=not_before), [
        {"request_id": request_id, "server_id": row["id"], "action": "create", "project_id": row["project_id"],
         "user_id": row["user_id"], "start_time": row["created_at"], "updated_at": row["created_at"],
         "state": "queued", "args": json_text(args or {}), "kind": "build", "message": message} for row in rows])


class ScheduledServer(NamedTuple):
    """The rows of a server and its actions after they were removed from cell0, because the scheduler has chosen a host
    in a cell. The actions have no events yet."""

    server: RowMapping
    actions: Sequence[RowMapping]


def remove_scheduled_servers(connection: Connection, ids: Collection[str]) -> list[ScheduledServer]:
    """Remove servers and their actions from cell0, and return the removed rows. Servers that are no longer in cell0 are
    skipped.

    Concurrent changes of these servers wait until the transaction ends, and then find the server in its cell, so no
    change is lost.
    """
    removed = connection.execute(_FORGET_SERVERS, {"ids": list(ids)}).mappings().all()
    if not removed:
        return []
    actions_by_server: dict[str, list[RowMapping]] = {server["id"]: [] for server in removed}
    # Requests for actions lock the server's row first, so all committed actions are seen here.
    for action in connection.execute(_FORGET_ACTIONS, {"ids": list(actions_by_server)}).mappings():
        actions_by_server[action["server_id"]].append(action)
    return [ScheduledServer(server, sorted(actions_by_server[server["id"]], key=itemgetter("id")))
            for server in removed]


class ArrivedServer(NamedTuple):
    """A server that was copied from cell0 to its cell: its row, the row of its create action, and whether it has no
    other actions (*no_other_action*)."""

    server: ServerRow
    creation: ActionRow
    no_other_action: bool


Begin = Callable[[Sequence[Mapping[str, Any]]], Sequence[ActionRow]]


def build_task_state(request: Mapping[str, Any]) -> str:
    """Return the first task_state of a new server: ``NETWORKING`` if volumes are created after the ports, otherwise
    ``SPAWNING``. Without volumes, the creation of ports ends too soon to be worth a state. *request*: the server's
    create request."""
    volumes = any(block_device["destination_type"] == "volume" for block_device in request.get("blocks") or ())
    return NETWORKING if volumes and request.get("networks") else SPAWNING


def insert_scheduled_servers(connection: Connection, scheduled: Sequence[tuple[ScheduledServer, str]],
                             begin: Begin | None = None) -> list[ArrivedServer]:
    """Insert servers from cell0 into their cell, and return them. *scheduled*: each removed server with the host that
    the scheduler has chosen. Skips servers that are already in the cell.

    By default, the create actions are queued again. *begin*: a function that instead inserts the create actions as
    running ones and returns the actions' rows; in this case, the servers get the task_state of ``build_task_state``.
    """
    new, creations, other_actions = [], [], []
    for scheduled_server, host in scheduled:
        task = scheduled_server.server["task_state"]
        starts = begin and task != DELETING
        task = build_task_state(orjson.loads(scheduled_server.server["request"])) if starts else task
        new.append({**scheduled_server.server, "host": scheduled_server.server["host"] or host, "task_state": task})
    inserted = _entered(connection, drop_null_columns(new))
    insert_filter_rows(connection, (row for row in new if row["id"] in inserted))
    for scheduled_server, host in scheduled:
        for action in scheduled_server.actions if scheduled_server.server["id"] in inserted else ():
            values = {name: value for name, value in action.items() if name != "id"}
            if action["action"] == "create" and action["state"] == "running":
                creations.append({**values, "state": "queued", "holder": None, "lease_until": None,
                                  "host": action["host"] or host})
            else:
                other_actions.append(values)
    created: dict[str, ActionRow] = {}
    if creations:  # first, because the queue is ordered by id
        creation_rows = begin(creations) if begin else [
            ActionRow.of_values(row._mapping) for row in insert_returning_rows(  # noqa: SLF001 - SQLAlchemy's name
                connection, _INSERT_ACTIONS, actions.c.server_id, creations)]
        created = {row.server_id: row for row in creation_rows}
    if other_actions:
        connection.execute(_INSERT_ACTIONS, other_actions)
    return [ArrivedServer(inserted[scheduled_server.server["id"]], created[scheduled_server.server["id"]],
                          no_other_action=len(scheduled_server.actions) == 1)
            for scheduled_server, _host in scheduled if scheduled_server.server["id"] in created]


def _entered(connection: Connection, new: Sequence[Mapping[str, Any]]) -> dict[str, ServerRow]:
    """Insert servers into a cell; return their rows by uuid. If *new* is a single server that is already in the cell,
    as may happen after a crash, return an empty dict."""
    if len(new) == 1:
        row = insert_if_absent_returning(connection, servers, **new[0])
        return {} if row is None else {row.id: ServerRow(row)}
    return {row.id: ServerRow(row) for row in insert_returning_rows(connection, _INSERT_SERVERS, servers.c.id, new)}


def insert_late_actions(connection: Connection, scheduled_server: ScheduledServer) -> None:
    """Copy those actions of a server to its cell that were requested in cell0 after the server's row was copied. This
    is needed when a crash has left the server in both databases."""
    for action in scheduled_server.actions:
        values = {name: value for name, value in action.items() if name != "id"}
        if action["action"] != "create" and insert_if_absent(connection, actions, **values) and ACTIONS[
                action["action"]].task == DELETING:
            connection.execute(_CANCELLED, {"at": scheduled_server.server["id"]})
            connection.execute(_CHANGED, {"at": scheduled_server.server["id"], "task_state": DELETING,
                                          "updated_at": utc_now()})


@lru_cache(maxsize=200)
def live_server_query(columns: frozenset[str]) -> PreparedQuery:
    """Return the query for a server that is not deleted. Its parameter ``id`` is the server's uuid. Selects *columns*,
    and always the server's id, owner, and the cell to which it moves (``NEEDED``)."""
    named = [column for column in servers.c if column.name in columns | NEEDED]
    return PreparedQuery(select(*named).where(servers.c.id == bindparam("id"), servers.c.deleted_at.is_(None)))


def mark_guest_due(connection: Connection, server_id: str) -> None:
    """Record that the guest must receive the server's current metadata; a conductor then sends the metadata."""
    connection.execute(_DUE, {"server": server_id})


def addresses_of_nics(nics: Sequence[Mapping[str, Any]],
                      host_addresses: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the ``addresses`` of a server in the form of Nova's API, by network name. A NIC without addresses from the
    network service gets the address that the server's host reports for its MAC. *nics*: the server's NICs.
    *host_addresses*: the addresses that the host reports, by network."""
    heard = {address["mac"]: address for network_addresses in host_addresses.values() for address in network_addresses}
    shown: dict[str, list[dict[str, Any]]] = {}
    for nic in nics:
        ips = [ip["ip_address"] for ip in nic.get("fixed_ips") or ()]
        if not ips and nic["mac"] in heard:
            ips = [heard[nic["mac"]]["addr"]]
        shown.setdefault(nic["network"], []).extend(
            {"version": 6 if ":" in address else 4, "addr": address, "OS-EXT-IPS:type": "fixed",
             "OS-EXT-IPS-MAC:mac_addr": nic["mac"]} for address in ips)
    return shown


def server_tpm_security(server: ServerRow) -> str:
    """Return the owner of a server's TPM secret: ``user`` or ``deployment``; empty without a TPM. For speed, flavor and
    image are decoded only if the JSON text of one of them mentions a TPM."""
    if "tpm_version" not in server.stored.flavor and "tpm_version" not in server.stored.image:
        return ""
    return merge.tpm_secret_owner(server.flavor, server.image)


def tpm_drawn(server: ServerRow) -> str:
    """Return the owner of the TPM secret that was created for a server, maybe for an earlier flavor: ``user`` or
    ``deployment``; empty if none was created."""
    return server.request.get(TPM_DRAWN, "")
