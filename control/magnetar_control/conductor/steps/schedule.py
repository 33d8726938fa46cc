# SPDX-License-Identifier: GPL-3.0-or-later
"""The flow of ``create`` in cell0: find a host for a new server, and move its row into the host's cell.

Choose and claim in one transaction of the API database, which also maps the server to the cell. Then move the row: the
cell commits before cell0 does. Each step may be done twice; the claim tells whether the first was done already. Servers
that were taken from the queue together are moved together.
If the cell is this conductor's own and the host's limit allows one more build, this conductor holds the action in the
cell from the start and goes on with it. Otherwise the action waits in the cell's queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Connection, insert
from sqlalchemy.exc import IntegrityError

from magnetar_control.conductor.worker.environment import Environment
from magnetar_control.conductor.worker.work import Continuation, Work, admin_message, leased
from magnetar_control.notifications import START, Initiator, ServerEvent, key_of, selected
from magnetar_control.scheduler.choose import NoValidHost
from magnetar_control.scheduler.place import place, place_all
from magnetar_control.scheduler.request_spec import RequestSpec, of_server
from magnetar_control.store.actions import actions
from magnetar_control.store.claims import allocations
from magnetar_control.store.engine.database import Database, now
from magnetar_control.store.engine.tables import server_group_members
from magnetar_control.store.engine.timeouts import statement_timeout
from magnetar_control.store.servers import servers

from . import block_devices, nics

EVENT = "schedule_instances"
#: Seconds for each statement of a cell while cell0's transaction waits for it.
PATIENCE = actions.LEASE / 4
RANDOM = Random()  # noqa: S311 - which of equals
#: Seconds between two searches for a host for a server that waits for one to come back: at first, and at most.
AGAIN, SELDOM = 1.0, 5.0


def spec_of(work: Work, flavor: Mapping[str, Any] | None = None, **over: Any) -> RequestSpec:
    """What the scheduler is asked for the server of an action; see ``request_spec.of_server``."""
    conductor = work.conductor
    if group := orjson.loads(work.server.hints).get("group"):  # whose member it is from now on
        with suppress(IntegrityError), conductor.store.api.write() as connection:  # it is, or the group was deleted
            connection.execute(insert(server_group_members).values(group_id=group, server_id=work.id))
    row = work.server._mapping  # noqa: SLF001 - SQLAlchemy's name
    return of_server(conductor.store.api, conductor.services.volume, work.context(), row, flavor, **over)


def pause(work: Work) -> float:
    """Return the seconds until a host is searched again for a server that waits for one."""
    return min(AGAIN * float(work.action.attempts), SELDOM)


class Placed(NamedTuple):
    """A new server, its host, and the uuid of its cell."""

    work: Work
    host: str
    cell_id: str


def schedule(work: Work) -> None:
    """``create`` of a server in cell0."""
    began = now()
    again = work.action.attempts > 1
    if again and (there := _cell_of_arrived(work)):
        with work.database.write() as source:
            for left in servers.leave(source, [work.id]):
                with statement_timeout(PATIENCE), there.write() as connection:
                    servers.follow(connection, left)
                    there.ring(connection, servers.ACTIONS_BELL)
        return
    found = None
    if again:
        with work.conductor.store.api.read() as connection:  # the host that was claimed before a crash
            held = allocations.held(connection, work.id)
        found = next((Placed(work, row["host"], row["cell_id"]) for row in held), None)
    if found is None:
        spec, settling = spec_of(work), work.conductor.settling()
        try:
            found = _place(work, spec)
        except NoValidHost as error:
            if settling or work.conductor.awaits_host(spec):
                work.put_back(pause(work))
                return
            block_devices.free_reserved(work)
            nics.free_reserved(work)
            why = admin_message(error)
            work.end_writes.append(lambda connection: actions.happened(
                connection, work.action.id, EVENT, work.conductor.name, began, "Error", why))
            work.error(error)
            return
    _enter([found], began)


def schedule_together(works: Sequence[Work]) -> list[Work]:
    """``create`` of several servers in cell0, at their first attempt; each step writes all at once. Returns those that
    are left to ``schedule``, with nothing done. When this raises, any of the steps may be done for the others."""
    began, conductor = now(), works[0].conductor

    def sure() -> None:
        for work in works:
            work.confirm_old_lease()

    plain = {work.id: work for work in works if work.server.hints == "{}"}  # those with hints may depend on one another
    found = place_all(leased(sure, conductor.store.api), conductor.current_states(),
                      [spec_of(work) for work in plain.values()], random=RANDOM)
    of_cell: dict[str, list[Placed]] = {}
    for id, one in found.items():
        of_cell.setdefault(one.cell_id, []).append(Placed(plain[id], one.host, one.cell_id))
    for placed in of_cell.values():
        _enter(placed, began)
    return [work for work in works if work.id not in found]


def _enter(placed: Sequence[Placed], began: str) -> None:
    """Move servers from cell0 into one cell. A work's ``continuation`` is its action there, if that is begun."""
    work, going = placed[0].work, {one.work.id: one for one in placed}
    target = work.conductor.store.cell(placed[0].cell_id)
    with work.database.write() as source:
        leaving = [(left, going[left.server["id"]]) for left in servers.leave(source, going)]
        if leaving:
            with statement_timeout(PATIENCE):  # leases of cell0 are not kept while this waits
                _arrive(target, leaving, began)


