# SPDX-License-Identifier: GPL-3.0-or-later
"""The action table as a queue: conductors take actions by lease, one action of a server at a time, within the limits of
hosts.

Heartbeats renew leases; another conductor takes the actions of one that died. Leases are counted by the database's
clock. Rows stay when they are done: they are the instance actions of the API.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, bindparam, exists, func, insert, literal, null, or_, select, tuple_, update
from sqlalchemy.sql.dml import ReturningUpdate
from sqlalchemy.sql.expression import BindParameter, ColumnElement, Insert, Select
from sqlalchemy.types import BigInteger, Integer, String

from magnetar_control.store.engine.database import Database, now, utc, written
from magnetar_control.store.engine.tables import action_events, actions

#: Seconds that a lease lasts, and between two heartbeats. Actions of a dead conductor are taken over within 15 s.
LEASE, HEARTBEAT = 12.0, 3.0
#: How many rows of the queue are read for each action wanted.
LOOKED_AT = 8
Limits = Mapping[str, int]
Row = Any


@dataclass(frozen=True)
class HostShare:
    """How many actions of a host who takes some may have in hand, and how many of which host he has. *others*: those
    of them that are for servers of other hosts. They may have half, so that when a host is silent, those who wait for
    it leave the other half of the shares of their servers' hosts."""

    most: Callable[[str], int] = lambda _host: sys.maxsize
    held: Counter[str] = field(default_factory=Counter)
    others: Counter[str] = field(default_factory=Counter)

    def left(self, host: str) -> int:
        """How many more of *host* may be taken."""
        return self.most(host) - self.held[host]

    def left_for_others(self, host: str) -> int:
        """How many more for servers of other hosts."""
        return min(self.left(host), max(1, self.most(host) // 2) - self.others[host])

    def full(self) -> list[str]:
        """The hosts of which no more may be taken."""
        return [host for host in self.held if self.left(host) <= 0]

    def full_for_others(self) -> list[str]:
        """Those of which no more may be for servers of other hosts."""
        return [host for host in self.held if self.left_for_others(host) <= 0]

    def admits(self, row: Row) -> bool:
        """Whether an action of the queue may be taken."""
        return (not row.host or self.left(row.host) > 0) and (
            not row.waits_for or self.left_for_others(row.waits_for) > 0)

    def with_one_more(self, row: Row) -> HostShare:
        """How it is when an action of the queue is taken."""
        other = [row.waits_for] if row.waits_for else []
        return replace(self, held=self.held + Counter([*other, *([row.host] if row.host else [])]),
                       others=self.others + Counter(other))


#: Of who may take all.
ALL = HostShare()

_other, _any = actions.alias("other"), actions.alias("any")
#: Statements that are made once: making one takes longer than executing it.
_NUMBER: BindParameter[int] = bindparam("number", type_=BigInteger)
_MINE = (actions.c.id == _NUMBER, actions.c.holder == bindparam("by"))
_HELD = select(actions.c.id).where(*_MINE, actions.c.state == "running").with_for_update()
_ENDED = update(actions).where(*_MINE, actions.c.state == "running")
_HAPPENED = insert(action_events)
#: Inserts an event that has ended and the next one. SQLAlchemy does not cache statements with several VALUES.
_WENT_ON = insert(action_events).from_select(
    ["action_id", "event", "host", "start_time", "finish_time", "result"],
    select(_NUMBER, *(bindparam(name, type_=String) for name in ("ended", "by", "since", "moment")), literal(
        "Success")).union_all(select(_NUMBER, *(bindparam(name, type_=String) for name in (
            "begun", "at_host", "moment")), null(), null()))).returning(action_events.c.id)
_FINISHED = update(action_events).where(action_events.c.id == _NUMBER)
_CUT_OFF = update(action_events).where(
    action_events.c.action_id == _NUMBER, action_events.c.finish_time.is_(None)).values(
    result="Error", details="interrupted: the conductor ended, stood still, or could not write.")


class Batch(NamedTuple):
    """Actions that were taken, in order, and whether the queue had more, which may become available when others end or
    time passes."""

    rows: list[Row]
    more: bool


def take(database: Database, holder: str, count: int, limits: Limits, likely: bool = False,
         share: HostShare = ALL) -> Batch:
    """Take up to *count* actions for *holder*. *limits*: how many of a kind (build, live) may run at a host at once.
    *share*: how many of a host *holder* may have. *likely*: there was more at the last call, so it is not asked first
    whether there is anything at all. Projects and hosts take turns, however much waits of one of them."""
    asked = _statements(database.kind)
    moment, until = _own(database, "clock"), _own(database, "until", LEASE)
    with database.read() as connection:  # most looks find nothing, and reading locks nothing
        if not likely and connection.execute(asked.any, moment).first() is None:
            return Batch([], more=False)
        most = count * LOOKED_AT
        oldest = waiting = connection.execute(asked.waiting, {**moment, "most": most, "beyond": count + 1}).all()
        if not waiting:
            return Batch([], more=not likely or connection.execute(asked.any, moment).first() is not None)
        # What runs matters for several projects, and for hosts with a limit.
        deep = len(waiting) == most
        matters = deep or len({row.project_id for row in waiting}) > 1 or any(
            row.host and row.kind in limits for row in waiting)
        running = connection.execute(asked.running, moment).all() if matters else ()
        if deep:  # the oldest may all be one project's, or wait for one host
            waiting = connection.execute(asked.each, {
                **moment, "each": count, "most": most, "full": _full(running, limits),
                "beyond_share": share.full(), "beyond_others": share.full_for_others()}).all()
    chosen = _fair(waiting, running, count, limits, share)
    if not chosen:
        return Batch([], more=True)
    with database.write() as connection:
        taken = connection.execute(asked.hold, {
            **moment, "chosen": chosen, "by": holder, "moment": now(), **until}).all()
    return Batch(sorted(taken, key=lambda row: chosen.index(row.id)), more=oldest[0].idle > len(taken))


def room(database: Database, connection: Connection, places: Collection[str], kind: str,
         limits: Limits) -> Counter[str]:
    """How many more actions of *kind* the limits allow at each of these hosts."""
    if kind not in limits:
        return Counter(dict.fromkeys(places, sys.maxsize))
    running = connection.execute(_statements(database.kind).at_hosts, {
        **_own(database, "clock"), "places": list(places), "kind": kind})
    found = Counter(dict.fromkeys(places, limits[kind]))
    found.subtract({row.host: row.running for row in running})
    return found


def begun(database: Database, connection: Connection, holder: str, new: Sequence[Mapping[str, Any]]) -> Sequence[Row]:
    """Insert actions that *holder* holds from the start, each of another server; returns their rows."""
    mine = {"by": holder, "state": "running", "attempts": 1, **_own(database, "until", LEASE)}
    return written(connection, _statements(database.kind).begun, actions.c.server_id, [{**one, **mine} for one in new])


def _own(database: Database, name: str, plus: float = 0.0) -> dict[str, Any]:
    """The parameter *name* of statements that need a moment, on SQLite, which has no clock of its own."""
    return {name: database.clock(plus)} if database.kind == "sqlite" else {}


class Statements(NamedTuple):
    """The statements of ``take``: whether there is anything; what can be taken, each row with the number of all that
    wait; a few of each project, host and kind except for full hosts; what runs; and taking (returns rows). Those of
    ``room`` and ``begun``."""

    any: Select[Any]
    waiting: Select[Any]
    each: Select[Any]
    running: Select[Any]
    hold: ReturningUpdate[Any]
    at_hosts: Select[Any]
    begun: Insert


@cache
def _statements(kind: str) -> Statements:
    """Made once for each engine. SQLite gets the moment as a parameter, PostgreSQL uses its clock."""
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
    there = actions.c.waits_for
    place = func.row_number().over(partition_by=(*by, there), order_by=actions.c.id)
    groups = select(actions.c.id, *by, there, place.label("place")).where(
        idle(actions), due, first, *_with_room()).subquery()
    # Another conductor may have taken it since: lock and condition decide.
    mine = select(actions.c.id).where(actions.c.id.in_(bindparam("chosen", expanding=True)), idle(actions), first)
    mine = mine.with_for_update(skip_locked=True)
    runs = (actions.c.state == "running", actions.c.lease_until >= clock)
    return Statements(
        select(actions.c.id).where(idle(actions)).limit(1),
        select(actions.c.id, *by, there, count).where(
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


def _with_room() -> Iterator[ColumnElement[bool]]:
    """Conditions for actions whose hosts are not at a limit, and have a share left. The hosts that are not so are
    parameters."""
    full: Any = bindparam("full", expanding=True)
    rest: Any = bindparam("beyond_share", expanding=True)
    others: Any = bindparam("beyond_others", expanding=True)
    host, there = actions.c.host, actions.c.waits_for
    yield or_(host.is_(None), and_(tuple_(host, actions.c.kind).not_in(full), host.not_in(rest)))
    yield or_(there.is_(None), there.not_in(others))


def _busy(running: Sequence[Row]) -> Counter[tuple[str | None, str]]:
    """How many of each kind run at each host."""
    busy: Counter[tuple[str | None, str]] = Counter()
    for row in running:
        busy[row.host, row.kind] += row.running
    return busy


def _full(running: Sequence[Row], limits: Limits) -> list[tuple[str, str]]:
    """Hosts and kinds that are at their limit."""
    return [(host, kind) for (host, kind), many in _busy(running).items() if host and many >= limits.get(
        kind, many + 1)]


def _fair(waiting: Sequence[Row], running: Sequence[Row], count: int, limits: Limits, share: HostShare) -> list[int]:
    """Ids of the actions to take: projects in turn, the one with the least running work first."""
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
        if not share.admits(row) or (row.host and limit is not None and busy[row.host, row.kind] >= limit):
            continue
        busy[row.host, row.kind] += 1
        share = share.with_one_more(row)
        work[project] += 1
        chosen.append(row.id)
    return chosen


def beat(database: Database, holder: str, numbers: Collection[int] | None = None) -> set[int]:
    """Renew the leases of *holder*; returns the ids of its actions that are to be cancelled. *numbers*: only these are
    renewed. Actions that it has taken without knowing, since the answer was lost, are left to others."""
    mine = [actions.c.holder == holder, actions.c.state == "running"]
    if numbers is not None:
        mine.append(actions.c.id.in_(numbers))
    with database.write() as connection:
        connection.execute(update(actions).where(*mine).values(lease_until=database.clock(LEASE)))
        return set(connection.execute(select(actions.c.id).where(*mine, actions.c.cancel.is_(True))).scalars())


def ended(connection: Connection, number: int, holder: str, state: str = "done", message: str | None = None,
          args: str | None = None) -> bool:
    """Mark the action as ended; ``False`` when another holder has it or it has ended already. *args*: what is kept of
    its arguments, where that is less."""
    told = {} if message is None else {"message": message}  # a warning from when it was asked for stays
    told |= {} if args is None else {"args": args}
    done = connection.execute(_ENDED, {"number": number, "by": holder, "state": state, "lease_until": None,
                                       "updated_at": now(), **told})
    return done.rowcount == 1


def warned(connection: Connection, number: int, text: str) -> None:
    """Add *text* to the action's message: a warning of what its host has done."""
    connection.execute(update(actions).where(actions.c.id == number).values(
        message=func.coalesce(actions.c.message + " ", "") + text))


def is_cancelled(connection: Connection, number: int) -> bool:
    """Return whether the action was cancelled; its row was changed in this transaction, so that nobody cancels it
    meanwhile."""
    return bool(connection.execute(select(actions.c.cancel).where(actions.c.id == number)).scalar())


def holds(connection: Connection, number: int, holder: str) -> bool:
    """Whether *holder* still has the action; in a ``write`` nobody else takes it before the transaction ends."""
    return connection.execute(_HELD, {"number": number, "by": holder}).first() is not None


def put_back(connection: Connection, number: int, holder: str, not_before: Any = None, **values: Any) -> None:
    """Put the action back into the queue, for not before a moment of the database's clock."""
    connection.execute(update(actions).where(actions.c.id == number, actions.c.holder == holder).values(
        state="queued", holder=None, lease_until=None, not_before=not_before, updated_at=now(), **values))


def let_go(database: Database, holder: str) -> None:
    """Put all actions of *holder* back at once: the conductor ends."""
    with database.write() as connection:
        connection.execute(update(actions).where(actions.c.holder == holder, actions.c.state == "running").values(
            state="queued", holder=None, lease_until=None))
        database.ring(connection, "actions")


def started(connection: Connection, number: int, event: str, host: str | None) -> int:
    """An event of an action begins; returns its id."""
    found = connection.execute(_HAPPENED, {"action_id": number, "event": event, "start_time": now(), "host": host})
    return int(found.inserted_primary_key[0])  # type: ignore[index]


def went_on(connection: Connection, going: Mapping[int, str | None], before: Mapping[str, Any],
            event: str) -> dict[int, int]:
    """For each action, one event has ended well (*before*: its name, host and start_time) and another begins. *going*:
    the host of the new event, by the action's id. Returns the ids of the new events, by the action's id."""
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
    """Insert an event that has ended already."""
    connection.execute(_HAPPENED, {
        "action_id": number, "event": event, "start_time": start_time, "finish_time": now(), "host": host,
        "result": result, "details": details})


def cut_off(connection: Connection, number: int) -> None:
    """Another attempt of an action begins, or none will: events of one that was cut off have ended."""
    connection.execute(_CUT_OFF, {"number": number, "finish_time": now()})


def finished(connection: Connection, event: int, result: str, host: str | None = None, details: str | None = None,
             traceback: str | None = None, finish_time: str | None = None) -> None:
    """An event has ended (now, when no time is given). *result*: Success or Error."""
    values = {"finish_time": finish_time or now(), "result": result, "details": details, "traceback": traceback}
    if host is not None:
        values["host"] = host
    connection.execute(_FINISHED, {"number": event, **values})
