# SPDX-License-Identifier: GPL-3.0-or-later
"""The action table as a queue. Conductors lease actions, one action of a server at a time, within the limits of hosts.

Heartbeats renew leases; another conductor takes over the actions of a dead one. Leases are timed by the database's
clock. Rows stay when the actions are done: they are the instance actions of the API.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache, partial
from typing import Any, NamedTuple

import orjson
from sqlalchemy import (
    Connection,
    Table,
    and_,
    bindparam,
    exists,
    func,
    insert,
    literal,
    literal_column,
    null,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.sql.dml import ReturningUpdate
from sqlalchemy.sql.expression import Alias, BindParameter, ColumnElement, Insert, Select
from sqlalchemy.types import BigInteger, Integer, String

from magnetar_control.store.engine.database import Database, insert_returning_rows, postgresql_now, utc_now
from magnetar_control.store.engine.prepared import PreparedQuery
from magnetar_control.store.engine.tables import OPEN_ACTION, action_events, actions

from .action_row import ActionRow, QueuedAction, RunningActions

#: Seconds that a lease lasts, and between two heartbeats. Actions of a dead conductor are taken over within 15 s.
LEASE, HEARTBEAT = 12.0, 3.0
#: Rows of the queue that are read for each action to lease.
LOOKED_AT = 8
Limits = Mapping[str, int]


@dataclass(frozen=True)
class HostLimits:
    """The limits on how many actions (operations on servers) one conductor may lease for each host. An action counts
    for its server's host and, while it waits for another host, also for that host.

    *most*: a function that returns the limit of a host. *held*: {host: number of leased actions}. *others*: {host:
    number of the leased actions that wait for this host, although their server is on another host}. Such actions may
    use only half of the limit: if the host does not answer, they must not block the actions of the servers on it.
    """

    most: Callable[[str], int] = lambda _host: sys.maxsize
    held: Counter[str] = field(default_factory=Counter)
    others: Counter[str] = field(default_factory=Counter)

    def left(self, host: str) -> int:
        """Return how many more actions may be leased for *host*."""
        return self.most(host) - self.held[host]

    def left_for_others(self, host: str) -> int:
        """Return how many more actions that wait for *host*, but whose server is on another host, may be leased."""
        return min(self.left(host), max(1, self.most(host) // 2) - self.others[host])

    def full(self) -> list[str]:
        """Return the hosts whose limit is reached, so that further actions for them must wait."""
        return [host for host in self.held if self.left(host) <= 0]

    def full_for_others(self) -> list[str]:
        """Return the hosts that cannot get further actions of servers on other hosts (see ``left_for_others``)."""
        return [host for host in self.held if self.left_for_others(host) <= 0]

    def admits(self, row: QueuedAction) -> bool:
        """Return whether the limits allow leasing the queued action *row*."""
        return (not row.host or self.left(row.host) > 0) and (
            not row.waits_for or self.left_for_others(row.waits_for) > 0)

    def with_one_more(self, row: QueuedAction) -> HostLimits:
        """Return a copy of the limits that counts the queued action *row* as leased."""
        other = [row.waits_for] if row.waits_for else []
        return replace(self, held=self.held + Counter([*other, *([row.host] if row.host else [])]),
                       others=self.others + Counter(other))


#: The share of a conductor without limits.
ALL = HostLimits()


def is_open_action(of: Table | Alias = actions) -> ColumnElement[bool]:
    """Return the SQL condition for queued and running actions. The condition has no parameters, so that databases use
    the partial index of the queue. *of*: the table of actions, or an alias."""
    return literal_column(f"{of.name}.{OPEN_ACTION}")


_other, _any = actions.alias("other"), actions.alias("any_action")
#: Statements, built once: building one takes longer than executing it.
_NUMBER: BindParameter[int] = bindparam("number", type_=BigInteger)
_MINE = (actions.c.id == _NUMBER, actions.c.holder == bindparam("by"))
_HELD = select(actions.c.id).where(*_MINE, actions.c.state == "running").with_for_update()
_ENDED = update(actions).where(*_MINE, actions.c.state == "running")
_HAPPENED = insert(action_events)
#: Insert an event that has ended and the next one. SQLAlchemy does not cache statements with several VALUES.
_WENT_ON = insert(action_events).from_select(
    ["action_id", "event", "host", "start_time", "finish_time", "result"],
    select(_NUMBER, *(bindparam(name, type_=String) for name in ("ended", "by", "since", "moment")), literal(
        "Success")).union_all(select(_NUMBER, *(bindparam(name, type_=String) for name in (
            "begun", "at_host", "moment")), null(), null()))).returning(action_events.c.id)
_FINISHED = update(action_events).where(action_events.c.id == _NUMBER)
_CUT_OFF = update(action_events).where(
    action_events.c.action_id == _NUMBER, action_events.c.finish_time.is_(None)).values(
    result="Error", details="interrupted: the conductor ended, stood still, or could not write.")
#: Name of the argument with the guest's new password.
ADMIN_PASS = "admin_pass"  # noqa: S105 - a name


class Batch(NamedTuple):
    """The result of ``lease_next_actions``. *rows*: the leased actions, sorted so that projects alternate. *more*:
    whether the queue has further actions, which may be leased later: when other actions end, or when their delay is
    over."""

    rows: list[ActionRow]
    more: bool


def lease_next_actions(database: Database, holder: str, count: int, limits: Limits, likely: bool = False,
                       share: HostLimits = ALL) -> Batch:
    """Lease up to *count* queued actions for the conductor *holder*, and return them. Projects and hosts take turns, so
    that a project or host with many queued actions does not block others.

    *limits*: {kind (build; live: live migration): how many actions of this kind may run on a host at the same time}.
    *share*: the conductor's limits for each host. *likely*: true if ``Batch.more`` of the last call was true; then the
    first check for queued actions is skipped.
    """
    statements = _statements(database.kind)
    moment, until = _time_parameters(database, "clock"), _time_parameters(database, "until", LEASE)
    with database.read() as connection:  # usually there is nothing to do, and reading locks nothing
        if not likely and statements.any.first(connection, moment) is None:
            return Batch([], more=False)
        most = count * LOOKED_AT
        found = statements.waiting.all(connection, {**moment, "most": most, "beyond": count + 1})
        waiting = [QueuedAction(*row[:-1]) for row in found]
        if not waiting:
            return Batch([], more=not likely or statements.any.first(connection, moment) is not None)
        # Running actions matter only with several projects, or with hosts that have a limit.
        deep = len(waiting) == most
        matters = deep or len({row.project_id for row in waiting}) > 1 or any(
            row.host and row.kind in limits for row in waiting)
        running = [*map(RunningActions._make, connection.execute(statements.running, moment))] if matters else []
        if deep:  # the oldest rows may all belong to one project, or wait for one host
            waiting = [*map(QueuedAction._make, connection.execute(statements.each, {
                **moment, "each": count, "most": most, "full": _full(running, limits),
                "beyond_share": share.full(), "beyond_others": share.full_for_others()}))]
    chosen = _fair(waiting, running, count, limits, share)
    if not chosen:
        return Batch([], more=True)
    with database.write() as connection:
        taken = ActionRow.several(connection.execute(statements.hold, {
            **moment, "chosen": chosen, "by": holder, "moment": utc_now(), **until}))
    return Batch(sorted(taken, key=lambda row: chosen.index(row.id)), more=found[0].idle > len(taken))


def seconds_until_due(database: Database) -> float | None:
    """Return the seconds until the next delayed action in the queue may start; ``None`` if no action is delayed."""
    with database.read() as connection:
        due_at, now = connection.execute(_statements(database.kind).due_at, _time_parameters(database, "clock")).one()
    return None if due_at is None else max(
        0.0, (datetime.fromisoformat(due_at) - datetime.fromisoformat(now)).total_seconds())


def free_action_slots(database: Database, connection: Connection, places: Collection[str], kind: str,
                      limits: Limits) -> Counter[str]:
    """Return how many more actions of *kind* may run on each of the hosts *places*: {host: number}. *limits*: {kind:
    limit for each host}; a kind without a limit has ``sys.maxsize``."""
    if kind not in limits:
        return Counter(dict.fromkeys(places, sys.maxsize))
    running = connection.execute(_statements(database.kind).at_hosts, {
        **_time_parameters(database, "clock"), "places": list(places), "kind": kind})
    slots = Counter(dict.fromkeys(places, limits[kind]))
    slots.subtract({row.host: row.running for row in running})
    return slots


def insert_running_actions(database: Database, connection: Connection, holder: str,
                           new: Sequence[Mapping[str, Any]]) -> list[ActionRow]:
    """Insert the actions *new* as running actions that the conductor *holder* has leased, without queueing them. *new*:
    the column values of each action; each action must be for a different server. Return the rows of the actions."""
    mine = {"by": holder, "state": "running", "attempts": 1, **_time_parameters(database, "until", LEASE)}
    inserted = insert_returning_rows(connection, _statements(database.kind).begun, actions.c.server_id,
                                     [{**values, **mine} for values in new])
    return [ActionRow.of_values(row._mapping) for row in inserted]  # noqa: SLF001 - SQLAlchemy's name


def _time_parameters(database: Database, name: str, plus: float = 0.0) -> dict[str, Any]:
    """Return the parameters that pass the present time to an SQL statement: {*name*: time *plus* seconds from now} for
    SQLite, and {} for PostgreSQL, where the statements use the clock of the database."""
    return {name: database.clock(plus)} if database.kind == "sqlite" else {}


class Statements(NamedTuple):
    """The prepared SQL statements for the queue of actions.

    *any*: find one idle action (no conductor works on it). *waiting*: find the actions that can be leased; each result
    row also has the number of all idle actions. *each*: find a few actions of each project, host and kind, without
    hosts whose limit is reached. *running*: count the running actions. *hold*: lease actions and return their rows.
    *at_hosts*: count the running actions by host. *begun*: insert running actions. *due_at*: find the time when the
    first delay of an action ends, and the present time.
    """

    any: PreparedQuery
    waiting: PreparedQuery
    each: Select[Any]
    running: Select[Any]
    hold: ReturningUpdate[Any]
    at_hosts: Select[Any]
    begun: Insert
    due_at: Select[Any]


@cache
def _statements(kind: str) -> Statements:
    """Return the prepared SQL statements for the database engine *kind*. They are built once. SQLite gets the time as a
    parameter, PostgreSQL uses the clock of the database."""
    clock: Any = bindparam("clock", type_=String)
    until: Any = bindparam("until", type_=String)
    if kind == "postgresql":
        clock, until = postgresql_now(), postgresql_now(LEASE)

    idle = partial(_idle_condition, clock=clock)
    first = ~exists().where(_other.c.server_id == actions.c.server_id, _other.c.id != actions.c.id, or_(
        and_(_other.c.state == "running", _other.c.lease_until >= clock),
        and_(or_(_other.c.state == "queued", _other.c.state == "running"), _other.c.id < actions.c.id)))
    due = or_(actions.c.not_before.is_(None), actions.c.not_before <= clock)
    by = (actions.c.host, actions.c.kind, actions.c.project_id)
    some = select(_any.c.id).where(idle(_any)).limit(bindparam("beyond", type_=Integer)).subquery()
    count = select(func.count()).select_from(some).scalar_subquery().label("idle")
    waits_for = actions.c.waits_for
    place = func.row_number().over(partition_by=(*by, waits_for), order_by=actions.c.id)
    groups = select(actions.c.id, *by, waits_for, place.label("place")).where(
        idle(actions), due, first, *_with_room()).subquery()
    # Another conductor may have leased the action since: the lock and the condition decide.
    mine = select(actions.c.id).where(actions.c.id.in_(bindparam("chosen", expanding=True)), idle(actions), first)
    mine = mine.with_for_update(skip_locked=True)
    runs = (is_open_action(), actions.c.state == "running", actions.c.lease_until >= clock)
    return Statements(
        PreparedQuery(select(actions.c.id).where(idle(actions)).limit(1)),
        PreparedQuery(select(actions.c.id, *by, waits_for, count).where(
            idle(actions), due, first).order_by(actions.c.id).limit(bindparam("most", type_=Integer))),
        select(*groups.c[QueuedAction._fields]).where(groups.c.place <= bindparam("each", type_=Integer)).order_by(
            groups.c.place, groups.c.id).limit(bindparam("most", type_=Integer)),
        select(*by, func.count().label("running")).where(*runs).group_by(*by),
        update(actions).where(actions.c.id.in_(mine)).values(
            state="running", holder=bindparam("by"), lease_until=until, attempts=actions.c.attempts + 1,
            updated_at=bindparam("moment")).returning(*actions.c[ActionRow.columns]),
        select(actions.c.host, func.count().label("running")).where(
            *runs, actions.c.host.in_(bindparam("places", expanding=True)),
            actions.c.kind == bindparam("kind")).group_by(actions.c.host),
        insert(actions).values(holder=bindparam("by"), lease_until=until),
        select(func.min(actions.c.not_before), clock).where(
            is_open_action(), actions.c.state == "queued", actions.c.not_before > clock))


def _idle_condition(table: Any, clock: Any) -> ColumnElement[bool]:
    """Return the SQL condition for idle actions: they are queued, or the lease of their conductor has expired. *table*:
    the table of actions, or an alias. *clock*: the SQL expression for the present time."""
    return and_(is_open_action(table), or_(
        table.c.state == "queued", and_(table.c.state == "running", table.c.lease_until < clock)))


def _with_room() -> Iterator[ColumnElement[bool]]:
    """Yield two SQL conditions for actions whose hosts have not reached a limit. The first is for the server's host,
    the second for the host that the action waits for. The parameters ``full``, ``beyond_share`` and ``beyond_others``
    contain the hosts that have reached a limit."""
    full: Any = bindparam("full", expanding=True)
    hosts_beyond_share: Any = bindparam("beyond_share", expanding=True)
    hosts_beyond_others: Any = bindparam("beyond_others", expanding=True)
    host, waits_for = actions.c.host, actions.c.waits_for
    yield or_(host.is_(None), and_(tuple_(host, actions.c.kind).not_in(full), host.not_in(hosts_beyond_share)))
    yield or_(waits_for.is_(None), waits_for.not_in(hosts_beyond_others))


def _busy(running: Sequence[RunningActions]) -> Counter[tuple[str | None, str]]:
    """Return the total number of the *running* actions for each host and kind: {(host, kind): number}."""
    busy: Counter[tuple[str | None, str]] = Counter()
    for row in running:
        busy[row.host, row.kind] += row.running
    return busy


def _full(running: Sequence[RunningActions], limits: Limits) -> list[tuple[str, str]]:
    """Return the pairs (host, kind) whose number of *running* actions reaches the limit. *limits*: {kind: limit for
    each host}."""
    return [(host, kind) for (host, kind), many in _busy(running).items() if host and many >= limits.get(
        kind, many + 1)]


def _fair(waiting: Sequence[QueuedAction], running: Sequence[RunningActions], count: int, limits: Limits,
          share: HostLimits) -> list[int]:
    """Choose which of the *waiting* actions to lease, and return their ids. At most *count* are chosen, within *limits*
    (by kind) and *share* (by host). Projects take turns, and the project with the fewest running actions is first."""
    busy = _busy(running)
    work: Counter[str] = Counter()
    for group in running:
        work[group.project_id] += group.running
    queues: dict[str, list[QueuedAction]] = {}
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


def renew_action_leases(database: Database, holder: str, numbers: Collection[int] | None = None) -> set[int]:
    """Renew the leases of the conductor *holder*. Return the ids of its actions that were cancelled.

    *numbers*: the ids of the actions that *holder* is executing; ``None``: all that it has leased. Other leases are not
    renewed: if *holder* never received the answer to a lease, the lease expires, and another conductor takes the
    action.
    """
    mine = [is_open_action(), actions.c.holder == holder, actions.c.state == "running"]
    if numbers is not None:
        mine.append(actions.c.id.in_(numbers))
    with database.write() as connection:
        connection.execute(update(actions).where(*mine).values(lease_until=database.clock(LEASE)))
        return set(connection.execute(select(actions.c.id).where(*mine, actions.c.cancel.is_(True))).scalars())


def end_action_row(connection: Connection, number: int, holder: str, state: str = "done", message: str | None = None,
                   args: str | None = None) -> bool:
    """Set the action *number* to *state*, such as done, and end its lease. Return ``False`` if *holder* no longer has
    the lease.

    *message*: the new message of the action for users; ``None``: do not change it. *args*: JSON text that replaces the
    stored arguments, for example to remove a password.
    """
    changes = {} if message is None else {"message": message}  # keep the warning of the request
    changes |= {} if args is None else {"args": args}
    done = connection.execute(_ENDED, {"number": number, "by": holder, "state": state, "lease_until": None,
                                       "updated_at": utc_now(), **changes})
    return done.rowcount == 1


def append_action_warning(connection: Connection, number: int, text: str) -> None:
    """Append the warning *text* to the message of the action *number*."""
    connection.execute(update(actions).where(actions.c.id == number).values(
        message=func.coalesce(actions.c.message + " ", "") + text))


def is_cancelled(connection: Connection, number: int) -> bool:
    """Return whether a client has cancelled the action *number*. Call this after changing the action's row in the same
    transaction, because the row is then locked, and the action cannot be cancelled before the transaction ends."""
    return bool(connection.execute(select(actions.c.cancel).where(actions.c.id == number)).scalar())


def holds_action_lease(connection: Connection, number: int, holder: str) -> bool:
    """Return whether *holder* still has the lease of the action *number*. In a ``write`` transaction this also locks
    the row, so that no other conductor can lease the action until the transaction ends."""
    return connection.execute(_HELD, {"number": number, "by": holder}).first() is not None


def requeue_action_row(connection: Connection, number: int, holder: str, not_before: Any = None, **values: Any) -> None:
    """Put the action *number* of the conductor *holder* back into the queue. *not_before*: when it may be leased again,
    by the clock of the database; ``None``: immediately. *values*: further columns to set."""
    connection.execute(update(actions).where(actions.c.id == number, actions.c.holder == holder).values(
        state="queued", holder=None, lease_until=None, not_before=not_before, updated_at=utc_now(), **values))


def requeue_held_actions(database: Database, holder: str) -> None:
    """Put all actions that *holder* has leased back into the queue, because this conductor stops. Other conductors can
    lease them immediately."""
    with database.write() as connection:
        connection.execute(update(actions).where(
            is_open_action(), actions.c.holder == holder, actions.c.state == "running").values(
            state="queued", holder=None, lease_until=None))
        database.notify(connection, "actions")


def insert_event_row(connection: Connection, number: int, event: str, host: str | None) -> int:
    """Insert a new event (a step) of the action *number*, which starts now. Return the id of the event."""
    inserted = connection.execute(_HAPPENED, {"action_id": number, "event": event, "start_time": utc_now(),
                                              "host": host})
    return int(inserted.inserted_primary_key[0])  # type: ignore[index]


def advance_event_rows(connection: Connection, going: Mapping[int, str | None], ended_event: Mapping[str, Any],
                       event: str) -> dict[int, int]:
    """Insert two events (steps) for each of several actions: *ended_event* ({event, host, start_time}), which has just
    succeeded, and the event called *event*, which starts now.

    *going*: {id of the action: host of the new event}. Return the new events: {id of the action: id of the event that
    starts now}.
    """
    if not going:
        return {}
    moment = utc_now()
    if len(going) == 1:
        [(number, host)] = going.items()
        event_ids = connection.execute(_WENT_ON, {
            "number": number, "ended": ended_event["event"], "by": ended_event["host"],
            "since": ended_event["start_time"],
            "moment": moment, "begun": event, "at_host": host}).scalars()
        return {number: max(map(int, event_ids))}
    both = [{"action_id": number, **values} for number, host in going.items() for values in (
        {**ended_event, "finish_time": moment, "result": "Success"},
        {"event": event, "host": host, "start_time": moment, "finish_time": None, "result": None})]
    return {row.action_id: row.id for row in insert_returning_rows(connection, _HAPPENED, action_events.c.action_id,
                                                                   both)
            if row.finish_time is None}


def insert_ended_event(connection: Connection, number: int, event: str, host: str | None, start_time: str,
                       result: str = "Success", details: str | None = None) -> None:
    """Insert a completed event (a step) of the action *number*: it began at *start_time* and ends now. *result*:
    ``Success`` or ``Error``. *details*: the error text."""
    connection.execute(_HAPPENED, {
        "action_id": number, "event": event, "start_time": start_time, "finish_time": utc_now(), "host": host,
        "result": result, "details": details})


def interrupt_event_rows(connection: Connection, number: int) -> None:
    """End all unfinished events (steps) of the action *number* with the result ``Error``, because the conductor was
    interrupted. Call this when the action is started again, or ends."""
    connection.execute(_CUT_OFF, {"number": number, "finish_time": utc_now()})


def end_event_row(connection: Connection, event: int, result: str, host: str | None = None, details: str | None = None,
                  traceback: str | None = None, finish_time: str | None = None) -> None:
    """End the event (a step of an action) with the id *event*. *result*: ``Success`` or ``Error``. *finish_time*: by
    default now."""
    values = {"finish_time": finish_time or utc_now(), "result": result, "details": details, "traceback": traceback}
    if host is not None:
        values["host"] = host
    connection.execute(_FINISHED, {"number": event, **values})


def password_argument(password: str | None) -> Mapping[str, str]:
    """Return the argument of an action that carries the new password of the guest: {``admin_pass``: *password*}; empty
    without a password."""
    return {ADMIN_PASS: password} if password else {}


def strip_password_argument(args: str) -> str | None:
    """Remove the password from *args*, the JSON text of an action's arguments, and return the remaining JSON text.
    Return ``None`` if there is no password in them."""
    if f'"{ADMIN_PASS}"' not in args:
        return None
    remaining: dict[str, Any] = {name: value for name, value in orjson.loads(args).items() if name != ADMIN_PASS}
    return orjson.dumps(remaining).decode()


def clear_action_delays(connection: Connection, server_id: str) -> None:
    """Let the delayed actions of a server start immediately. Called when an evacuation is queued behind these actions:
    if the server's host does not answer, the actions fail now, instead of delaying the evacuation."""
    connection.execute(update(actions).where(actions.c.server_id == server_id, actions.c.state == "queued").values(
        not_before=None))


def evacuation_is_queued(connection: Connection, server_id: str) -> bool:
    """Return whether an evacuation of the server is queued and has not started yet."""
    return connection.execute(select(actions.c.id).where(
        actions.c.server_id == server_id, actions.c.action == "evacuate", actions.c.state == "queued").limit(
        1)).first() is not None


def update_evacuation_row(connection: Connection, number: int, **values: Any) -> None:
    """Set the columns *values* of a running evacuation in the table ``actions``. *number*: the id of its row."""
    connection.execute(update(actions).where(actions.c.id == number).values(updated_at=utc_now(), **values))
