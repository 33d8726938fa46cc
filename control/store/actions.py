# SPDX-License-Identifier: GPL-3.0-or-later
"""The action table as a queue: taken by lease, one action of a server at a time, within the limits of hosts.

A lease is kept by a heartbeat; what a conductor held that died is taken by another. Leases are counted by the
database's clock. Rows stay when they are done: they are the instance actions that users see.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Connection,
    Insert,
    Integer,
    Select,
    String,
    and_,
    bindparam,
    exists,
    func,
    insert,
    literal,
    null,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.sql.dml import ReturningUpdate

from .database import Database, now, utc, written
from .tables import action_events, actions

#: Seconds that a lease lasts, and between two heartbeats. A dead conductor's work is taken over within 15 s.
LEASE, HEARTBEAT = 12.0, 3.0
#: How many rows of the queue are looked at, for each action wanted.
LOOKED_AT = 8
#: Actions that are taken although they were called off: an image waits for their end.
OWING = ("createImage",)
#: Why what was queued is dropped, as users are told.
DELETED = "The server was deleted meanwhile."
RESET = "An administrator reset the server's state before this began."
#: What a reset of the state does not drop: deletions, which go on; and what only its flow can end, as it would leave
#: an image that waits for its content, or a volume or port that is kept for the server.
GOING, LEFT_BEHIND = ("delete", "forceDelete"), ("createImage", "attach_volume", "attach_interface")
Limits = Mapping[str, int]
Row = Any

_other, _any = actions.alias("other"), actions.alias("any")
#: Statements that are made once: to make one anew takes longer than the database with it.
_NUMBER: BindParameter[int] = bindparam("number", type_=BigInteger)
_MINE = (actions.c.id == _NUMBER, actions.c.holder == bindparam("by"))
_HELD = select(actions.c.id).where(*_MINE, actions.c.state == "running").with_for_update()
_ENDED = update(actions).where(*_MINE, actions.c.state == "running")
_HAPPENED = insert(action_events)
#: An event that has ended and the next one. Of several VALUES SQLAlchemy would make the statement anew each time.
_WENT_ON = insert(action_events).from_select(
    ["action_id", "event", "host", "start_time", "finish_time", "result"],
    select(_NUMBER, *(bindparam(name, type_=String) for name in ("ended", "by", "since", "moment")), literal(
        "Success")).union_all(select(_NUMBER, *(bindparam(name, type_=String) for name in (
            "begun", "at_host", "moment")), null(), null()))).returning(action_events.c.id)
_FINISHED = update(action_events).where(action_events.c.id == _NUMBER)


class Batch(NamedTuple):
    """What ``take`` gives: rows, in the order of taking, and whether there was more in the queue, which something may
    make free: the end of other work, or time."""

    rows: list[Row]
    more: bool


def take(database: Database, holder: str, count: int, limits: Limits, likely: bool = False) -> Batch:
    """Take up to *count* actions for *holder*. *limits*: how many of a kind (build, live) a host bears at once.
    *likely*: there was more the last time, so it is not asked first whether there is anything at all. However much
    waits of one project or for one host, others have their turn."""
    asked = _questions(database.kind)
    moment, until = _own(database, "clock"), _own(database, "until", LEASE)
    with database.read() as connection:  # most looks find nothing, and reading keeps nobody waiting
        if not likely and connection.execute(asked.any, moment).first() is None:
            return Batch([], more=False)
        most = count * LOOKED_AT
        oldest = waiting = connection.execute(asked.waiting, {**moment, "most": most, "beyond": count + 1}).all()
        if not waiting:
            return Batch([], more=not likely or connection.execute(asked.any, moment).first() is not None)
        # What runs decides between projects, and at hosts that bear so much only.
        deep = len(waiting) == most
        matters = deep or len({row.project_id for row in waiting}) > 1 or any(
            row.host and row.kind in limits for row in waiting)
        running = connection.execute(asked.running, moment).all() if matters else ()
        if deep:  # the oldest may all be one project's, or wait for one host
            waiting = connection.execute(asked.each, {
                **moment, "each": count, "most": most, "full": _full(running, limits)}).all()
    chosen = _fair(waiting, running, count, limits)
    if not chosen:
        return Batch([], more=True)
    with database.write() as connection:
        taken = connection.execute(asked.hold, {
            **moment, "chosen": chosen, "by": holder, "moment": now(), **until}).all()
    return Batch(sorted(taken, key=lambda row: chosen.index(row.id)), more=oldest[0].idle > len(taken))


def room(database: Database, connection: Connection, places: Collection[str], kind: str,
         limits: Limits) -> Counter[str]:
    """How many more actions of *kind* the limits let run at each of these hosts."""
    if kind not in limits:
        return Counter(dict.fromkeys(places, sys.maxsize))
    running = connection.execute(_questions(database.kind).at_hosts, {
        **_own(database, "clock"), "places": list(places), "kind": kind})
    found = Counter(dict.fromkeys(places, limits[kind]))
    found.subtract({row.host: row.running for row in running})
    return found


def begun(database: Database, connection: Connection, holder: str, new: Sequence[Mapping[str, Any]]) -> Sequence[Row]:
    """Write down actions that *holder* has in hand from the start, each of another server; returns their rows."""
    mine = {"by": holder, "state": "running", "attempts": 1, **_own(database, "until", LEASE)}
    return written(connection, _questions(database.kind).begun, actions.c.server_id, [{**one, **mine} for one in new])


def _own(database: Database, name: str, plus: float = 0.0) -> dict[str, Any]:
    """Parameter *name* of the statements that ask for a moment: on SQLite, which has no clock that is worth asking."""
    return {name: database.clock(plus)} if database.kind == "sqlite" else {}


class Questions(NamedTuple):
    """The statements of ``take``: whether there is anything; what waits and can be taken, each row with how many wait
    in all; a few of each project, host and kind, but for hosts that bear no more; what runs; and to have it (tells the
    rows). How much of a kind runs at hosts (``room``), and to write one down that runs (``begun``)."""

    any: Select[Any]
    waiting: Select[Any]
    each: Select[Any]
    running: Select[Any]
    hold: ReturningUpdate[Any]
    at_hosts: Select[Any]
    begun: Insert


@cache
def _questions(kind: str) -> Questions:
    """Made once for each engine, as they are asked for each action. The moment is SQLite's parameter, PostgreSQL's own
    clock."""
    clock: Any = bindparam("clock", type_=String)
    until: Any = bindparam("until", type_=String)
    if kind == "postgresql":
        clock, until = utc(), utc(LEASE)

    def idle(table: Any) -> Any:
        return or_(table.c.state == "queued", and_(table.c.state == "running", table.c.lease_until < clock))

    first = ~exists().where(_other.c.server_id == actions.c.server_id, _other.c.id != actions.c.id, or_(
        and_(_other.c.state == "running", _other.c.lease_until >= clock),
        and_(or_(_other.c.state == "queued", _other.c.state == "running"), _other.c.id < actions.c.id)))
    due = or_(actions.c.not_before.is_(None), actions.c.not_before <= clock)
    by = (actions.c.host, actions.c.kind, actions.c.project_id)
    some = select(_any.c.id).where(idle(_any)).limit(bindparam("beyond", type_=Integer)).subquery()
    count = select(func.count()).select_from(some).scalar_subquery().label("idle")
    full: Any = bindparam("full", expanding=True)
    free = or_(actions.c.host.is_(None), tuple_(actions.c.host, actions.c.kind).not_in(full))
    place = func.row_number().over(partition_by=by, order_by=actions.c.id)
    groups = select(actions.c.id, *by, place.label("place")).where(idle(actions), due, first, free).subquery()
    # Somebody else may have taken it since: the lock and the condition decide.
    mine = select(actions.c.id).where(actions.c.id.in_(bindparam("chosen", expanding=True)), idle(actions), first)
    mine = mine.with_for_update(skip_locked=True)
    runs = (actions.c.state == "running", actions.c.lease_until >= clock)
    return Questions(
        select(actions.c.id).where(idle(actions)).limit(1),
        select(actions.c.id, actions.c.project_id, actions.c.host, actions.c.kind, count).where(
            idle(actions), due, first).order_by(actions.c.id).limit(bindparam("most", type_=Integer)),
        select(groups).where(groups.c.place <= bindparam("each", type_=Integer)).order_by(
            groups.c.place, groups.c.id).limit(bindparam("most", type_=Integer)),
        select(*by, func.count().label("running")).where(*runs).group_by(*by),
        update(actions).where(actions.c.id.in_(mine)).values(
            state="running", holder=bindparam("by"), lease_until=until, attempts=actions.c.attempts + 1,
            updated_at=bindparam("moment")).returning(actions),
        select(actions.c.host, func.count().label("running")).where(
            *runs, actions.c.host.in_(bindparam("places", expanding=True)),
            actions.c.kind == bindparam("kind")).group_by(actions.c.host),
        insert(actions).values(holder=bindparam("by"), lease_until=until))


def _busy(running: Sequence[Row]) -> Counter[tuple[str | None, str]]:
    """How much of each kind runs at each host."""
    busy: Counter[tuple[str | None, str]] = Counter()
    for row in running:
        busy[row.host, row.kind] += row.running
    return busy


def _full(running: Sequence[Row], limits: Limits) -> list[tuple[str, str]]:
    """Host and kind of what no more may run of."""
    return [(host, kind) for (host, kind), many in _busy(running).items() if host and many >= limits.get(
        kind, many + 1)]


def _fair(waiting: Sequence[Row], running: Sequence[Row], count: int, limits: Limits) -> list[int]:
    """Numbers of the actions to take: projects in turn, the one with the least work on its way first."""
    busy = _busy(running)
    work: Counter[str] = Counter()
    for row in running:
        work[row.project_id] += row.running
    queues: dict[str, list[Row]] = {}
    for row in waiting:
        queues.setdefault(row.project_id, []).append(row)
    chosen: list[int] = []
    while queues and len(chosen) < count:
        project = min(queues, key=lambda name: (work[name], queues[name][0].id))
        row = queues[project].pop(0)
        if not queues[project]:
            del queues[project]
        limit = limits.get(row.kind)
        if row.host and limit is not None and busy[row.host, row.kind] >= limit:
            continue
        busy[row.host, row.kind] += 1
        work[project] += 1
        chosen.append(row.id)
    return chosen


def beat(database: Database, holder: str, numbers: Collection[int] | None = None) -> set[int]:
    """Keep the leases of *holder*; returns the numbers of its actions that are to be cancelled. *numbers*: only those
    that it works on. What it took and does not know of (the answer was lost) is left to whoever takes it next."""
    mine = [actions.c.holder == holder, actions.c.state == "running"]
    if numbers is not None:
        mine.append(actions.c.id.in_(numbers))
    with database.write() as connection:
        connection.execute(update(actions).where(*mine).values(lease_until=database.clock(LEASE)))
        return set(connection.execute(select(actions.c.id).where(*mine, actions.c.cancel.is_(True))).scalars())


def ended(connection: Connection, number: int, holder: str, state: str = "done", message: str | None = None) -> bool:
    """The action has ended; False when somebody else has it meanwhile, or it has ended already."""
    done = connection.execute(_ENDED, {"number": number, "by": holder, "state": state, "message": message,
                                       "lease_until": None, "updated_at": now()})
    return done.rowcount == 1


def holds(connection: Connection, number: int, holder: str) -> bool:
    """Whether *holder* still works on the action; in a ``write`` nobody else takes it before the transaction ends."""
    return connection.execute(_HELD, {"number": number, "by": holder}).first() is not None


def put_back(connection: Connection, number: int, holder: str, not_before: Any = None, **values: Any) -> None:
    """The action is to be taken again (not before a moment of the database's clock)."""
    connection.execute(update(actions).where(actions.c.id == number, actions.c.holder == holder).values(
        state="queued", holder=None, lease_until=None, not_before=not_before, updated_at=now(), **values))


def let_go(database: Database, holder: str) -> None:
    """Give everything back at once: the conductor ends."""
    with database.write() as connection:
        connection.execute(update(actions).where(actions.c.holder == holder, actions.c.state == "running").values(
            state="queued", holder=None, lease_until=None))
        database.ring(connection, "actions")


def cancel(connection: Connection, server_id: str, but: int | None = None) -> None:
    """Ask that what is done to a server that goes stops, and drop what is queued, but what something waits for."""
    mine = [actions.c.server_id == server_id]
    if but is not None:
        mine.append(actions.c.id != but)
    _stop(connection, mine, OWING, DELETED)


def reset(connection: Connection, server_id: str) -> bool:
    """As ``cancel``, for a server that stays. Returns whether it is to be deleted all the same."""
    mine = actions.c.server_id == server_id
    _stop(connection, [mine, actions.c.action.not_in(GOING)], LEFT_BEHIND, RESET)
    return connection.execute(select(actions.c.id).where(
        mine, actions.c.action.in_(GOING), actions.c.state.in_(("queued", "running"))).limit(1)).first() is not None


def _stop(connection: Connection, which: Sequence[Any], taken: Sequence[str], why: str) -> None:
    """Call off *which*: what runs, and *taken* of what is queued; the rest is dropped, and users are told *why*."""
    queued, own = actions.c.state == "queued", actions.c.action.in_(taken)
    connection.execute(update(actions).where(*which, or_(actions.c.state == "running", and_(queued, own))).values(
        cancel=True, not_before=None))
    connection.execute(update(actions).where(*which, queued, ~own).values(
        state="failed", message=why, updated_at=now()))


def started(connection: Connection, number: int, event: str, host: str | None) -> int:
    """An event of an action begins; returns its number."""
    found = connection.execute(_HAPPENED, {"action_id": number, "event": event, "start_time": now(), "host": host})
    return int(found.inserted_primary_key[0])  # type: ignore[index]


def went_on(connection: Connection, going: Mapping[int, str | None], before: Mapping[str, Any],
            event: str) -> dict[int, int]:
    """An event of actions has ended well (*before*: its name, host and start_time), and another begins. *going*: the
    host at which, by the action's number. Returns the number of the other event, by the action's."""
    if not going:
        return {}
    moment = now()
    if len(going) == 1:
        [(number, host)] = going.items()
        found = connection.execute(_WENT_ON, {
            "number": number, "ended": before["event"], "by": before["host"], "since": before["start_time"],
            "moment": moment, "begun": event, "at_host": host}).scalars()
        return {number: max(map(int, found))}
    both = [{"action_id": number, **one} for number, host in going.items() for one in (
        {**before, "finish_time": moment, "result": "Success"},
        {"event": event, "host": host, "start_time": moment, "finish_time": None, "result": None})]
    return {row.action_id: row.id for row in written(connection, _HAPPENED, action_events.c.action_id, both)
            if row.finish_time is None}


def happened(connection: Connection, number: int, event: str, host: str | None, start_time: str,
             result: str = "Success", details: str | None = None) -> None:
    """An event of an action that has ended already."""
    connection.execute(_HAPPENED, {
        "action_id": number, "event": event, "start_time": start_time, "finish_time": now(), "host": host,
        "result": result, "details": details})


def finished(connection: Connection, event: int, result: str, host: str | None = None, details: str | None = None,
             traceback: str | None = None, finish_time: str | None = None) -> None:
    """The event has ended (just now, when no time is given): *result* is Success or Error."""
    values = {"finish_time": finish_time or now(), "result": result, "details": details, "traceback": traceback}
    if host is not None:
        values["host"] = host
    connection.execute(_FINISHED, {"number": event, **values})
