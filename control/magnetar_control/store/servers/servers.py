# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers: in which database they are, and changes in one transaction with the action they belong to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple

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

from magnetar_control.store.actions.stopped_actions import overtake
from magnetar_control.store.engine.database import Database, added, added_row, filled, now, returning, written
from magnetar_control.store.engine.tables import actions, server_mappings, servers
from magnetar_control.store.scatter_gather import scatter_gather_cells
from magnetar_control.store.store import CELL0, Store
from magnetar_core.actions import ACTIONS, ANY
from magnetar_core.power import OFFLOADED, SOFT_DELETED

from . import consoles, server_columns

Found = Row[Any]
#: The column of a server without shares.
NO_SHARES = "[]"
#: The task_states of servers that are to be deleted, for good or not, and of one that its host builds.
DELETING, SOFT_DELETING, SPAWNING = "deleting", "soft-deleting", "spawning"
#: Those of a new server with volumes while its ports are made, and then its volumes (C1.4).
NETWORKING, MAPPING = "networking", "block_device_mapping"
#: The task_state of a soft-deleted server that is to be active again. Quotas count it.
RESTORING = "restoring"
#: Statements that are made once: making one takes longer than executing it.
_ID: BindParameter[str] = bindparam("id")
_AT: BindParameter[str] = bindparam("at")  # in updates, where no parameter may have a column's name
_WHOLE = select(servers).where(servers.c.id == _ID)
_LOCKED = _WHOLE.with_for_update()
_ALIVE = _WHOLE.where(servers.c.deleted_at.is_(None))
_MAPPED = select(server_mappings.c.cell_id).where(server_mappings.c.server_id == _ID)
_NEW, _ASKED = insert(servers), insert(actions)
_CHANGED = update(servers).where(servers.c.id == _AT, servers.c.leaving.is_(None))
#: Columns of which guests are told while they run, and the change of one.
TOLD = frozenset(("name", "hostname", "metadata", "security_groups"))
_TOLD_CHANGED = _CHANGED.values(guest_revision=servers.c.guest_revision + 1, guest_data_due=True)
#: The task_states of deletions and evacuations, and of actions that come over others: what ends leaves them there.
_COMING = {DELETING, SOFT_DELETING, *ACTIONS["evacuate"].tasks[:1]}.union(
    *(action.tasks for action in ACTIONS.values() if action.over))
_PROGRESSED = _CHANGED.values(task_state=case(
    (servers.c.task_state.in_(bindparam("kept", expanding=True)), servers.c.task_state), else_=bindparam("task")))
_IDS: BindParameter[Any] = bindparam("ids", expanding=True)
_EACH = select(servers).where(servers.c.id.in_(_IDS))
_STAMPS = select(
    servers.c.id, servers.c.updated_at, servers.c.vm_state, servers.c.task_state,
    select(func.max(actions.c.updated_at)).where(actions.c.server_id == servers.c.id).scalar_subquery()).where(
    servers.c.id.in_(_IDS), servers.c.deleted_at.is_(None))
#: Events go with their actions.
_FORGET_ACTIONS = delete(actions).where(actions.c.server_id.in_(_IDS)).returning(actions)
_FORGET_SERVERS = delete(servers).where(servers.c.id.in_(_IDS)).returning(servers)
_CANCELLED = update(actions).where(actions.c.server_id == _AT, actions.c.state == "running").values(cancel=True)
#: Actions in hand of those that are done alone.
_OTHERS = select(actions.c.id).where(
    actions.c.server_id == _AT, actions.c.action.in_([key for key, action in ACTIONS.items() if action.alone]),
    actions.c.state.in_(("queued", "running"))).limit(1)
#: Actions that wait to come over another one.
_NEXT = select(actions.c.id).where(
    actions.c.server_id == _AT, actions.c.action.in_([key for key, action in ACTIONS.items() if action.over]),
    actions.c.state == "queued").limit(1)
#: The bell that conductors of a cell listen to, and the one that rings when a server has changed.
ACTIONS_BELL, SERVERS_BELL = "actions", "servers"


class Moved(Exception):
    """The server has moved into another cell since it was looked up, or is on its way. Look it up again."""


def text(document: Any) -> str:
    """JSON text of a document, as the columns hold it."""
    return orjson.dumps(document).decode()


def find(store: Store, id: str, *, deleted: bool = False,
         columns: frozenset[str] | None = None) -> tuple[Database, Found] | None:
    """The server (a deleted one only with *deleted*), all of it or *columns*, and its database; ``None`` when there is
    none. One query where it was found in its cell before, else two. A row that leaves is shown where there is no other.
    """
    asked = _WHOLE if deleted else _ALIVE if columns is None else server_columns.alive(columns)
    leaving = None
    for database in places(store, id):
        with database.read() as connection:
            row = connection.execute(asked, {"id": id}).first()
        if row is not None and row.leaving:
            leaving = database, row
        elif row is not None:
            if not deleted:
                store.found(id, database)
            return database, row
    return leaving


