# SPDX-License-Identifier: GPL-3.0-or-later
"""A new server finds its host: the flow of ``create`` in cell0.

Choose and claim (one transaction of the API database, which also says in which cell the server is), then move the
server into its cell: what cell0 loses is settled after what the cell gains. Each step may be done twice; the claim says
whether the first was done already. Servers that were taken from the queue at once go together.
Where this conductor works for that cell and the host bears one more, it has the creation there in hand and begun at
once, and goes on with it; else whoever takes it from the cell's queue does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from sqlalchemy import select

from magnetar_control.scheduler.choose import NO_VALID_HOST, NoValidHost
from magnetar_control.scheduler.place import place, place_all
from magnetar_control.store import actions, allocations, servers
from magnetar_control.store.database import Database, now
from magnetar_control.store.tables import server_mappings
from magnetar_control.store.timeouts import statement_timeout

from .failures import admin_message
from .lease import leased
from .placement import RANDOM, NoHost, spec_of
from .work import Continuation, Work

EVENT = "schedule_instances"
#: Seconds that each statement of a cell has while cell0 waits for it.
PATIENCE = actions.LEASE / 4


class Placed(NamedTuple):
    """A new server, and the host and the cell (its uuid) that it goes to."""

    work: Work
    host: str
    cell_id: str


def schedule(work: Work) -> None:
    """``create`` of a server in cell0."""
    began = now()
    again = work.action.attempts > 1
    if again and (there := _arrived(work)):
        with work.database.write() as source:
            for left in servers.leave(source, [work.id]):
                with statement_timeout(PATIENCE), there.write() as connection:
                    servers.follow(connection, left)
                    there.ring(connection, servers.ACTIONS_BELL)
        return
    found = _held(work) if again else None
    if found is None:
        settling = work.conductor.settling()
        try:
            found = _place(work)
        except NoHost as error:
            if settling:
                work.later(1.0)
                return
            why = admin_message(error)
            work.also.append(lambda connection: actions.happened(
                connection, work.action.id, EVENT, work.conductor.name, began, "Error", why))
            work.error(error)
            return
    _enter([found], began)


def together(works: Sequence[Work]) -> list[Work]:
    """``create`` of servers in cell0 that nobody began before: what each step writes of all of them is written at once,
    which takes little longer than of one. Returns those that are left to ``schedule``, with nothing done. When this
    fails, anything may be done of the others."""
    began, conductor = now(), works[0].conductor

    def sure() -> None:
        for work in works:
            work.confirm_old_lease()

    plain = {work.id: work for work in works if work.server.hints == "{}"}  # others may depend on one another
    found = place_all(leased(sure, conductor.store.api), conductor.states,
                      [spec_of(work) for work in plain.values()], random=RANDOM)
    of_cell: dict[str, list[Placed]] = {}
    for id, one in found.items():
        of_cell.setdefault(one.cell_id, []).append(Placed(plain[id], one.host, one.cell_id))
    for placed in of_cell.values():
        _enter(placed, began)
    return [work for work in works if work.id not in found]


def _enter(placed: Sequence[Placed], began: str) -> None:
    """Servers go from cell0 into one cell. ``continuation`` of their works is what to go on with there, if anything."""
    work, going = placed[0].work, {one.work.id: one for one in placed}
    target = work.conductor.store.cell(placed[0].cell_id)
    with work.database.write() as source:
        leaving = [(left, going[left.server["id"]]) for left in servers.leave(source, going)]
        if leaving:
            with statement_timeout(PATIENCE):  # leases of cell0 are not kept while this waits
                _arrive(target, leaving, began)


def _arrive(target: Database, leaving: Sequence[tuple[servers.LeavingServer, Placed]], began: str) -> None:
    """The servers in their cell. As many are begun there as their hosts bear; the others wait in its queue."""
    work = leaving[0][1].work
    conductor, chosen = work.conductor, {"event": EVENT, "host": work.conductor.name, "start_time": began}
    begun: list[tuple[servers.LeavingServer, str]] = []
    queued: list[tuple[servers.LeavingServer, str]] = []
    with target.write() as connection:
        room = conductor.room(target, connection, {placed.host for _left, placed in leaving}, work.action.kind)
        for left, placed in leaving:
            (begun if room[placed.host] > 0 else queued).append((left, placed.host))
            room[placed.host] -= 1
        begin = partial(actions.begun, target, connection, conductor.holder)
        arrived = servers.arrive(connection, begun, begin) if begun else []
        events = actions.went_on(
            connection, {one.creation.id: one.creation.host for one in arrived}, chosen, work.rule.event)
        for one in servers.arrive(connection, queued) if queued else ():
            actions.happened(connection, one.creation.id, **chosen)
        if len(arrived) < len(leaving) or not all(one.alone for one in arrived):
            target.ring(connection, servers.ACTIONS_BELL)
    works = {placed.work.id: placed.work for _left, placed in leaving}
    for one in arrived:
        works[one.server.id].continuation = Continuation(target, one.creation, one.server, events[one.creation.id])


def _arrived(work: Work) -> Database | None:
    """The cell's database, where a crash came after the server had arrived there: it lives there, or has been deleted
    there since."""
    store = work.conductor.store
    with store.api.read() as connection:
        cell = connection.execute(select(server_mappings.c.cell_id).where(
            server_mappings.c.server_id == work.id)).scalar()
    if cell is None:
        return None
    there = store.cell(cell)
    with there.read() as connection:
        return there if servers.row(connection, work.id) is not None else None


def _held(work: Work) -> Placed | None:
    """What was claimed before a crash."""
    with work.conductor.store.api.read() as connection:
        for row in allocations.held(connection, work.id):
            return Placed(work, row["host"], row["cell_id"])
    return None


def _place(work: Work) -> Placed:
    api = leased(work.confirm_old_lease, work.conductor.store.api)
    try:
        found = place(api, work.conductor.states, spec_of(work), random=RANDOM)
    except NoValidHost as error:
        raise NoHost(NO_VALID_HOST, explanation=error.explanation.text()) from error
    return Placed(work, found.host, found.cell_id)