def _arrive(target: Database, leaving: Sequence[tuple[servers.LeavingServer, Placed]], began: str) -> None:
    """Write the servers into their cell, and count those that are begun."""
    conductor = leaving[0][1].work.conductor
    works = {placed.work.id: placed.work for _left, placed in leaving}
    with conductor.choosing(target) as mine:
        arrived, events = _written(target, leaving, began, mine)
        for one in arrived:
            conductor.shares.begin((target.name, one.creation.id), one.creation.host)
    for one in arrived:
        works[one.server.id].continuation = Continuation(target, one.creation, one.server, events[one.creation.id])


def _written(target: Database, leaving: Sequence[tuple[servers.LeavingServer, Placed]], began: str,
             begins: bool) -> tuple[Sequence[servers.ArrivedServer], dict[int, int]]:
    """Write the servers. As many are begun as the limits of hosts allow, if it *begins* any; others wait in the queue.
    Returns those, and the events that they have begun with by the number of their action."""
    work = leaving[0][1].work
    conductor, chosen = work.conductor, {"event": EVENT, "host": work.conductor.name, "start_time": began}
    begun: list[tuple[servers.LeavingServer, str]] = []
    queued: list[tuple[servers.LeavingServer, str]] = []
    hosts = {placed.host for _left, placed in leaving}
    with target.write() as connection:
        room = conductor.room(target, connection, hosts, work.action.kind) if begins else Counter[str]()
        for left, placed in leaving:
            (begun if room[placed.host] > 0 else queued).append((left, placed.host))
            room[placed.host] -= 1
        begin = partial(actions.begun, target, connection, conductor.holder)
        arrived = servers.arrive(connection, begun, begin) if begun else []
        events = actions.went_on(
            connection, {one.creation.id: one.creation.host for one in arrived}, chosen, work.rule.event)
        waiting = servers.arrive(connection, queued) if queued else []
        for one in waiting:
            actions.happened(connection, one.creation.id, **chosen)
        if conductor.notifications:
            _tell(conductor, connection, arrived, begun=True)
            _tell(conductor, connection, waiting, begun=False)
        if len(arrived) < len(leaving) or not all(one.alone for one in arrived):
            target.ring(connection, servers.ACTIONS_BELL)
    return arrived, events


def _tell(conductor: Environment, connection: Connection, arrived: Sequence[servers.ArrivedServer], *,
          begun: bool) -> None:
    """Tell that hosts were found, and of those that have *begun* that they have."""
    for one in arrived:
        made, host = one.creation, one.creation.host
        who, key = Initiator.of(made), key_of(made)
        events = selected(who, {}, conductor.name, f"{key}.{host}")
        if begun:
            events.append(ServerEvent("create", START, who, {}, host=host, key=key))
        conductor.notifications.add_server(connection, one.server._mapping, *events)  # noqa: SLF001 - its name


def _cell_of_arrived(work: Work) -> Database | None:
    """The database of the server's cell, if it had arrived before a crash; it may have been deleted there since."""
    store = work.conductor.store
    found = servers.mapping(store, work.id)
    if found is None:
        return None
    there = store.cell(found.cell_id)
    with there.read() as connection:
        return there if servers.row(connection, work.id) is not None else None


def _place(work: Work, spec: RequestSpec) -> Placed:
    api = leased(work.confirm_old_lease, work.conductor.store.api)
    found = place(api, work.conductor.current_states(), spec, random=RANDOM)
    return Placed(work, found.host, found.cell_id)