def places(store: Store, id: str) -> Iterable[Database]:
    """Databases that may have the server, likeliest first: where it was found before, its cell, cell0. It may move from
    cell0 to its cell between the two queries, so the cell comes once more at the end."""
    before = store.where(id)
    if before is not None:
        yield before
    for last in (False, True):
        with store.api.read() as connection:
            cell = connection.execute(_MAPPED, {"id": id}).scalar()
        if cell is not None:
            yield store.cell(cell)
        if not last:
            yield store.cell0


def by_name(store: Store, project_id: str, name: str) -> list[tuple[Database, Found]]:
    """The servers of a project that have this name and are not soft-deleted, each with its database. One query for each
    cell, cell0 first: a server is written to its cell before it leaves cell0, so it is never missed."""
    found: list[tuple[Database, Found]] = []
    for _cell, database in store.databases():
        with database.read() as connection:
            rows = connection.execute(select(servers).where(
                servers.c.project_id == project_id, servers.c.name == name, servers.c.deleted_at.is_(None),
                servers.c.vm_state != SOFT_DELETED).order_by(servers.c.created_at, servers.c.id)).all()
        found.extend((database, row) for row in rows)
    found.sort(key=lambda one: one[1].leaving is None)  # the row that has arrived counts
    return list({row.id: (database, row) for database, row in found}.values())


def find_each(store: Store, ids: Collection[str]) -> dict[str, tuple[Database, Found | None]]:
    """The servers of these uuids that there are, and their databases; without a row where the database does not
    answer. One query for each cell that has some."""
    with store.api.read() as connection:
        cells = dict(connection.execute(select(server_mappings.c.server_id, server_mappings.c.cell_id).where(
            server_mappings.c.server_id.in_(ids), ~server_mappings.c.deleted)).all())
    asked = {*cells.values(), CELL0}
    databases = {cell.id: (cell, database) for cell, database in store.databases() if cell.id in asked}
    told = scatter_gather_cells(list(databases.values()), lambda database: _alive(database, ids))
    found: dict[str, tuple[Database, Found | None]] = {
        id: (databases[cell][1], None) for id, cell in cells.items() if cell in databases and told[cell] is None}
    rows = [(databases[cell][1], row) for cell in sorted(databases, key=lambda id: id != CELL0)
            for row in told[cell] or ()]
    rows.sort(key=lambda one: one[1].leaving is None)  # a row that leaves is older, and one in cell0 of a moved one
    found.update({row.id: (database, row) for database, row in rows})
    return found


def _alive(database: Database, ids: Collection[str]) -> Sequence[Found]:
    with database.read() as connection:
        return connection.execute(_EACH.where(servers.c.deleted_at.is_(None)), {"ids": list(ids)}).all()


def mapping(store: Store, id: str) -> Row[Any] | None:
    """The cell and the project of a server; ``None`` while it is in cell0."""
    with store.api.read() as connection:
        return connection.execute(select(server_mappings).where(server_mappings.c.server_id == id)).one_or_none()


def row(connection: Connection, id: str, lock: bool = False) -> Found | None:
    """The row of a server; *lock* locks it until the transaction ends."""
    return connection.execute(_LOCKED if lock else _WHOLE, {"id": id}).one_or_none()


def rows(connection: Connection, ids: Collection[str]) -> dict[str, Found]:
    """The rows of several servers, by their uuids."""
    return {row.id: row for row in connection.execute(_EACH, {"ids": list(ids)})}


def stamps(connection: Connection, ids: Collection[str]) -> dict[str, tuple[Any, ...]]:
    """Something of each of these servers that is another one when the server, or an action of it, has changed."""
    return {row.id: tuple(row) for row in connection.execute(_STAMPS, {"ids": list(ids)})}


def allowed(server: Found, key: str) -> bool:
    """Whether the action may be asked for in the server's states."""
    action = ACTIONS[key]
    ready = not action.placed or server.host is not None or server.vm_state == OFFLOADED
    return (action.states == ANY or server.vm_state in action.states) and (
        action.during(server.task_state)) and ready


def change(connection: Connection, id: str, **values: Any) -> None:
    """Set columns of a server; documents as JSON text. A conductor has the guest told of those that it asks for. Raises
    ``Moved``."""
    statement = _CHANGED if TOLD.isdisjoint(values) else _TOLD_CHANGED
    if not connection.execute(statement, {"at": id, "updated_at": now(), **values}).rowcount:
        raise Moved
    end_consoles(connection, id, values.get("vm_state"))


def end_consoles(connection: Connection, id: str, vm_state: str | None) -> None:
    """A server that goes into a *vm_state* without consoles: leave to open one is not leave to open one of its next
    run."""
    if vm_state is not None and vm_state not in ACTIONS["remote_console"].states:
        consoles.end(connection, id)


def revise(connection: Connection, id: str, column: str,
           change_: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Change one of the lists of a server (``volumes``, ``interfaces``, ``shares``) under a lock. Returns the new list;
    an empty one when the server is gone."""
    found = row(connection, id, lock=True)
    if found is None:
        return []
    kept: list[dict[str, Any]] = change_(orjson.loads(getattr(found, column)))
    change(connection, id, **{column: text(kept)})
    return kept


def progress(connection: Connection, id: str, own: tuple[str, ...] = (), **values: Any) -> None:
    """As ``change``, for a running action, whose task_states are *own*: that of a deletion stays, and those of an
    action which comes over it."""
    connection.execute(*_progress(id, own, values))
    end_consoles(connection, id, values.get("vm_state"))


def progressed(connection: Connection, id: str, own: tuple[str, ...] = (), **values: Any) -> Found | None:
    """As ``progress``; returns the new row."""
    statement, parameters = _progress(id, own, values)
    end_consoles(connection, id, values.get("vm_state"))
    return connection.execute(returning(statement), parameters).one_or_none()


@cache
def _kept(own: tuple[str, ...]) -> list[str]:
    return sorted(_COMING.difference(own))


def _progress(id: str, own: tuple[str, ...], values: Mapping[str, Any]) -> tuple[Update, dict[str, Any]]:
    parameters = {"at": id, "updated_at": now(), **values}
    if "task_state" not in values:
        return _CHANGED, parameters
    parameters.update(task=parameters.pop("task_state"), kept=_kept(own))
    return _PROGRESSED, parameters


def comes_again(connection: Connection, id: str) -> bool:
    """Whether an action that comes over others waits for its turn at a server; none comes before the transaction
    ends."""
    row(connection, id, lock=True)
    return connection.execute(_NEXT, {"at": id}).first() is not None


@cache
def _asking(key: str) -> Update:
    """The update of ``ask``, made once for each action."""
    action, free = ACTIONS[key], servers.c.task_state.is_(None)
    asking = _CHANGED.where(servers.c.vm_state.in_(bindparam("states", expanding=True)), servers.c.deleted_at.is_(None))
    if not action.busy:
        asking = asking.where(or_(free, servers.c.task_state.in_(action.over)) if action.over else free)
    return asking.where(servers.c.shares == NO_SHARES) if action.bare else asking


def ask(connection: Connection, server: Found, key: str, request_id: str, user_id: str, project_id: str,
        args: Mapping[str, Any] | None = None, message: str | None = None,
        stopped: Callable[[Connection, Sequence[Row[Any]]], None] = lambda *_none: None, **values: Any) -> bool:
    """Ask for the action *key*: insert the action and set the task_state with *values*, in one transaction. *message*:
    of the action, a warning. *stopped* is called with begun actions over which it comes. ``False`` when the server's
    state does not allow it any more: then nothing of the transaction must stay. Raises ``Moved``.
    """
    action = ACTIONS[key]
    stopped(connection, overtake(connection, server.id, action.overtakes()))  # before the server's row is locked
    if action.alone:  # locked first, so that one that is asked for at the same time is seen before anything is changed
        row(connection, server.id, lock=True)
        if connection.execute(_OTHERS, {"at": server.id}).first():
            return False
    if action.task:
        values["task_state"] = action.task
    # Of several states where it comes over another one, which may have ended meanwhile.
    changed = connection.execute(_asking(key), {
        "at": server.id, "states": action.states if action.over else (server.vm_state,), "updated_at": now(), **values})
    if changed.rowcount != 1:
        there = row(connection, server.id)
        if there is not None and there.leaving:
            raise Moved
        return False
    enqueue(connection, server.id, key, request_id, user_id, project_id, args, server.host, message=message)
    return True


def enqueue(connection: Connection, id: str, key: str, request_id: str, user_id: str, project_id: str,
            args: Mapping[str, Any] | None = None, host: str | None = None, state: str = "queued",
            message: str | None = None) -> int:
    """Put an action into the queue; returns its id."""
    found = connection.execute(_ASKED, {
        "request_id": request_id, "server_id": id, "action": key, "project_id": project_id, "user_id": user_id,
        "start_time": now(), "updated_at": now(), "state": state, "args": text(args or {}), "host": host,
        "kind": ACTIONS[key].kind, "message": message})
    return int(found.inserted_primary_key[0])  # type: ignore[index]


def make(connection: Connection, rows: Sequence[Mapping[str, Any]], request_id: str, message: str | None = None,
         args: Mapping[str, Any] | None = None, not_before: Any = None) -> None:
    """Insert new servers, each with its create action, into cell0. *message*, *args*, *not_before*: of the actions."""
    connection.execute(_NEW, [dict(row) for row in rows])
    connection.execute(_ASKED, [
        {"request_id": request_id, "server_id": row["id"], "action": "create", "project_id": row["project_id"],
         "user_id": row["user_id"], "start_time": row["created_at"], "updated_at": row["created_at"],
         "state": "queued", "args": text(args or {}), "kind": "build", "message": message,
         **({} if not_before is None else {"not_before": not_before})} for row in rows])


class LeavingServer(NamedTuple):
    """The row of a server that has left cell0, and those of its actions, which have no events yet."""

    server: RowMapping
    actions: Sequence[RowMapping]


def leave(connection: Connection, ids: Collection[str]) -> list[LeavingServer]:
    """Remove servers with their actions from cell0, when the transaction ends. Whoever wants to change one meanwhile
    waits, and finds it in its cell then, so no change is lost. Servers that have left already are not returned."""
    found = connection.execute(_FORGET_SERVERS, {"ids": list(ids)}).mappings().all()
    if not found:
        return []
    asked: dict[str, list[RowMapping]] = {server["id"]: [] for server in found}
    # Whoever asks for an action locks the server's row first, so all committed actions are seen here.
    for action in connection.execute(_FORGET_ACTIONS, {"ids": list(asked)}).mappings():
        asked[action["server_id"]].append(action)
    return [LeavingServer(server, sorted(asked[server["id"]], key=itemgetter("id"))) for server in found]


class ArrivedServer(NamedTuple):
    """A server's row in its cell, that of its create action, and whether it has no other action yet."""

    server: Found
    creation: Row[Any]
    alone: bool


Begin = Callable[[Sequence[Mapping[str, Any]]], Sequence[Row[Any]]]


def building(request: Mapping[str, Any]) -> str:
    """The task_state with which a build of this *request* begins. Ports are made in no time, so only a server that has
    volumes made after them, which is written down anyway, says so."""
    volumes = any(one["destination_type"] == "volume" for one in request.get("blocks") or ())
    return NETWORKING if volumes and request.get("networks") else SPAWNING


def arrive(connection: Connection, leaving: Sequence[tuple[LeavingServer, str]],
           begin: Begin | None = None) -> list[ArrivedServer]:
    """Insert servers that leave cell0 into their cell, each with its host. The create action is queued again, or begun
    by *begin* (takes the values, returns the rows) with the task_state ``building``. Servers that are there already are
    skipped."""
    new, creations, others = [], [], []
    for left, host in leaving:
        task, starts = left.server["task_state"], begin and left.server["task_state"] != DELETING
        task = building(orjson.loads(left.server["request"])) if starts else task
        new.append({**left.server, "host": left.server["host"] or host, "task_state": task})
    there = _entered(connection, filled(new))
    for left, host in leaving:
        for action in left.actions if left.server["id"] in there else ():
            values = {name: value for name, value in action.items() if name != "id"}
            if action["action"] == "create" and action["state"] == "running":
                creations.append({**values, "state": "queued", "holder": None, "lease_until": None,
                                  "host": action["host"] or host})
            else:
                others.append(values)
    created: dict[str, Row[Any]] = {}
    if creations:  # first: the queue is ordered by id
        asked = begin(creations) if begin else written(connection, _ASKED, actions.c.server_id, creations)
        created = {row.server_id: row for row in asked}
    if others:
        connection.execute(_ASKED, others)
    return [ArrivedServer(there[left.server["id"]], created[left.server["id"]], alone=len(left.actions) == 1)
            for left, _host in leaving if left.server["id"] in created]


def _entered(connection: Connection, new: Sequence[Mapping[str, Any]]) -> dict[str, Found]:
    """The rows of servers that are new in a cell. A single one may be there already, after a crash: then it is not
    returned."""
    if len(new) == 1:
        row = added_row(connection, servers, **new[0])
        return {} if row is None else {row.id: row}
    return {row.id: row for row in written(connection, _NEW, servers.c.id, new)}


def follow(connection: Connection, left: LeavingServer) -> None:
    """Bring actions to the cell that were asked of a server in cell0 after it had arrived in its cell: a crash kept it
    in both."""
    for action in left.actions:
        values = {name: value for name, value in action.items() if name != "id"}
        if action["action"] != "create" and added(connection, actions, **values) and ACTIONS[
                action["action"]].task == DELETING:
            connection.execute(_CANCELLED, {"at": left.server["id"]})
            connection.execute(_CHANGED, {"at": left.server["id"], "task_state": DELETING, "updated_at": now()})
